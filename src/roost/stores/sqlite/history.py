"""Reading a log: from a mark or the end, backwards along the chain. See `migrations/0001_first.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import apsw

from roost.domain.events import Entry, Micros
from roost.ports.log import EventQuery
from roost.stores.sqlite.rows import ENTRY_COLUMNS, entry_of

_WIDEST: Final = 4_000
"""Entries looked through at once by a listing that goes forwards."""

_FOREVER: Final = 2**62

# A session's place in the database, and where its log ends.
_PLACE = "SELECT s.num, h.head FROM sessions s JOIN heads h ON h.session = s.num WHERE s.id = ?"

# The entries from one seq to another, newest first: jumps to the first mark at or after the newer
# one, or to the end, and walks from there.
_STRETCH = f"""
WITH RECURSIVE walk (num, seq, prev) AS (
    SELECT num, seq, prev FROM entries WHERE num = coalesce(
        (SELECT entry FROM marks WHERE session = ?1 AND seq >= ?3 ORDER BY seq LIMIT 1),
        (SELECT last FROM heads WHERE session = ?1)
    )
    UNION ALL
    SELECT e.num, e.seq, e.prev FROM walk w JOIN entries e ON e.num = w.prev WHERE w.seq > ?2
)
SELECT {ENTRY_COLUMNS} FROM walk w JOIN entries e ON e.num = w.num
WHERE w.seq BETWEEN ?2 AND ?3
"""

# Without the inputs that show again, as taken up, by the time the listing is a picture of.
_SHOWN = (
    "AND (e.queued = 0 OR coalesce(e.taken, 0) NOT BETWEEN 1 AND ?4) AND e.at BETWEEN ?5 AND ?6"
)

# The inputs that wait, newest first: walks along the inputs until it has seen as many as wait.
_INPUTS = f"""
WITH RECURSIVE walk (num, prev_input, missing) AS (
    SELECT e.num, e.prev_input, h.queued - (e.taken = 0)
    FROM sessions s JOIN heads h ON h.session = s.num JOIN entries e ON e.num = h.last_input
    WHERE s.id = ? AND h.queued > 0
    UNION ALL
    SELECT e.num, e.prev_input, w.missing - (e.taken = 0)
    FROM walk w JOIN entries e ON e.num = w.prev_input WHERE w.missing > 0
)
SELECT {ENTRY_COLUMNS} FROM walk w JOIN entries e ON e.num = w.num WHERE e.taken = 0
"""

# Marks just outside a span of time: times never run backwards along a log.
_BEFORE = "SELECT seq FROM marks WHERE session = ? AND at < ? ORDER BY seq DESC LIMIT 1"
_BEYOND = "SELECT seq FROM marks WHERE session = ? AND at > ? ORDER BY seq LIMIT 1"


class _Span(NamedTuple):
    """What a listing looks through: a stretch of one log, and a span of time within it."""

    session: int
    first: int
    last: int
    as_of: int
    since: Micros
    until: Micros


def inputs(session_id: str, db: apsw.Connection) -> list[Entry]:
    """The inputs that wait, oldest first."""
    return [entry_of(row) for row in reversed(db.execute(_INPUTS, (session_id,)).fetchall())]


def read(session_id: str, after: int, limit: int, db: apsw.Connection) -> list[Entry]:
    """What follows after a seq."""
    place = db.execute(_PLACE, (session_id,)).fetchone()
    if place is None or place[1] <= after:
        return []
    stretch = db.execute(_STRETCH, (place[0], after + 1, min(after + limit, place[1])))
    return [entry_of(row) for row in reversed(stretch.fetchall())]


def page(session_id: str, query: EventQuery, db: apsw.Connection) -> list[Entry]:
    """A listing."""
    place = db.execute(_PLACE, (session_id,)).fetchone()
    if place is None:
        return []
    span = _span(place[0], place[1], query, db)
    if query.order == "desc":
        return _newest_first(span, query.types, query.limit, db)
    return _oldest_first(span, query.types, query.limit, db)


def _span(session: int, head: int, query: EventQuery, db: apsw.Connection) -> _Span:
    as_of = head if query.as_of is None else query.as_of
    first, last = query.after + 1, min(as_of, head)
    if query.before is not None:
        last = min(last, query.before - 1)
    if query.since is not None:
        first = max(first, db.execute(_BEFORE, (session, query.since)).get or 0)
    if query.until is not None:
        last = min(last, db.execute(_BEYOND, (session, query.until)).get or last)
    since, until = query.since, query.until
    return _Span(session, first, last, as_of, since or 0, _FOREVER if until is None else until)


def _newest_first(
    span: _Span, types: Sequence[str], limit: int, db: apsw.Connection
) -> list[Entry]:
    among = f"AND e.type IN ({', '.join('?' * len(types))})" if types else ""
    if span.first > span.last:
        return []
    rows = db.execute(f"{_STRETCH} {_SHOWN} {among} LIMIT ?", (*span, *types, limit))
    return [entry_of(row) for row in rows]


def _oldest_first(
    span: _Span, types: Sequence[str], limit: int, db: apsw.Connection
) -> list[Entry]:
    """Window after window, as a log can only be walked backwards; wider ones when little is found."""
    found: list[Entry] = []
    width = limit
    while span.first <= span.last and len(found) < limit:
        window = span._replace(last=min(span.last, span.first + width - 1))
        found += reversed(_newest_first(window, types, width, db))
        span = span._replace(first=window.last + 1)
        width = max(limit, min(width * 2, _WIDEST))
    return found[:limit]
