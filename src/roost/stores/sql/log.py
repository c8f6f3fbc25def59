"""The log in a SQL database: `SqlLog`, then the operations that it hands to the writer, then what it asks.

Each operation works the ledger's rules out on the sessions of its batch. What differs from one database to the
other is who may claim a session, and how nodes say that they live.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, Final, Literal

import msgspec

from roost.domain import ledger
from roost.domain.events import PRIVATE, Draft, Entry, Micros
from roost.domain.ledger import Batch, Standby
from roost.domain.session import Lease
from roost.errors import IdempotencyMismatch, LeaseLost, NotFound
from roost.ports.log import ANY_SIZE, Accepted, AcceptEnded, EventQuery, Receipt
from roost.stores.sql.batch import Needs, WriteBatch
from roost.stores.sql.database import Rows, SqlReader, SqlWriter, rows_of
from roost.stores.sql.listing import outside
from roost.stores.sql.rows import ENTRY_COLUMNS, SESSIONS, CachedSession, entry_of


class SqlLog(ABC):
    """The `ports.log.Log` on an SQL database."""

    def __init__(self, writer: SqlWriter, reader: SqlReader) -> None:
        self._writer = writer
        self._reader = reader

    def accept(
        self,
        session_id: str,
        drafts: Sequence[Draft],
        *,
        receipts: Sequence[Receipt | None] = (),
        max_queued: int = 1000,
        standby: Standby | None = None,
        ended: AcceptEnded | None = None,
    ) -> Awaitable[Accepted]:
        operation = Accept(session_id, drafts, receipts, max_queued, standby)
        return self._writer.do(operation, ended)

    @abstractmethod
    async def claim(self, node: str, limit: int) -> list[Lease]: ...

    @abstractmethod
    async def renew(self, node: str, ttl: float) -> None: ...

    async def append(self, lease: Lease, batch: Batch) -> list[Entry]:
        return await self._writer.do(Append(lease, batch))

    async def finish(
        self,
        lease: Lease,
        seen: int,
        batch: Batch,
        stop_reason: dict[str, Any],
        *,
        keep: bool = False,
    ) -> list[Entry] | None:
        return await self._writer.do(Finish(lease, seen, batch, stop_reason, keep))

    async def release(self, lease: Lease) -> None:
        await self._writer.do(Release(lease))

    async def inputs(self, session_id: str, types: Sequence[str] = ()) -> list[Entry]:
        return await self._reader.read(lambda rows: waiting_inputs(rows, session_id, types))

    async def read(
        self, session_id: str, after: int, limit: int, most_bytes: int = ANY_SIZE
    ) -> list[Entry]:
        return await self._reader.read(
            lambda rows: rows.entries(
                _READ, session_id, after, limit, order="ASC", most_bytes=most_bytes
            )
        )

    async def seq_of(self, session_id: str, event_id: str) -> int | None:
        [(found,)] = await rows_of(self._reader, _WHERE_IS, session_id, event_id)
        return None if found is None else int(found)

    async def page(self, session_id: str, query: EventQuery) -> list[Entry]:
        return await self._reader.read(lambda rows: _page(rows, session_id, query))


# What the writer does


class Accept(msgspec.Struct, frozen=True):
    """Inputs from a client, without those that came before under their receipts, or twice in this request."""

    session_id: str
    drafts: Sequence[Draft]
    receipts: Sequence[Receipt | None]
    max_queued: int
    standby: Standby | None

    @property
    def needs(self) -> Needs:
        keys = [receipt.key for receipt in self.receipts if receipt]
        return Needs(self.session_id, keys=keys, inputs=_has_interrupt(self.drafts))

    def on(self, batch: WriteBatch) -> Accepted:
        session = batch.session(self.session_id)
        if not any(self.receipts):
            return self._written(batch, session, self.drafts)
        slots, fresh = self._known_and_fresh(batch, session)
        if not fresh:
            return Accepted([s for s in slots if isinstance(s, Entry)], woke=False, repeated=True)
        written = self._written(batch, session, fresh)
        for slot, receipt in zip(slots, self.receipts, strict=True):
            if receipt and isinstance(slot, int):
                batch.note(session, receipt, written.entries[slot])
        entries = [written.entries[slot] if isinstance(slot, int) else slot for slot in slots]
        return Accepted(entries, written.woke, begun=written.begun)

    def _known_and_fresh(
        self, batch: WriteBatch, session: CachedSession
    ) -> tuple[list[Entry | int], list[Draft]]:
        """For each draft its first entry, or its place among the fresh drafts; and those."""
        slots: list[Entry | int] = []
        fresh: list[Draft] = []
        places: dict[str, tuple[str, int]] = {}
        for draft, receipt in zip(self.drafts, self.receipts, strict=True):
            known = batch.recall(session, receipt) if receipt else None
            if known is not None:
                slots.append(known)
                continue
            place = len(fresh)
            if receipt:
                fingerprint, place = places.setdefault(receipt.key, (receipt.fingerprint, place))
                if fingerprint != receipt.fingerprint:
                    raise IdempotencyMismatch()
            slots.append(place)
            if place == len(fresh):
                fresh.append(draft)
        return slots, fresh

    def _written(
        self, batch: WriteBatch, session: CachedSession, drafts: Sequence[Draft]
    ) -> Accepted:
        before = session.state
        waiting = batch.inputs(session) if before.queued and _has_interrupt(drafts) else []
        change = ledger.admit(before, drafts, batch.moment, self.max_queued, self.standby, waiting)
        begun = change.state if change.state.turn and not before.turn else None
        batch.apply(session, change, [entry for entry in waiting if entry.seq in change.consumed])
        if len(change.entries) == len(drafts):  # nothing was written but these
            return Accepted(change.entries, woke=False, begun=begun)
        woke = any(entry.type == "session.status_running" for entry in change.entries)
        first = {entry.id: entry for entry in reversed(change.entries)}
        return Accepted([first[draft.id] for draft in drafts], woke, begun=begun)


def _has_interrupt(drafts: Sequence[Draft]) -> bool:
    """An interrupt withdraws what waits, which must be known for that."""
    return "user.interrupt" in [draft.type for draft in drafts]


class Append(msgspec.Struct, frozen=True):
    """What a runner did."""

    lease: Lease
    batch: Batch

    @property
    def needs(self) -> Needs:
        return Needs(self.lease.session_id, waiting=bool(self.batch.takes))

    def on(self, batch: WriteBatch) -> list[Entry]:
        session = _owned(batch, self.lease)
        change = ledger.work(session.state, self.lease, self.batch, batch.moment)
        batch.apply(session, change, self.batch.takes)
        return change.entries


class Finish(msgspec.Struct, frozen=True):
    """The session goes idle, if nothing was written since."""

    lease: Lease
    seen: int
    batch: Batch
    stop_reason: dict[str, Any]
    keep: bool

    @property
    def needs(self) -> Needs:
        return Needs(self.lease.session_id, waiting=bool(self.batch.takes))

    def on(self, batch: WriteBatch) -> list[Entry] | None:
        session = _owned(batch, self.lease)
        change = ledger.rest(
            session.state,
            self.lease,
            self.seen,
            self.batch,
            self.stop_reason,
            batch.moment,
            keep=self.keep,
        )
        if change is None:
            return None
        batch.apply(session, change, self.batch.takes)
        return change.entries


class Release(msgspec.Struct, frozen=True):
    """A runner hands its session back."""

    lease: Lease

    @property
    def needs(self) -> Needs:
        return Needs(self.lease.session_id)

    def on(self, batch: WriteBatch) -> None:
        try:
            session = batch.session(self.lease.session_id)
        except NotFound:
            return
        state = ledger.give_back(session.state, self.lease)
        if state is not session.state:
            batch.put(session, state)


def _owned(batch: WriteBatch, lease: Lease) -> CachedSession:
    """To its runner, a deleted session is one that it does not own any more."""
    try:
        return batch.session(lease.session_id)
    except NotFound as gone:
        raise LeaseLost(gone.message) from None


# What readers are asked: always along the index by session and seq, so that a log's length does not matter

_DIRECTION: Final[dict[str, Literal["ASC", "DESC"]]] = {"asc": "ASC", "desc": "DESC"}

# The entries after a seq.
_READ: Final = f"""
SELECT {ENTRY_COLUMNS} FROM entries e
WHERE e.session = (SELECT num FROM sessions WHERE id = ?) AND e.seq > ? ORDER BY e.seq LIMIT ?
"""

# The inputs that wait.
_INPUTS: Final = f"""
SELECT {ENTRY_COLUMNS} FROM {SESSIONS} JOIN entries e
ON e.session = s.num AND h.waits_from > 0 AND e.seq >= h.waits_from
WHERE s.id = ? AND e.taken = 0
"""

# Where an event stands in a log: the last time, since one that was queued stands there twice.
_WHERE_IS: Final = """
SELECT max(seq) FROM entries WHERE session = (SELECT num FROM sessions WHERE id = ?) AND id = ?
"""

# A session's place in the database, and where its log ends.
_PLACE: Final = f"SELECT s.num, h.head FROM {SESSIONS} WHERE s.id = ?"

# A stretch of a log, without the inputs that show again, as taken up, by the time it is a picture of.
_STRETCH: Final = f"""
SELECT {ENTRY_COLUMNS} FROM entries e
WHERE e.session = ? AND e.seq BETWEEN ? AND ?
AND (NOT e.queued OR e.taken NOT BETWEEN 1 AND ?)
"""

# When an entry was written.
_MOMENT: Final = "SELECT at FROM entries WHERE session = ? AND seq = ?"


async def waiting_inputs(rows: Rows, session_id: str, types: Sequence[str] = ()) -> list[Entry]:
    """The inputs that wait, oldest first; of these types, or of all."""
    found = await rows.fetch(f"{_INPUTS} {_among(types)} ORDER BY e.seq", session_id, *types)
    return [entry_of(row) for row in found]


_SHOWN = f"AND e.type NOT IN ({', '.join(repr(type) for type in sorted(PRIVATE))})"


async def _page(rows: Rows, session_id: str, query: EventQuery) -> list[Entry]:
    place = await rows.fetch(_PLACE, session_id)
    if not place:
        return []
    [(num, head)] = place
    as_of = head if query.as_of is None else query.as_of
    first, last = await _span(rows, num, head, query)
    order = _DIRECTION[query.order]
    where = f"{_among(query.types)} {_SHOWN} {outside('e.seq', query.hidden)}"
    return await rows.entries(
        f"{_STRETCH} {where} ORDER BY e.seq {order} LIMIT ?",
        *(num, first, min(last, as_of), as_of, *query.types, query.limit),
        order=order,
        most_bytes=query.most_bytes,
    )


def _among(types: Sequence[str]) -> str:
    return f"AND e.type IN ({', '.join('?' * len(types))})" if types else ""


async def _span(rows: Rows, num: int, head: int, query: EventQuery) -> tuple[int, int]:
    """From which seq to which a listing looks. Times never run backwards along a log."""
    first, last = query.after + 1, head
    if query.before is not None:
        last = min(last, query.before - 1)
    if query.since is not None:
        first = max(first, await _seq_at(rows, num, head, query.since))
    if query.until is not None:
        last = min(last, await _seq_at(rows, num, head, query.until + 1) - 1)
    return first, last


async def _seq_at(rows: Rows, num: int, head: int, moment: Micros) -> int:
    """The first seq at or after a moment, by bisection; one past the end if there is none."""
    low, high = 1, head + 1
    while low < high:
        middle = (low + high) // 2
        [(at,)] = await rows.fetch(_MOMENT, num, middle)
        if at < moment:
            low = middle + 1
        else:
            high = middle
    return low
