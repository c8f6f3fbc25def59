"""The store's time: the machine's clock, except that it never runs backwards, also not over a restart."""

from __future__ import annotations

import time

import apsw

from roost.domain.events import Micros

# The latest moment the database speaks of: time goes on from there, whatever the clock says.
_LATEST = """
SELECT max(moment) FROM (
    SELECT * FROM (SELECT at AS moment FROM entries ORDER BY rowid DESC LIMIT 1)
    UNION ALL SELECT max(updated_at) FROM heads
    UNION ALL SELECT max(updated_at) FROM records
    UNION ALL SELECT max(created_at) FROM keys
    UNION ALL SELECT max(revoked_at) FROM keys
)
"""


class Clock:
    """Advanced by the writer, once per batch; readers may look at it."""

    def __init__(self, db: apsw.Connection) -> None:
        self.last: Micros = db.execute(_LATEST).get or 0

    def tick(self) -> Micros:
        """The moment at which the next batch happens."""
        self.last = self.now()
        return self.last

    def now(self) -> Micros:
        """The time in microseconds, which never runs backwards."""
        return max(time.time_ns() // 1000, self.last)
