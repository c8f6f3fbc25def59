"""Sessions that begin with a part of another one's log: what both databases are asked, in one wording.

Each store puts it together itself: one locks the rows it will need first, waits for every answer and writes
its changes last, the other has one writer and does none of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from roost.domain.session import State
from roost.ports.sessions import Planting
from roost.stores.sql.rows import Row
from roost.stores.sql.sessions import New

# A stretch of one log at the end of another. What waited for the agent is not there, and what it was given
# is there once. A rewind is not: in the other log nothing was rewound.
COPY: Final = """
INSERT INTO entries (session, seq, at, queued, taken, id, type, body)
SELECT CAST(? AS BIGINT), CAST(? AS BIGINT) + row_number() OVER (ORDER BY seq), at, FALSE, NULL, id, type, body
FROM entries
WHERE session = ? AND seq BETWEEN ? AND ? AND NOT queued AND (taken IS NULL OR taken = seq)
AND type <> 'roost.rewound'
"""

# How long a log is that nobody else writes to.
LENGTH: Final = "SELECT coalesce(max(seq), 0) FROM entries WHERE session = ?"


# Entries from elsewhere.
PLANT: Final = """
INSERT INTO entries (session, seq, at, queued, taken, id, type, body)
VALUES (?, ?, ?, FALSE, NULL, ?, ?, ?)
"""


def planted(num: int, planting: Planting) -> Iterator[Row]:
    """What `PLANT` takes."""
    for entry in planting.entries:
        yield num, entry.seq, entry.at, entry.id, entry.type, entry.body


def begun_by(new: New, planting: Planting) -> New:
    """As `begun`, with a log from elsewhere."""
    if not planting.thread_id:
        return new
    return replace(new, state=replace(new.state, thread_id=planting.thread_id))


def begun(new: New, source: State) -> New:
    """The session as it is before it has a log; its entries are going to name the source's thread."""
    return replace(new, state=replace(new.state, thread_id=source.thread_id))
