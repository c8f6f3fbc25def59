"""Workspaces as rows: what both databases are asked, in one wording, and who may change one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from roost.domain.events import Micros
from roost.domain.sync import SyncState
from roost.errors import FilesElsewhere, LeaseLost
from roost.ports.workspaces import Heard, Workspace
from roost.stores.sql.rows import Row, turned_of

# Whole rows.
SELECT: Final = (
    "SELECT id, copy, generation, state, sequence, attempts, error, updated_at, holder "
    "FROM workspaces"
)

# Rows that are not known to be stored, the oldest first.
UNSYNCED: Final = f"{SELECT} WHERE state <> 'idle' ORDER BY updated_at"

# Rows that say there is a snapshot, the newest ids first.
STORED: Final = f"{SELECT} WHERE sequence > 0 AND (? = '' OR id < ?) ORDER BY id DESC LIMIT ?"

# Those of them that nobody has weighed.
UNWEIGHED: Final = f"{SELECT} WHERE sequence > 0 AND bytes = 0 ORDER BY id LIMIT 1000"

# Rows whose session, or named workspace, is gone. One that is not idle may be in use: its session may still
# be being made. One that was made for a fork was never in use, and a fork that takes longer was given up.
ORPHANS: Final = (
    f"{SELECT} WHERE (state = 'idle' OR (generation = 0 AND updated_at < ?)) AND NOT EXISTS "
    "(SELECT 1 FROM sessions WHERE sessions.id = workspaces.id) AND NOT EXISTS "
    "(SELECT 1 FROM records WHERE kind = 'workspace' AND records.id = workspaces.id) LIMIT 1000"
)

# Rows of named workspaces, with their tenants in front.
NAMED: Final = f"""
SELECT r.tenant, w.* FROM ({SELECT}) w JOIN records r ON r.id = w.id
WHERE r.kind = 'workspace' ORDER BY w.id
"""

# Whose session, or named workspace, has this id; written once for a statement's `{id}`.
_TENANT: Final = """COALESCE((SELECT s.tenant FROM sessions s WHERE s.id = {id}),
    (SELECT r.tenant FROM records r WHERE r.kind = 'workspace' AND r.id = {id}), {otherwise})"""
_NOBODY: Final = "''"
TENANT_OF: Final = f"SELECT {_TENANT.format(id='w.id', otherwise=_NOBODY)} FROM (SELECT ? AS id) w"
WEIGH: Final = f"""
UPDATE workspaces SET bytes = ?, tenant = {_TENANT.format(id="workspaces.id", otherwise="tenant")}
WHERE id = ?
"""
WEIGHT: Final = "SELECT COALESCE(SUM(bytes), 0) FROM workspaces WHERE bytes > 0 AND tenant = ?"

LEAVE: Final = "UPDATE workspaces SET holder = '' WHERE id = ? AND holder = ?"

# A session waits for its turn. It keeps its place if it waits already.
WAIT: Final = """
INSERT INTO workspace_turns (session, workspace, since, is_in) VALUES (?, ?, ?, 0)
ON CONFLICT (session) DO NOTHING
"""

# Who is in, or else who is first. A session without work has nothing to do here, whatever its row says.
FIRST: Final = """
SELECT t.session FROM workspace_turns t JOIN sessions s ON s.id = t.session
WHERE t.workspace = ? AND s.active_since > 0
ORDER BY t.is_in DESC, t.since, t.session LIMIT 1
"""
LET_IN: Final = "UPDATE workspace_turns SET is_in = 1 WHERE session = ?"
EXIT: Final = "DELETE FROM workspace_turns WHERE session = ?"

# Sessions of a shared workspace, the one that was heard of last first. `{h}` is what says when, which
# `{join}` brings.
LATEST: Final = """
SELECT s.id, {h}.updated_at, s.rest FROM sessions s {join}
WHERE s.workspace = ? ORDER BY {h}.updated_at DESC, s.num DESC LIMIT 2
"""

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
        holder=before.holder if before else "",
    )


def taken(before: Workspace, node: str, holder_lives: bool, now: Micros) -> Workspace:
    """The row as the node's. :raises FilesElsewhere: another one has it"""
    if before.holder == node:
        return before
    if before.holder and holder_lives:
        raise FilesElsewhere("another node has the workspace's files")
    return replace(before, holder=node, generation=before.generation + 1, updated_at=now)


def heard_of(rows: Sequence[Row]) -> list[Heard]:
    """From rows of `LATEST`."""
    return [Heard(session_id, at, turned_of(rest)) for session_id, at, rest in rows]


def unheld(workspace_id: str) -> Workspace:
    """The row of a workspace that nobody has worked in yet."""
    return Workspace(id=workspace_id, copy="", generation=0, state=SyncState.IDLE)


def noted(before: Workspace | None, row: Workspace, now: Micros) -> Workspace:
    """The row as it is to be. :raises LeaseLost: it has another copy or generation, or is gone"""
    if before is None or (before.copy, before.generation) != (row.copy, row.generation):
        raise LeaseLost(f"{row.id} is held by somebody else")
    return replace(row, updated_at=now)


def one_of(rows: Sequence[Row]) -> Workspace | None:
    """The first row, if there is one."""
    return row_of(rows[0]) if rows else None


def with_tenant(row: Row) -> tuple[str, Workspace]:
    """From a row of `NAMED`."""
    tenant, *rest = row
    return str(tenant), row_of(tuple(rest))


def row_of(row: Row) -> Workspace:
    """From a row of `SELECT`."""
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
