"""What nodes say of themselves and which of them are to drain, on PostgreSQL: in the rows of their leases."""

from __future__ import annotations

import msgspec

from roost.errors import NotFound
from roost.ports.nodes import About, Node
from roost.stores.postgres.database import Database
from roost.stores.postgres.driver import NOW, Connection
from roost.stores.postgres.transaction import LIVES
from roost.stores.postgres.writer import PostgresWriter

_TELL = "UPDATE nodes SET about = $2, home = $3 WHERE id = $1 RETURNING draining > 0"

# A node that left without a word is shown for ten minutes, or until others have its work.
_ALL = f"""
SELECT n.id, n.about, {NOW}, n.expires, n.draining, coalesce(w.waiting, 0) FROM nodes n
LEFT JOIN (
    SELECT owner, count(*) AS waiting FROM sessions WHERE active_since > 0 GROUP BY owner
) w ON w.owner = n.id
WHERE n.expires > {NOW} - 600000000 OR w.waiting > 0 ORDER BY n.id
"""

_LIVES = f"SELECT EXISTS (SELECT 1 FROM nodes n WHERE n.id = $1 AND {LIVES})"

_MARK = f"""
UPDATE nodes SET draining = CASE WHEN NOT $2::boolean THEN 0 WHEN draining > 0 THEN draining ELSE {NOW} END
WHERE id = $1 AND expires > {NOW} RETURNING id
"""


class PostgresNodes:
    """The `ports.nodes.Nodes` of all that share a PostgreSQL."""

    def __init__(self, writer: PostgresWriter, database: Database) -> None:
        self._writer = writer
        self._database = database

    async def tell(self, node: str, about: About) -> bool:
        said = msgspec.json.encode(about)
        return bool(await self._writer.apart(lambda db: db.fetchval(_TELL, node, said, about.home)))

    async def all(self) -> list[Node]:
        rows = await self._database.ask(lambda db: db.fetch(_ALL))
        return [
            Node(
                id=id,
                about=msgspec.json.decode(about, type=About),
                read_at=now,
                expires_at=expires,
                draining_since=draining,
                waiting=waiting,
            )
            for id, about, now, expires, draining, waiting in rows
        ]

    async def lives(self, node: str) -> bool:
        return bool(await self._database.ask(lambda db: db.fetchval(_LIVES, node)))

    async def mark(self, node: str, *, draining: bool) -> None:
        await self._writer.apart(lambda db: _mark(db, node, draining))


async def _mark(connection: Connection, node: str, draining: bool) -> None:
    if await connection.fetchval(_MARK, node, draining) is None:
        raise NotFound(f"there is no node {node}")
