"""Rows of workspaces, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import astuple

from roost.domain.events import Micros
from roost.ports.workspaces import Heard, Workspace
from roost.stores.postgres.database import Database
from roost.stores.postgres.driver import NOW, Connection, numbered
from roost.stores.postgres.nodes import LIVES
from roost.stores.postgres.transaction import Transaction
from roost.stores.postgres.writer import Writer
from roost.stores.sql import workspaces

_BY_ID: Final = f"{workspaces.SELECT} WHERE id = $1"
_ORPHANS: Final = numbered(workspaces.ORPHANS.replace("?", f"{NOW} - ?"))
_STORED: Final = numbered(workspaces.STORED.replace("?", "CAST(? AS TEXT)", 2))
_LATEST: Final = numbered(workspaces.LATEST.format(h="s", join=""))
_FORGET: Final = numbered(workspaces.FORGET)

# Those who hold one workspace wait for each other, also if it has no row yet.
_ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1, 5))"

# Of a list, those that are known by nobody.
_STRANGERS: Final = """
SELECT x.id FROM unnest($1::text[]) AS x (id)
WHERE NOT EXISTS (SELECT 1 FROM workspaces w WHERE w.id = x.id)
AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = x.id)
"""

# A row, new or in the place of the one before.
_KEEP: Final = """
INSERT INTO workspaces
    (id, copy, generation, state, sequence, attempts, error, updated_at, holder)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO UPDATE
SET copy = excluded.copy, generation = excluded.generation, state = excluded.state,
    sequence = excluded.sequence, attempts = excluded.attempts, error = excluded.error,
    updated_at = excluded.updated_at, holder = excluded.holder
"""
_WEIGH: Final = numbered(workspaces.WEIGH)
_WEIGHT: Final = numbered(workspaces.WEIGHT)
_TENANT_OF: Final = numbered(workspaces.TENANT_OF.replace("?", "CAST(? AS TEXT)"))
_LEAVE: Final = numbered(workspaces.LEAVE)
_WAIT: Final = numbered(workspaces.WAIT)
_FIRST: Final = numbered(workspaces.FIRST)
_LET_IN: Final = numbered(workspaces.LET_IN)
_EXIT: Final = numbered(workspaces.EXIT)
_LIVES: Final = f"SELECT EXISTS (SELECT 1 FROM nodes n WHERE n.id = $1 AND {LIVES})"


# Whether a node that is not this one, nor an earlier one in its place, has a session or its files.
_ELSEWHERE: Final = f"""
SELECT EXISTS (
    SELECT 1 FROM sessions s JOIN nodes n ON n.id = s.owner OR (n.home <> '' AND n.home = s.home)
    WHERE s.id = $1 AND n.id <> $2 AND {LIVES}
    AND (n.home = '' OR n.home NOT IN (SELECT home FROM nodes WHERE id = $2))
)
"""


class PostgresWorkspaces:
    """`ports.workspaces.Workspaces`."""

    def __init__(self, writer: Writer, database: Database) -> None:
        self._writer = writer
        self._database = database

    async def find(self, workspace_id: str) -> Workspace | None:
        rows = await self._database.read(lambda db: db.fetch(_BY_ID, workspace_id))
        return workspaces.one_of(rows)

    async def hold(self, workspace_id: str, copy: str, generation: int) -> Workspace:
        return await self._writer.alone(partial(_hold, workspace_id, copy, generation))

    async def note(self, row: Workspace, weight: int | None = None) -> Workspace:
        return await self._writer.alone(partial(_note, row, weight))

    async def weigh(self, workspace_id: str, weight: int) -> None:
        await self._writer.alone(lambda db: db.execute(_WEIGH, weight, workspace_id))

    async def unweighed(self) -> Sequence[Workspace]:
        rows = await self._database.read(lambda db: db.fetch(workspaces.UNWEIGHED))
        return [workspaces.row_of(row) for row in rows]

    async def elsewhere(self, session_id: str, node: str) -> bool:
        [(found,)] = await self._database.read(lambda db: db.fetch(_ELSEWHERE, session_id, node))
        return bool(found)

    async def tenant_of(self, workspace_id: str) -> str:
        [(tenant,)] = await self._database.read(lambda db: db.fetch(_TENANT_OF, workspace_id))
        return str(tenant)

    async def weight(self, tenant: str) -> int:
        [(weight,)] = await self._database.read(lambda db: db.fetch(_WEIGHT, tenant))
        return int(weight)

    async def unsynced(self) -> Sequence[Workspace]:
        rows = await self._database.read(lambda db: db.fetch(workspaces.UNSYNCED))
        return [workspaces.row_of(row) for row in rows]

    async def orphans(self, given_up_after: float = 3600) -> Sequence[Workspace]:
        micros = int(given_up_after * 1_000_000)
        rows = await self._database.read(lambda db: db.fetch(_ORPHANS, micros))
        return [workspaces.row_of(row) for row in rows]

    async def stored(self, *, before: str | None = None, limit: int) -> Sequence[Workspace]:
        last = before or ""
        rows = await self._database.read(lambda db: db.fetch(_STORED, last, last, limit))
        return [workspaces.row_of(row) for row in rows]

    async def named(self) -> Sequence[tuple[str, Workspace]]:
        rows = await self._database.read(lambda db: db.fetch(workspaces.NAMED))
        return [workspaces.with_tenant(row) for row in rows]

    async def strangers(self, workspace_ids: Sequence[str]) -> Sequence[str]:
        rows = await self._database.read(lambda db: db.fetch(_STRANGERS, list(workspace_ids)))
        return [id for (id,) in rows]

    async def forget(self, workspace_id: str) -> None:
        await self._writer.alone(lambda db: db.execute(_FORGET, workspace_id))

    async def take(self, workspace_id: str, node: str) -> Workspace:
        return await self._writer.alone(partial(_take, workspace_id, node))

    async def leave(self, workspace_id: str, node: str) -> None:
        await self._writer.alone(lambda db: db.execute(_LEAVE, workspace_id, node))

    async def enter(self, workspace_id: str, session_id: str, since: Micros) -> bool:
        return await self._writer.alone(partial(_enter, workspace_id, session_id, since))

    async def latest(self, workspace_id: str) -> Sequence[Heard]:
        rows = await self._database.read(lambda db: db.fetch(_LATEST, workspace_id))
        return workspaces.heard_of(rows)

    async def exit(self, session_id: str) -> None:
        await self._writer.alone(lambda db: db.execute(_EXIT, session_id))


async def _hold(workspace_id: str, copy: str, generation: int, connection: Connection) -> Workspace:
    tx = await Transaction.begin(connection)
    before = await _locked(workspace_id, tx)
    row = workspaces.held(before, workspace_id, copy, generation, tx.now)
    await tx.ask(_KEEP, *astuple(row))
    return row


async def _note(row: Workspace, weight: int | None, connection: Connection) -> Workspace:
    tx = await Transaction.begin(connection)
    row = workspaces.noted(await _locked(row.id, tx), row, tx.now)
    await tx.ask(_KEEP, *astuple(row))
    if weight is not None:
        await tx.ask(_WEIGH, weight, row.id)
    return row


async def _take(workspace_id: str, node: str, connection: Connection) -> Workspace:
    tx = await Transaction.begin(connection)
    before = await _locked(workspace_id, tx) or workspaces.unheld(workspace_id)
    [(lives,)] = await tx.ask(_LIVES, before.holder)
    row = workspaces.taken(before, node, lives, tx.now)
    await tx.ask(_KEEP, *astuple(row))
    return row


async def _enter(workspace_id: str, session_id: str, since: Micros, connection: Connection) -> bool:
    tx = await Transaction.begin(connection)
    await tx.ask(_ONE_AT_A_TIME, workspace_id)
    await tx.ask(_WAIT, session_id, workspace_id, since)
    first = await tx.ask(_FIRST, workspace_id)
    if [tuple(row) for row in first] != [(session_id,)]:
        return False
    await tx.ask(_LET_IN, session_id)
    return True


async def _locked(workspace_id: str, tx: Transaction) -> Workspace | None:
    await tx.ask(_ONE_AT_A_TIME, workspace_id)
    return workspaces.one_of(await tx.ask(_BY_ID, workspace_id))
