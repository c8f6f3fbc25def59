"""What is known of a workspace's files: which copy of them is the living one, and is it stored.

Promises, each checked by `roost.testing.workspaces_contract`: every operation is one transaction, durable
when it returns; what an older generation asks for is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from roost.domain.events import Micros
from roost.domain.sync import SyncState


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace's row. It belongs to the session, or the named workspace, with the same id.

    `copy` names the living copy of its files: a machine that has a copy of that name has the newest
    files, any other restores the newest snapshot. `state` is `idle` if that snapshot is known to have
    everything; it is not while the copy is in use. `sequence` is that snapshot's, 0 if there is none.
    `holder` is the node that has it, if it is one that sessions share.
    """

    id: str
    copy: str
    generation: int
    state: SyncState
    sequence: int = 0
    attempts: int = 0
    error: str = ""
    updated_at: Micros = 0
    holder: str = ""


class SessionActivity(msgspec.Struct, frozen=True):
    """A session that shares a workspace, when anything last happened in its log, and where its last turn
    ended there; 0 if one is under way.
    """

    session_id: str
    at: Micros
    turned: int


class Workspaces(Protocol):
    """All rows, of all tenants."""

    async def find(self, workspace_id: str) -> Workspace | None:
        """A workspace's row; None if it never had one. Called before each wake."""
        ...

    async def hold(self, workspace_id: str, copy: str, generation: int) -> Workspace:
        """From now on this is the living copy, in use under this generation, and `pending`.

        Makes the row if there is none.

        :raises LeaseLost: a newer generation holds it
        """
        ...

    async def note(self, row: Workspace, weight: int | None = None) -> Workspace:
        """Write down how storing it goes; `copy` and `generation` must be as they are. `weight` as for
        `weigh`, in the same transaction; None: as it was.

        :raises LeaseLost: the row has another copy, or another generation, or is gone
        """
        ...

    async def weigh(self, workspace_id: str, weight: int) -> None:
        """Its snapshots take so many bytes of the blob store; nothing happens if there is no row.

        The weight of a deleted session's workspace is its tenant's until the row is forgotten.
        """
        ...

    async def unweighed(self) -> Sequence[Workspace]:
        """Rows that say there is a snapshot, and not how many bytes those take: from before that was noted.
        A thousand at most. Called now and then by each node.
        """
        ...

    async def elsewhere(self, session_id: str, node: str) -> bool:
        """Whether another node that lives has this session, or is where its files were last. Called when
        somebody asks for files that are not stored and not on this node.
        """
        ...

    async def tenant_of(self, workspace_id: str) -> str:
        """Whose session, or named workspace, it is; '' if there is none. Called before each snapshot."""
        ...

    async def weight(self, tenant: str) -> int:
        """How many bytes all workspaces of a tenant take. Called before each snapshot."""
        ...

    async def unsynced(self) -> Sequence[Workspace]:
        """Every row that is not `idle`, the oldest first. Called when a server starts."""
        ...

    async def orphans(self, given_up_after: float = 3600) -> Sequence[Workspace]:
        """Every row without a session, or a named workspace, that is `idle`, or of generation 0 for so many seconds.

        Called now and then: the session was deleted, or the fork that it was made for never was.
        """
        ...

    async def stored(self, *, before: str | None = None, limit: int) -> Sequence[Workspace]:
        """Rows that say there is a snapshot, those with the highest ids first, below `before`.

        Called when a server starts whose blob store is not known to be its own.
        """
        ...

    async def named(self) -> Sequence[tuple[str, Workspace]]:
        """Every row of a named workspace, with its tenant. Called now and then by each node."""
        ...

    async def strangers(self, workspace_ids: Sequence[str]) -> Sequence[str]:
        """Those of these ids that have neither a row nor a session. Called now and then by each node,
        with the ids of its own copies: what it finds, another node has removed.
        """
        ...

    async def take(self, workspace_id: str, node: str) -> Workspace:
        """From now on the node has this workspace, for all sessions that share it, in a new generation.

        Makes the row if there is none. If the node has it already, nothing changes.

        :raises FilesElsewhere: another node has it, and lives
        """
        ...

    async def leave(self, workspace_id: str, node: str) -> None:
        """The node has it no more; nothing happens if it does not."""
        ...

    async def enter(self, workspace_id: str, session_id: str, since: Micros) -> bool:
        """Whether the session may begin a turn in the workspace, whose turns are one at a time.

        If it may not, it is remembered, and is let in when it is the first, by `since`, of those that
        wait and still have work, and none that has work is in. Called again and again until it may.
        """
        ...

    async def exit(self, session_id: str) -> None:
        """The session is not in any more, and waits no more. Called before it comes to rest."""
        ...

    async def latest(self, workspace_id: str) -> Sequence[SessionActivity]:
        """The two sessions of a shared workspace that were heard of last, the last one first.

        Called when it may not be stored as the last turn in it has left it.
        """
        ...

    async def forget(self, workspace_id: str) -> None:
        """Remove a row; nothing happens if there is none."""
        ...
