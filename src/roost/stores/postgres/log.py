"""The log on PostgreSQL: what differs from other databases."""

from __future__ import annotations

from roost.domain.session import Lease
from roost.stores.postgres.database import Database
from roost.stores.postgres.leases import Claims, NodeLeases
from roost.stores.postgres.writer import PostgresWriter
from roost.stores.sql.log import SqlLog


class PostgresLog(SqlLog):
    """The `ports.log.Log` on PostgreSQL."""

    def __init__(self, writer: PostgresWriter, database: Database, nodes: NodeLeases) -> None:
        super().__init__(writer, database)
        self._nodes = nodes
        self._claims = Claims(writer)

    async def claim(self, node: str, limit: int) -> list[Lease]:
        return await self._claims.claim(node, limit)

    async def renew(self, node: str, ttl: float) -> None:
        await self._nodes.renew(node, ttl)
