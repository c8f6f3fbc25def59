"""The log on SQLite: each method is one operation of the writer, or one question to a reader."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from roost.domain import ledger
from roost.domain.events import Draft, Entry
from roost.domain.ledger import Batch, Standby
from roost.domain.session import Lease
from roost.errors import LeaseLost
from roost.ports.log import ANY_SIZE, Accepted, EventQuery, Receipt
from roost.stores.sql import operations
from roost.stores.sql.rows import Row
from roost.stores.sqlite import history
from roost.stores.sqlite.nodes import renew
from roost.stores.sqlite.readers import Readers
from roost.stores.sqlite.transaction import Transaction
from roost.stores.sqlite.writer import Writer

# Who owns sessions that have work, and '' if some have no owner: one hop in the index for each.
_OWNERS = """
WITH RECURSIVE owners (owner) AS (
    SELECT min(owner) FROM sessions WHERE active_since > 0
    UNION ALL
    SELECT (SELECT min(s.owner) FROM sessions s WHERE s.active_since > 0 AND s.owner > owners.owner)
    FROM owners WHERE owners.owner IS NOT NULL
)
SELECT owner FROM owners WHERE owner IS NOT NULL
"""

# The sessions with work that one owner has, those at work for longest first.
_WORK = """
SELECT active_since, num, id FROM sessions
WHERE owner = ? AND active_since > 0 ORDER BY active_since, num LIMIT ?
"""


class SqliteLog:
    """`ports.log.Log`."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def accept(
        self,
        session_id: str,
        drafts: Sequence[Draft],
        *,
        receipts: Sequence[Receipt | None] = (),
        max_queued: int = 1000,
        standby: Standby | None = None,
    ) -> Accepted:
        terms = max_queued, standby
        if any(receipts):
            op = partial(operations.accept_once, session_id, drafts, receipts, terms)
        else:
            op = partial(operations.accept, session_id, drafts, terms)
        return await self._writer.do(op)

    async def claim(self, node: str, limit: int) -> list[Lease]:
        return await self._writer.do(partial(_claim, node, limit))

    async def renew(self, node: str, ttl: float) -> None:
        await self._writer.do(partial(renew, node, ttl))

    async def append(self, lease: Lease, batch: Batch) -> list[Entry]:
        return await self._writer.do(partial(operations.append, lease, batch))

    async def finish(
        self,
        lease: Lease,
        seen: int,
        batch: Batch,
        stop_reason: dict[str, Any],
        *,
        keep: bool = False,
    ) -> list[Entry] | None:
        return await self._writer.do(
            partial(operations.finish, lease, seen, batch, stop_reason, keep)
        )

    async def release(self, lease: Lease) -> None:
        await self._writer.do(partial(operations.release, lease))

    async def inputs(self, session_id: str, types: Sequence[str] = ()) -> list[Entry]:
        return await self._readers.ask(partial(history.inputs, session_id, types))

    async def read(
        self, session_id: str, after: int, limit: int, most_bytes: int = ANY_SIZE
    ) -> list[Entry]:
        asked = session_id, after, limit, most_bytes
        return await self._readers.ask(partial(history.read, *asked))

    async def place(self, session_id: str, event_id: str) -> int | None:
        return await self._readers.ask(partial(history.place, session_id, event_id))

    async def page(self, session_id: str, query: EventQuery) -> list[Entry]:
        return await self._readers.ask(partial(history.page, session_id, query))


# What the writer does


def _claim(node: str, limit: int, tx: Transaction) -> list[Lease]:
    now = time.monotonic()
    if tx.nodes.get(node, now) <= now:
        raise LeaseLost(f"the lease of {node} has run out")
    waiting: list[Row] = []
    for (owner,) in tx.ask(_OWNERS):
        if tx.nodes.get(owner, now) <= now:
            waiting += tx.ask(_WORK, (owner, limit))
    leases = []
    for _, _, session_id in sorted(waiting)[:limit]:
        hot = tx.session(session_id)
        tx.put(hot, ledger.take(hot.state, node))
        leases.append(Lease(session_id, node, hot.state.generation))
    return leases
