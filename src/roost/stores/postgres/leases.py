"""Which nodes live, and who takes the sessions of one that does not.

A node lives as long as its row says, by the database's clock. That finds a node that hangs, after the
lease time. One that dies is found sooner: each node holds an advisory lock on a connection of its
own, which the database frees with the connection. Whoever sees for half a second that a node's lock is
free, ends its lease. Both are only about when a session may be claimed: that the old runner writes
nothing any more is ensured by the claim itself, which raises the session's generation.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import anyio
import asyncpg
import msgspec

from roost.domain import ledger
from roost.domain.session import Lease
from roost.errors import LeaseLost, RoostError
from roost.ports.nodes import HEAD_START
from roost.ports.notifier import WORK
from roost.stores.postgres.channel import NOTIFY, notifications
from roost.stores.postgres.driver import NOW, STARTED, Connection
from roost.stores.postgres.kept_connection import KeptConnection
from roost.stores.postgres.transaction import (
    LIVES,
    PRESENT,
    SESSION_COLUMNS,
    PostgresTransaction,
)
from roost.stores.postgres.writer import PostgresWriter

_log = logging.getLogger(__name__)
_LOCKS: Final = 0x526F6F73  # "Roos": the kind of our advisory locks
_TICK: Final = 0.25
_SURE: Final = (
    0.5  # seconds without its lock; a living node whose connection broke has it back by then
)

_RENEW = f"""
INSERT INTO nodes (id, ttl, expires, locked_at) VALUES ($1, $2, {NOW} + $2, 0)
ON CONFLICT (id) DO UPDATE SET ttl = excluded.ttl, expires = excluded.expires
"""
_LEAVE = "DELETE FROM nodes WHERE id = $1"

# Whether a node lives; who owns sessions that have work and does not live, '' if some have no owner; and
# these sessions, those at work for longest first. Each owner is one hop in the index. What became work only
# now is left to the node that has its files, if that is another one that lives and does not drain; what
# works in a workspace that another node has, is always left to that one.
_LOOK = f"""
WITH RECURSIVE owners (owner) AS (
    SELECT min(owner) FROM sessions WHERE active_since > 0
    UNION ALL
    SELECT (SELECT min(s.owner) FROM sessions s WHERE s.active_since > 0 AND s.owner > owners.owner)
    FROM owners WHERE owners.owner IS NOT NULL
), dead (owner) AS (
    SELECT owner FROM owners WHERE owner IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM nodes n WHERE n.id = owners.owner AND {LIVES}
    )
), homes (home) AS (
    SELECT home FROM nodes WHERE home <> '' AND expires > {NOW} AND draining = 0
    EXCEPT SELECT home FROM nodes WHERE id = $1
)
SELECT EXISTS (SELECT 1 FROM nodes WHERE id = $1 AND expires > {NOW}),
       ARRAY(SELECT owner FROM dead),
       ARRAY(SELECT waiting.id FROM dead CROSS JOIN LATERAL (
           SELECT s.id, s.active_since, s.num FROM sessions s
           WHERE s.owner = dead.owner AND s.active_since > 0 AND NOT (
               s.active_since > {NOW} - {int(HEAD_START * 1_000_000)}
               AND s.home IN (SELECT home FROM homes)
           ) AND (s.workspace = '' OR NOT EXISTS (
               SELECT 1 FROM workspaces w JOIN nodes n ON n.id = w.holder
               WHERE w.id = s.workspace AND n.id <> $1 AND {LIVES}
           ))
           ORDER BY s.active_since, s.num LIMIT $2
       ) AS waiting ORDER BY waiting.active_since, waiting.num LIMIT $2)
"""

# Those of them that are still to be had, locked in the order in which everybody locks.
_TAKE = f"""
SELECT {SESSION_COLUMNS}, {PRESENT} FROM sessions s
WHERE s.id = ANY($1) AND s.owner = ANY($2) AND s.active_since > 0 ORDER BY s.num FOR UPDATE
"""
_OURS = f"""
SELECT {SESSION_COLUMNS}, {PRESENT} FROM sessions s
WHERE s.id = ANY($1) AND s.owner = $2 AND s.active_since > 0 ORDER BY s.num FOR UPDATE
"""
# From now on this node's place has their files.
_SETTLE = """
UPDATE sessions s SET home = n.home FROM nodes n
WHERE n.id = $1 AND s.id = ANY($2) AND s.home <> n.home
"""
_PATIENCE = "SET LOCAL lock_timeout = '300ms'"

_HOLD = "SELECT pg_try_advisory_lock($1, hashtext($2))"
_LET_GO = "SELECT pg_advisory_unlock($1, hashtext($2))"
_HELD = f"UPDATE nodes SET locked_at = {NOW} WHERE id = $1"

# The nodes whose lock is gone although their time has not run out. Locks from before the database
# was started say nothing.
_MISSING = f"""
SELECT n.id, n.locked_at FROM nodes n
WHERE n.expires > {NOW} AND n.locked_at > {STARTED} AND NOT EXISTS (
    SELECT 1 FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid::bigint = $1
    AND l.objid::bigint = hashtext(n.id)::bigint & 4294967295
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
"""
_END = "UPDATE nodes SET expires = 0 WHERE id = $1 AND locked_at = $2 RETURNING id"


class Claims:
    """Takes sessions for a node.

    A claim whose commit was cut off, and of which nobody could find out in time whether it was done, may have
    been: then the sessions belong to a node that lives and does not know of them. So it looks at the next
    claim whether it has them.
    """

    def __init__(self, writer: PostgresWriter) -> None:
        self._writer = writer
        self._unsure: list[Lease] = []

    async def claim(self, node: str, limit: int) -> list[Lease]:
        """Take what nobody living has. :raises LeaseLost: the node's own lease has run out

        First what can be had at once. Then, if somebody is just writing to some, those when they are
        done: a runner that does not know yet that it is dead may be writing all the time. But nobody
        waits for a node that was stopped in the middle of a transaction.
        """
        claimed = await self._found(node)
        try:
            more, missed = await self._take(node, limit - len(claimed), " SKIP LOCKED")
            claimed += more
            if missed:
                claimed += (await self._take(node, limit - len(claimed), ""))[0]
        except _InTheWay:
            pass
        except RoostError:
            if not claimed:  # else they would be lost: nobody else may take them
                raise
        return claimed

    async def _take(self, node: str, limit: int, locked: str) -> tuple[list[Lease], bool]:
        if limit <= 0:
            return [], False
        tried: list[Lease] = []
        try:
            return await self._writer.apart(PostgresClaim(node, limit, locked, tried).on)
        except RoostError:
            self._unsure += tried
            raise

    async def _found(self, node: str) -> list[Lease]:
        """What a claim has taken whose outcome was not known."""
        if not self._unsure:
            return []
        unsure = self._unsure

        async def look(connection: Connection) -> list[Lease]:
            ids = [lease.session_id for lease in unsure]
            ours = await PostgresTransaction(connection).take(_OURS, ids, node)
            return [Lease(session.id, node, session.state.generation) for session in ours]

        ours = await self._writer.apart(look)
        self._unsure = [lease for lease in self._unsure if lease not in unsure]
        return [lease for lease in ours if lease in unsure]


class _InTheWay(Exception):
    """Somebody holds a session that is to be claimed."""


class PostgresClaim(msgspec.Struct, frozen=True):
    """A node takes sessions; whether it has missed some, because others hold them.

    `tried` is told which they are, in case the end of the transaction is not heard of.
    """

    node: str
    limit: int
    locked: str
    tried: list[Lease]

    async def on(self, connection: Connection) -> tuple[list[Lease], bool]:
        self.tried.clear()
        lives, dead, ids = await connection.fetchrow(_LOOK, self.node, self.limit)
        if not lives:
            raise LeaseLost(f"the lease of {self.node} has run out")
        if not ids:
            return [], False
        tx = PostgresTransaction(connection)
        if not self.locked:
            await connection.execute(_PATIENCE)
        try:
            sessions = await tx.take(_TAKE + self.locked, ids, dead)
        except asyncpg.LockNotAvailableError:
            raise _InTheWay() from None
        for session in sessions:
            tx.put(session, ledger.take(session.state, self.node))
        await tx.flush()
        await connection.execute(_SETTLE, self.node, [session.id for session in sessions])
        order = {id: place for place, id in enumerate(ids)}
        sessions.sort(key=lambda session: order[session.id])
        self.tried.extend(Lease(s.id, self.node, s.state.generation) for s in sessions)
        return list(self.tried), len(sessions) < len(ids)


class NodeLeases:
    """The nodes of this process, and a watch on all others."""

    def __init__(self, writer: PostgresWriter, connection: KeptConnection) -> None:
        self._writer = writer
        self._kept = connection
        self._ours: set[str] = set()
        self._missing: dict[tuple[str, int], float] = {}

    async def renew(self, node: str, ttl: float) -> None:
        """Say that a node lives; with a `ttl` of 0, that it is gone."""
        if ttl > 0:
            await self._writer.apart(lambda db: db.execute(_RENEW, node, int(ttl * 1_000_000)))
            self._ours.add(node)
        else:
            self._ours.discard(node)
            await self._writer.apart(lambda db: db.execute(_LEAVE, node))

    async def watch(self) -> None:
        """Hold the locks of our nodes, and look for others that have lost theirs; for ever."""
        await self._kept.keep_up(self._watch_on)

    async def _watch_on(self, connection: Connection) -> None:
        held: set[str] = set()
        while True:
            for node in self._ours - held:
                if await connection.fetchval(_HOLD, _LOCKS, node):
                    held.add(node)
                    await connection.execute(_HELD, node)
            for node in held - self._ours:
                held.discard(node)
                await connection.execute(_LET_GO, _LOCKS, node)
            await self._end_the_dead(connection)
            await anyio.sleep(_TICK)

    async def _end_the_dead(self, connection: Connection) -> None:
        now = time.monotonic()
        missing = [tuple(row) for row in await connection.fetch(_MISSING, _LOCKS)]
        self._missing = {key: self._missing.get(key, now) for key in missing}
        for (node, locked_at), since in self._missing.items():
            if now - since >= _SURE and node not in self._ours:
                await self._writer.apart(EndNode(node, locked_at).on)


class EndNode(msgspec.Struct, frozen=True):
    """The lease of a node that has lost its lock is over."""

    node: str
    locked_at: int

    async def on(self, connection: Connection) -> None:
        if await connection.fetchval(_END, self.node, self.locked_at):
            _log.warning(
                "%s is gone: its sessions can be claimed", self.node, extra={"action": "end"}
            )
            await connection.execute(NOTIFY, notifications([WORK]))
