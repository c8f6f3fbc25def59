"""Rows of workspaces, on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import apsw
from msgspec.structs import astuple, replace

from roost.domain.sync import SyncState
from roost.errors import LeaseLost
from roost.ports.workspaces import Workspace
from roost.stores.sqlite.driver import Row
from roost.stores.sqlite.readers import Readers
from roost.stores.sqlite.transaction import Transaction
from roost.stores.sqlite.writer import Writer

# Whole rows.
_SELECT: Final = (
    "SELECT id, copy, generation, state, sequence, attempts, error, updated_at FROM workspaces"
)

# Rows whose session is gone. One that is not idle may be in use: its session may still be being made.
_ORPHANS: Final = (
    f"{_SELECT} WHERE state = 'idle' AND NOT EXISTS "
    "(SELECT 1 FROM sessions WHERE sessions.id = workspaces.id) LIMIT 1000"
)

# A row, new or in the place of the one before.
_KEEP: Final = "INSERT OR REPLACE INTO workspaces VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


class SqliteWorkspaces:
    """`ports.workspaces.Workspaces`."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def find(self, workspace_id: str) -> Workspace | None:
        return await self._readers.ask(partial(_find, workspace_id))

    async def hold(self, workspace_id: str, copy: str, generation: int) -> Workspace:
        return await self._writer.do(partial(_hold, workspace_id, copy, generation))

    async def note(self, row: Workspace) -> Workspace:
        return await self._writer.do(partial(_note, row))

    async def unsynced(self) -> Sequence[Workspace]:
        return await self._readers.ask(_unsynced)

    async def orphans(self) -> Sequence[Workspace]:
        return await self._readers.ask(_orphans)

    async def forget(self, workspace_id: str) -> None:
        await self._writer.do(partial(_forget, workspace_id))


def _hold(workspace_id: str, copy: str, generation: int, tx: Transaction) -> Workspace:
    before = _one(tx.ask(f"{_SELECT} WHERE id = ?", (workspace_id,)))
    if before is not None and before.generation > generation:
        raise LeaseLost(f"generation {before.generation} holds {workspace_id}")
    held = Workspace(
        id=workspace_id,
        copy=copy,
        generation=generation,
        state=SyncState.PENDING,
        sequence=before.sequence if before else 0,
        updated_at=tx.now,
    )
    tx.ask(_KEEP, astuple(held))
    return held


def _note(row: Workspace, tx: Transaction) -> Workspace:
    before = _one(tx.ask(f"{_SELECT} WHERE id = ?", (row.id,)))
    if before is None or (before.copy, before.generation) != (row.copy, row.generation):
        raise LeaseLost(f"{row.id} is held by somebody else")
    noted = replace(row, updated_at=tx.now)
    tx.ask(_KEEP, astuple(noted))
    return noted


def _forget(workspace_id: str, tx: Transaction) -> None:
    tx.ask("DELETE FROM workspaces WHERE id = ?", (workspace_id,))


def _find(workspace_id: str, db: apsw.Connection) -> Workspace | None:
    return _one(db.execute(f"{_SELECT} WHERE id = ?", (workspace_id,)).fetchall())


def _unsynced(db: apsw.Connection) -> Sequence[Workspace]:
    rows = db.execute(f"{_SELECT} WHERE state <> 'idle' ORDER BY updated_at")
    return [_row(row) for row in rows]


def _orphans(db: apsw.Connection) -> Sequence[Workspace]:
    return [_row(row) for row in db.execute(_ORPHANS)]


def _one(rows: Sequence[Row]) -> Workspace | None:
    return _row(rows[0]) if rows else None


def _row(row: Row) -> Workspace:
    id, copy, generation, state, sequence, attempts, error, updated_at = row
    return Workspace(
        id=str(id),
        copy=str(copy),
        generation=int(generation),
        state=SyncState(state),
        sequence=int(sequence),
        attempts=int(attempts),
        error=str(error),
        updated_at=int(updated_at),
    )
