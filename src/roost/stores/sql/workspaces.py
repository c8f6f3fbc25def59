"""Rows of workspaces in a SQL database: `SqlWorkspaces`, then what the writer does, then how one is a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import astuple, replace

from roost.domain.events import Micros
from roost.domain.sync import SyncState
from roost.errors import FilesElsewhere, LeaseLost
from roost.ports.workspaces import SessionActivity, Workspace
from roost.stores.sql.batch import LockKind, Needs, SqlTransaction
from roost.stores.sql.database import Rows, SqlReader, SqlWriter, rows_of
from roost.stores.sql.rows import SESSIONS, Row, turned_of

# Whole rows.
_SELECT: Final = (
    "SELECT id, copy, generation, state, sequence, attempts, error, updated_at, holder "
    "FROM workspaces"
)

_BY_ID: Final = f"{_SELECT} WHERE id = ?"

# Rows that are not known to be stored, the oldest first.
_UNSYNCED: Final = f"{_SELECT} WHERE state <> 'idle' ORDER BY updated_at"

# Rows that say there is a snapshot, the newest ids first.
_STORED: Final = f"""
{_SELECT} WHERE sequence > 0 AND (CAST(? AS TEXT) = '' OR id < ?) ORDER BY id DESC LIMIT ?
"""

# Those of them that nobody has weighed.
_UNWEIGHED: Final = f"{_SELECT} WHERE sequence > 0 AND bytes = 0 ORDER BY id LIMIT 1000"

# Rows whose session, or named workspace, is gone. One that is not idle may be in use: its session may still
# be being made. One that was made for a fork was never in use, and a fork that takes longer was given up.
_ORPHANS: Final = (
    f"{_SELECT} WHERE (state = 'idle' OR (generation = 0 AND updated_at < ?)) AND NOT EXISTS "
    "(SELECT 1 FROM sessions WHERE sessions.id = workspaces.id) AND NOT EXISTS "
    "(SELECT 1 FROM records WHERE kind = 'workspace' AND records.id = workspaces.id) LIMIT 1000"
)

# Rows of named workspaces, with their tenants in front.
_NAMED: Final = f"""
SELECT r.tenant, w.* FROM ({_SELECT}) w JOIN records r ON r.id = w.id
WHERE r.kind = 'workspace' ORDER BY w.id
"""

# Whose session, or named workspace, has this id; written once for a statement's `{id}`.
_TENANT: Final = """COALESCE((SELECT s.tenant FROM sessions s WHERE s.id = {id}),
    (SELECT r.tenant FROM records r WHERE r.kind = 'workspace' AND r.id = {id}), {otherwise})"""
_TENANT_OF: Final = f"""
SELECT {_TENANT.format(id="w.id", otherwise="''")} FROM (SELECT CAST(? AS TEXT) AS id) w
"""
_WEIGH: Final = f"""
UPDATE workspaces SET bytes = ?, tenant = {_TENANT.format(id="workspaces.id", otherwise="tenant")}
WHERE id = ?
"""
_WEIGHT: Final = "SELECT COALESCE(SUM(bytes), 0) FROM workspaces WHERE bytes > 0 AND tenant = ?"

_LEAVE: Final = "UPDATE workspaces SET holder = '' WHERE id = ? AND holder = ?"

# A session waits for its turn. It keeps its place if it waits already.
_WAIT: Final = """
INSERT INTO workspace_turns (session, workspace, since, is_in) VALUES (?, ?, ?, 0)
ON CONFLICT (session) DO NOTHING
"""

# Who is in, or else who is first. A session without work has nothing to do here, whatever its row says.
_FIRST: Final = """
SELECT t.session FROM workspace_turns t JOIN sessions s ON s.id = t.session
WHERE t.workspace = ? AND s.active_since > 0
ORDER BY t.is_in DESC, t.since, t.session LIMIT 1
"""
_LET_IN: Final = "UPDATE workspace_turns SET is_in = 1 WHERE session = ?"
_EXIT: Final = "DELETE FROM workspace_turns WHERE session = ?"

# Sessions of a shared workspace, the one that was heard of last first.
_LATEST: Final = f"""
SELECT s.id, h.updated_at, s.rest FROM {SESSIONS}
WHERE s.workspace = ? ORDER BY h.updated_at DESC, s.num DESC LIMIT 2
"""

_FORGET: Final = "DELETE FROM workspaces WHERE id = ?"


# Of these ids, those that somebody knows.
_KNOWN: Final = """
SELECT id FROM workspaces WHERE id IN ({ids}) UNION SELECT id FROM sessions WHERE id IN ({ids})
"""
_AT_ONCE: Final = 500

# A row, new or in the place of the one before.
_KEEP: Final = """
INSERT INTO workspaces
    (id, copy, generation, state, sequence, attempts, error, updated_at, holder)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE
SET copy = excluded.copy, generation = excluded.generation, state = excluded.state,
    sequence = excluded.sequence, attempts = excluded.attempts, error = excluded.error,
    updated_at = excluded.updated_at, holder = excluded.holder
"""


class SqlWorkspaces(ABC):
    """The `ports.workspaces.Workspaces` on an SQL database."""

    def __init__(self, writer: SqlWriter, reader: SqlReader) -> None:
        self._writer = writer
        self._reader = reader

    async def find(self, workspace_id: str) -> Workspace | None:
        return _one_of(await rows_of(self._reader, _BY_ID, workspace_id))

    async def hold(self, workspace_id: str, copy: str, generation: int) -> Workspace:
        return await self._writer.alone(HoldWorkspace(workspace_id, copy, generation))

    async def note(self, row: Workspace, weight: int | None = None) -> Workspace:
        return await self._writer.alone(NoteWorkspace(row, weight))

    async def weigh(self, workspace_id: str, weight: int) -> None:
        await self._writer.execute(_WEIGH, weight, workspace_id)

    async def unweighed(self) -> Sequence[Workspace]:
        return _rows_of(await rows_of(self._reader, _UNWEIGHED))

    @abstractmethod
    async def elsewhere(self, session_id: str, node: str) -> bool: ...

    async def tenant_of(self, workspace_id: str) -> str:
        [(tenant,)] = await rows_of(self._reader, _TENANT_OF, workspace_id)
        return str(tenant)

    async def weight(self, tenant: str) -> int:
        [(weight,)] = await rows_of(self._reader, _WEIGHT, tenant)
        return int(weight)

    async def unsynced(self) -> Sequence[Workspace]:
        return _rows_of(await rows_of(self._reader, _UNSYNCED))

    async def orphans(self, given_up_after: float = 3600) -> Sequence[Workspace]:
        return await self._reader.read(lambda rows: _orphans(rows, given_up_after))

    async def stored(self, *, before: str | None = None, limit: int) -> Sequence[Workspace]:
        last = before or ""
        return _rows_of(await rows_of(self._reader, _STORED, last, last, limit))

    async def named(self) -> Sequence[tuple[str, Workspace]]:
        return [_with_tenant(row) for row in await rows_of(self._reader, _NAMED)]

    async def strangers(self, workspace_ids: Sequence[str]) -> Sequence[str]:
        return await self._reader.read(lambda rows: _strangers(rows, workspace_ids))

    async def forget(self, workspace_id: str) -> None:
        await self._writer.execute(_FORGET, workspace_id)

    async def take(self, workspace_id: str, node: str) -> Workspace:
        return await self._writer.alone(TakeWorkspace(workspace_id, node))

    async def leave(self, workspace_id: str, node: str) -> None:
        await self._writer.execute(_LEAVE, workspace_id, node)

    async def enter(self, workspace_id: str, session_id: str, since: Micros) -> bool:
        return await self._writer.alone(EnterWorkspace(workspace_id, session_id, since))

    async def latest(self, workspace_id: str) -> Sequence[SessionActivity]:
        return _heard_of(await rows_of(self._reader, _LATEST, workspace_id))

    async def exit(self, session_id: str) -> None:
        await self._writer.execute(_EXIT, session_id)


# What the writer does


class HoldWorkspace(msgspec.Struct, frozen=True):
    """A copy is in use from now on."""

    workspace_id: str
    copy: str
    generation: int
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Workspace:
        before = await _locked(tx, self.workspace_id)
        row = _held(before, self.workspace_id, self.copy, self.generation, tx.now)
        await tx.ask(_KEEP, *astuple(row))
        return row


class NoteWorkspace(msgspec.Struct, frozen=True):
    """What has become of a copy."""

    row: Workspace
    weight: int | None
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Workspace:
        row = _noted(await _locked(tx, self.row.id), self.row, tx.now)
        await tx.ask(_KEEP, *astuple(row))
        if self.weight is not None:
            await tx.ask(_WEIGH, self.weight, row.id)
        return row


class TakeWorkspace(msgspec.Struct, frozen=True):
    """A node has the workspace's files from now on."""

    workspace_id: str
    node: str
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Workspace:
        before = await _locked(tx, self.workspace_id) or _unheld(self.workspace_id)
        row = _taken(before, self.node, await tx.lives(before.holder), tx.now)
        await tx.ask(_KEEP, *astuple(row))
        return row


class EnterWorkspace(msgspec.Struct, frozen=True):
    """A session waits for its turn; whether that has come."""

    workspace_id: str
    session_id: str
    since: Micros
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> bool:
        await tx.lock(LockKind.WORKSPACE, self.workspace_id)
        await tx.ask(_WAIT, self.session_id, self.workspace_id, self.since)
        [(first,)] = await tx.ask(_FIRST, self.workspace_id) or [(None,)]
        if first != self.session_id:
            return False
        await tx.ask(_LET_IN, self.session_id)
        return True


async def _locked(tx: SqlTransaction, workspace_id: str) -> Workspace | None:
    """The row, if there is one. Those who hold one workspace wait for each other in any case."""
    await tx.lock(LockKind.WORKSPACE, workspace_id)
    return _one_of(await tx.ask(_BY_ID, workspace_id))


def _held(
    before: Workspace | None, workspace_id: str, copy: str, generation: int, now: Micros
) -> Workspace:
    """The row of a copy that is in use from now on. :raises LeaseLost: a newer generation holds it"""
    if before is not None and before.generation > generation:
        raise LeaseLost(f"generation {before.generation} holds {workspace_id}")
    return Workspace(
        id=workspace_id,
        copy=copy,
        generation=generation,
        state=SyncState.PENDING,
        sequence=before.sequence if before else 0,
        updated_at=now,
        holder=before.holder if before else "",
    )


def _taken(before: Workspace, node: str, holder_lives: bool, now: Micros) -> Workspace:
    """The row as the node's. :raises FilesElsewhere: another one has it"""
    if before.holder == node:
        return before
    if before.holder and holder_lives:
        raise FilesElsewhere("another node has the workspace's files")
    return replace(before, holder=node, generation=before.generation + 1, updated_at=now)


def _unheld(workspace_id: str) -> Workspace:
    """The row of a workspace that nobody has worked in yet."""
    return Workspace(id=workspace_id, copy="", generation=0, state=SyncState.IDLE)


def _noted(before: Workspace | None, row: Workspace, now: Micros) -> Workspace:
    """The row as it is to be. :raises LeaseLost: it has another copy or generation, or is gone"""
    if before is None or (before.copy, before.generation) != (row.copy, row.generation):
        raise LeaseLost(f"{row.id} is held by somebody else")
    return replace(row, updated_at=now)


# What readers are asked


async def _orphans(rows: Rows, given_up_after: float) -> list[Workspace]:
    since = await rows.now() - int(given_up_after * 1_000_000)
    return _rows_of(await rows.fetch(_ORPHANS, since))


async def _strangers(rows: Rows, workspace_ids: Sequence[str]) -> list[str]:
    known: set[str] = set()
    for start in range(0, len(workspace_ids), _AT_ONCE):
        some = workspace_ids[start : start + _AT_ONCE]
        ids = ", ".join(f"?{place}" for place in range(1, len(some) + 1))
        known |= {id for (id,) in await rows.fetch(_KNOWN.format(ids=ids), *some)}
    return [id for id in workspace_ids if id not in known]


def _rows_of(rows: Sequence[Row]) -> list[Workspace]:
    return [_row_of(row) for row in rows]


def _heard_of(rows: Sequence[Row]) -> list[SessionActivity]:
    """From rows of `_LATEST`."""
    return [SessionActivity(session_id, at, turned_of(rest)) for session_id, at, rest in rows]


def _one_of(rows: Sequence[Row]) -> Workspace | None:
    """The first row, if there is one."""
    return _row_of(rows[0]) if rows else None


def _with_tenant(row: Row) -> tuple[str, Workspace]:
    """From a row of `_NAMED`."""
    tenant, *rest = row
    return str(tenant), _row_of(tuple(rest))


def _row_of(row: Row) -> Workspace:
    """From a row of `_SELECT`."""
    id, copy, generation, state, sequence, attempts, error, updated_at, holder = row
    return Workspace(
        id=str(id),
        copy=str(copy),
        generation=int(generation),
        state=SyncState(state),
        sequence=int(sequence),
        attempts=int(attempts),
        error=str(error),
        updated_at=int(updated_at),
        holder=str(holder),
    )
