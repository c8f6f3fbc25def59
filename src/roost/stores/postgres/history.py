"""Reading a log: always along its index by session and seq, so that its length does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from roost.domain.events import Entry, Micros
from roost.ports.log import EventQuery
from roost.stores.postgres.driver import Connection, numbered
from roost.stores.sql.listing import outside
from roost.stores.sql.rows import ENTRY_COLUMNS, WHERE_IS, entry_of

_DIRECTION: Final = {"asc": "ASC", "desc": "DESC"}

# A session's place in the database, and where its log ends.
_PLACE = "SELECT num, head FROM sessions WHERE id = $1"

# Of the rows of a statement, those before which there are less than so many bytes. What is large lies
# elsewhere in the database, and is fetched for rows that are sent only.
_UP_TO = """
SELECT seq, id, type, body, at, queued FROM (
    SELECT q.*, sum(octet_length(q.body)) OVER (ORDER BY q.seq {order} ROWS UNBOUNDED PRECEDING)
    - octet_length(q.body) AS before FROM ({statement}) q
) w WHERE w.before < {most} ORDER BY seq {order}
"""

# The entries after a seq.
_READ = _UP_TO.format(
    order="ASC",
    most="$4",
    statement=f"""
SELECT {ENTRY_COLUMNS} FROM entries e
WHERE e.session = (SELECT num FROM sessions WHERE id = $1) AND e.seq > $2 ORDER BY e.seq LIMIT $3
""",
)

# The inputs that wait, of these types or of all.
_INPUTS = f"""
SELECT {ENTRY_COLUMNS} FROM sessions s JOIN entries e
ON e.session = s.num AND s.waits_from > 0 AND e.seq >= s.waits_from
WHERE s.id = $1 AND e.taken = 0 AND (cardinality($2::text[]) = 0 OR e.type = ANY($2))
ORDER BY e.seq
"""

# A stretch of a log, without the inputs that show again, as taken up, by the time it is a picture of.
_STRETCH = f"""
SELECT {ENTRY_COLUMNS} FROM entries e
WHERE e.session = $1 AND e.seq BETWEEN $2 AND $3
AND (NOT e.queued OR e.taken NOT BETWEEN 1 AND $4)
AND (cardinality($5::text[]) = 0 OR e.type = ANY($5))
"""

_WHERE_IS = numbered(WHERE_IS)

# When an entry was written.
_MOMENT = "SELECT at FROM entries WHERE session = $1 AND seq = $2"


async def inputs(session_id: str, types: Sequence[str], db: Connection) -> list[Entry]:
    """The inputs that wait, oldest first."""
    return [entry_of(row) for row in await db.fetch(_INPUTS, session_id, list(types))]


async def read(
    session_id: str, after: int, limit: int, most_bytes: int, db: Connection
) -> list[Entry]:
    """What follows after a seq."""
    return [entry_of(row) for row in await db.fetch(_READ, session_id, after, limit, most_bytes)]


async def place(session_id: str, event_id: str, db: Connection) -> int | None:
    """Where an event stands, the last time it does."""
    found: int | None = await db.fetchval(_WHERE_IS, session_id, event_id)
    return found


async def page(session_id: str, query: EventQuery, db: Connection) -> list[Entry]:
    """A listing."""
    place = await db.fetchrow(_PLACE, session_id)
    if place is None:
        return []
    num, head = place
    as_of = head if query.as_of is None else query.as_of
    first, last = await _span(num, head, query, db)
    order = _DIRECTION[query.order]
    stretch = f"{_STRETCH} {outside('e.seq', query.hidden)} ORDER BY e.seq {order} LIMIT $6"
    rows = await db.fetch(
        _UP_TO.format(order=order, most="$7", statement=stretch),
        *(num, first, min(last, as_of), as_of, list(query.types), query.limit, query.most_bytes),
    )
    return [entry_of(row) for row in rows]


async def _span(num: int, head: int, query: EventQuery, db: Connection) -> tuple[int, int]:
    """From which seq to which a listing looks. Times never run backwards along a log."""
    first, last = query.after + 1, head
    if query.before is not None:
        last = min(last, query.before - 1)
    if query.since is not None:
        first = max(first, await _seq_at(num, head, query.since, db))
    if query.until is not None:
        last = min(last, await _seq_at(num, head, query.until + 1, db) - 1)
    return first, last


async def _seq_at(num: int, head: int, moment: Micros, db: Connection) -> int:
    """The first seq at or after a moment, by bisection; one past the end if there is none."""
    low, high = 1, head + 1
    while low < high:
        middle = (low + high) // 2
        if await db.fetchval(_MOMENT, num, middle) < moment:
            low = middle + 1
        else:
            high = middle
    return low
