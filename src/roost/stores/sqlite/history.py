"""Reading a log: always along its index by session and seq, so that its length does not matter."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import apsw

from roost.domain.events import Entry, Micros
from roost.ports.log import EventQuery
from roost.stores.sql.listing import outside
from roost.stores.sql.rows import ENTRY_COLUMNS, WHERE_IS, entry_of

_DIRECTION: Final = {"asc": "ASC", "desc": "DESC"}

# A session's place in the database, and where its log ends.
_PLACE = "SELECT s.num, h.head FROM sessions s JOIN heads h ON h.session = s.num WHERE s.id = ?"

# The entries after a seq.
_READ = f"""
SELECT {ENTRY_COLUMNS} FROM sessions s JOIN entries e ON e.session = s.num
WHERE s.id = ? AND e.seq > ? ORDER BY e.seq LIMIT ?
"""

# The inputs that wait.
_INPUTS = f"""
SELECT {ENTRY_COLUMNS} FROM sessions s JOIN heads h ON h.session = s.num JOIN entries e
ON e.session = s.num AND h.waits_from > 0 AND e.seq >= h.waits_from
WHERE s.id = ? AND e.taken = 0
"""

# A stretch of a log, without the inputs that show again, as taken up, by the time it is a picture of.
_STRETCH = f"""
SELECT {ENTRY_COLUMNS} FROM entries e
WHERE e.session = ? AND e.seq BETWEEN ? AND ?
AND (e.queued = 0 OR e.taken NOT BETWEEN 1 AND ?)
"""

# When an entry was written.
_MOMENT = "SELECT at FROM entries WHERE session = ? AND seq = ?"


def inputs(session_id: str, types: Sequence[str], db: apsw.Connection) -> list[Entry]:
    """The inputs that wait, oldest first."""
    statement = f"{_INPUTS} {_among(types)} ORDER BY e.seq"
    return [entry_of(row) for row in db.execute(statement, (session_id, *types))]


def read(
    session_id: str, after: int, limit: int, most_bytes: int, db: apsw.Connection
) -> list[Entry]:
    """What follows after a seq."""
    return _up_to(most_bytes, db.execute(_READ, (session_id, after, limit)))


def place(session_id: str, event_id: str, db: apsw.Connection) -> int | None:
    """Where an event stands, the last time it does."""
    found = db.execute(WHERE_IS, (session_id, event_id)).get
    return None if found is None else int(found)


def page(session_id: str, query: EventQuery, db: apsw.Connection) -> list[Entry]:
    """A listing."""
    place = db.execute(_PLACE, (session_id,)).fetchone()
    if place is None:
        return []
    num, head = place
    as_of = head if query.as_of is None else query.as_of
    first, last = _span(num, head, query, db)
    rows = db.execute(
        f"{_STRETCH} {_among(query.types)} {outside('e.seq', query.hidden)} ORDER BY e.seq {_DIRECTION[query.order]} LIMIT ?",
        (num, first, min(last, as_of), as_of, *query.types, query.limit),
    )
    return _up_to(query.most_bytes, rows)


def _up_to(most_bytes: int, rows: apsw.Cursor) -> list[Entry]:
    """The first rows, up to the one that brings them to so many bytes: others are not even read."""
    entries: list[Entry] = []
    size = 0
    with closing(rows):  # a statement left in the middle would keep its picture of the database
        for row in rows:
            entries.append(entry_of(row))
            size += len(entries[-1].body)
            if size >= most_bytes:
                break
    return entries


def _among(types: Sequence[str]) -> str:
    return f"AND e.type IN ({', '.join('?' * len(types))})" if types else ""


def _span(num: int, head: int, query: EventQuery, db: apsw.Connection) -> tuple[int, int]:
    """From which seq to which a listing looks. Times never run backwards along a log."""
    first, last = query.after + 1, head
    if query.before is not None:
        last = min(last, query.before - 1)
    if query.since is not None:
        first = max(first, _seq_at(num, head, query.since, db))
    if query.until is not None:
        last = min(last, _seq_at(num, head, query.until + 1, db) - 1)
    return first, last


def _seq_at(num: int, head: int, moment: Micros, db: apsw.Connection) -> int:
    """The first seq at or after a moment; one past the end if there is none."""

    def at(seq: int) -> Micros:
        found: Micros = db.execute(_MOMENT, (num, seq)).get
        return found

    return 1 + bisect_left(range(1, head + 1), moment, key=at)
