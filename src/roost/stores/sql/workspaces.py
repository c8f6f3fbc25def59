"""Workspaces as rows: what both databases are asked, in one wording, and who may change one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from roost.domain.events import Micros
from roost.domain.sync import SyncState
from roost.errors import LeaseLost
from roost.ports.workspaces import Workspace
from roost.stores.sql.rows import Row

# Whole rows.
SELECT: Final = (
    "SELECT id, copy, generation, state, sequence, attempts, error, updated_at FROM workspaces"
)

# Rows that are not known to be stored, the oldest first.
UNSYNCED: Final = f"{SELECT} WHERE state <> 'idle' ORDER BY updated_at"

# Rows whose session is gone. One that is not idle may be in use: its session may still be being made. One
# that was made for a fork was never in use, and a fork that takes longer was given up.
ORPHANS: Final = (
    f"{SELECT} WHERE (state = 'idle' OR (generation = 0 AND updated_at < ?)) AND NOT EXISTS "
    "(SELECT 1 FROM sessions WHERE sessions.id = workspaces.id) LIMIT 1000"
)

FORGET: Final = "DELETE FROM workspaces WHERE id = ?"


def held(
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
    )


def noted(before: Workspace | None, row: Workspace, now: Micros) -> Workspace:
    """The row as it is to be. :raises LeaseLost: it has another copy or generation, or is gone"""
    if before is None or (before.copy, before.generation) != (row.copy, row.generation):
        raise LeaseLost(f"{row.id} is held by somebody else")
    return replace(row, updated_at=now)


def one_of(rows: Sequence[Row]) -> Workspace | None:
    """The first row, if there is one."""
    return row_of(rows[0]) if rows else None


def row_of(row: Row) -> Workspace:
    """From a row of `SELECT`."""
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
