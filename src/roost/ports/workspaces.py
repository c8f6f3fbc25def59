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
    """A workspace's row. It belongs to the session with the same id.

    `copy` names the living copy of its files: a machine that has a copy of that name has the newest
    files, any other restores the newest snapshot. `state` is `idle` if that snapshot is known to have
    everything; it is not while the copy is in use. `sequence` is that snapshot's, 0 if there is none.
    """

    id: str
    copy: str
    generation: int
    state: SyncState
    sequence: int = 0
    attempts: int = 0
    error: str = ""
    updated_at: Micros = 0


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

    async def note(self, row: Workspace) -> Workspace:
        """Write down how storing it goes; `copy` and `generation` must be as they are.

        :raises LeaseLost: the row has another copy, or another generation, or is gone
        """
        ...

    async def unsynced(self) -> Sequence[Workspace]:
        """Every row that is not `idle`, the oldest first. Called when a server starts."""
        ...

    async def orphans(self, given_up_after: float = 3600) -> Sequence[Workspace]:
        """Every row without a session that is `idle`, or of generation 0 for so many seconds.

        Called now and then: the session was deleted, or the fork that it was made for never was.
        """
        ...

    async def strangers(self, workspace_ids: Sequence[str]) -> Sequence[str]:
        """Those of these ids that have neither a row nor a session. Called now and then by each node,
        with the ids of its own copies: what it finds, another node has removed.
        """
        ...

    async def forget(self, workspace_id: str) -> None:
        """Remove a row; nothing happens if there is none."""
        ...
