"""The log on SQLite: what differs from other databases."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from roost.domain import ledger
from roost.domain.events import Entry
from roost.domain.session import Lease
from roost.errors import LeaseLost
from roost.stores.sql.log import SqlLog, waiting_inputs
from roost.stores.sql.rows import Row
from roost.stores.sqlite.nodes import Renew
from roost.stores.sqlite.readers import SqliteReaders
from roost.stores.sqlite.transaction import SqliteTransaction
from roost.stores.sqlite.writer import SqliteWriter

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


class SqliteLog(SqlLog):
    """The `ports.log.Log` on SQLite."""

    def __init__(self, writer: SqliteWriter, readers: SqliteReaders) -> None:
        super().__init__(writer, readers)
        self._sqlite = writer
        self._readers = readers

    async def claim(self, node: str, limit: int) -> list[Lease]:
        return await self._sqlite.do(SqliteClaim(node, limit))

    async def renew(self, node: str, ttl: float) -> None:
        await self._sqlite.do(Renew(node, ttl))

    async def inputs(self, session_id: str, types: Sequence[str] = ()) -> list[Entry]:
        """Of a session that is written to just now, from memory: mostly there are none."""
        settled = self._sqlite.settled(session_id)
        if settled is not None and not settled.state.queued:
            return []
        if not self._sqlite.remembers(session_id):
            return await super().inputs(session_id, types)
        return await self._readers.read_here(lambda rows: waiting_inputs(rows, session_id, types))


class SqliteClaim(msgspec.Struct, frozen=True):
    """A node takes sessions that have work and no living runner."""

    node: str
    limit: int

    def on(self, tx: SqliteTransaction) -> list[Lease]:
        now = time.monotonic()
        if tx.nodes.get(self.node, now) <= now:
            raise LeaseLost(f"the lease of {self.node} has run out")
        waiting: list[Row] = []
        for (owner,) in tx.query(_OWNERS):
            if tx.nodes.get(owner, now) <= now:
                waiting += tx.query(_WORK, owner, self.limit)
        leases = []
        for _, _, session_id in sorted(waiting)[: self.limit]:
            session = tx.session(session_id)
            tx.put(session, ledger.take(session.state, self.node))
            leases.append(Lease(session_id, self.node, session.state.generation))
        return leases
