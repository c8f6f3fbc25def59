"""The log on PostgreSQL: each method is one operation of a batch, or one question."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from roost.domain.events import Draft, Entry
from roost.domain.ledger import Batch, Standby
from roost.domain.session import Lease
from roost.ports.log import ANY_SIZE, Accepted, EventQuery, Receipt
from roost.stores.postgres import history
from roost.stores.postgres.database import Database
from roost.stores.postgres.nodes import Claims, Nodes
from roost.stores.postgres.transaction import Needs
from roost.stores.postgres.writer import Writer
from roost.stores.sql import operations


class PostgresLog:
    """`ports.log.Log`."""

    def __init__(self, writer: Writer, database: Database, nodes: Nodes) -> None:
        self._writer = writer
        self._database = database
        self._nodes = nodes
        self._claims = Claims(writer)

    async def accept(
        self,
        session_id: str,
        drafts: Sequence[Draft],
        *,
        receipts: Sequence[Receipt | None] = (),
        max_queued: int = 1000,
        standby: Standby | None = None,
    ) -> Accepted:
        keys = [receipt.key for receipt in receipts if receipt]
        terms = max_queued, standby
        if keys:
            op = partial(operations.accept_once, session_id, drafts, receipts, terms)
        else:
            op = partial(operations.accept, session_id, drafts, terms)
        return await self._writer.do(
            op, Needs(session_id, keys=keys, inputs=operations.stops(drafts))
        )

    async def claim(self, node: str, limit: int) -> list[Lease]:
        return await self._claims.claim(node, limit)

    async def renew(self, node: str, ttl: float) -> None:
        await self._nodes.renew(node, ttl)

    async def append(self, lease: Lease, batch: Batch) -> list[Entry]:
        needs = Needs(lease.session_id, waiting=bool(batch.takes))
        return await self._writer.do(partial(operations.append, lease, batch), needs)

    async def finish(
        self,
        lease: Lease,
        seen: int,
        batch: Batch,
        stop_reason: dict[str, Any],
        *,
        keep: bool = False,
    ) -> list[Entry] | None:
        op = partial(operations.finish, lease, seen, batch, stop_reason, keep)
        return await self._writer.do(op, Needs(lease.session_id, waiting=bool(batch.takes)))

    async def release(self, lease: Lease) -> None:
        await self._writer.do(partial(operations.release, lease), Needs(lease.session_id))

    async def inputs(self, session_id: str, types: Sequence[str] = ()) -> list[Entry]:
        return await self._database.read(partial(history.inputs, session_id, types))

    async def read(
        self, session_id: str, after: int, limit: int, most_bytes: int = ANY_SIZE
    ) -> list[Entry]:
        asked = session_id, after, limit, most_bytes
        return await self._database.read(partial(history.read, *asked))

    async def place(self, session_id: str, event_id: str) -> int | None:
        return await self._database.read(partial(history.place, session_id, event_id))

    async def page(self, session_id: str, query: EventQuery) -> list[Entry]:
        return await self._database.read(partial(history.page, session_id, query))
