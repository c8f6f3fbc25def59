"""Whether a tenant has room left in the blob store for another snapshot.

A tenant whose workspaces together take as much as they may stores nothing new. Before that, the workspace that
asks lets go of its own oldest snapshots, as it does when it takes too much by itself; the newest, and what
forks hold, are never let go. What takes no room is not refused: the files may be as they were.

It is looked at before a snapshot is taken, because nobody knows how large that will be. So the bound is
exceeded by what is stored at that moment, and by no more.
"""

from __future__ import annotations

from typing import Final

from roost.core.snapshots.snapshots import Snapshots
from roost.errors import TenantStorageFull
from roost.ports.workspaces import Workspaces

_NOBODY: Final = ""  # a session that was deleted: what is left of it is going to be removed


class SnapshotQuota:
    """The room of all tenants. `most`: how many bytes of snapshots a tenant may have; 0: any number."""

    def __init__(self, snapshots: Snapshots, rows: Workspaces, most: int) -> None:
        self._snapshots = snapshots
        self._rows = rows
        self._most = most

    async def refusal(self, workspace_id: str) -> TenantStorageFull | None:
        """Why nothing new may be stored of it now, after it has made what room it can; None if it may."""
        tenant = await self._rows.tenant_of(workspace_id) if self._most else _NOBODY
        if tenant == _NOBODY or (over := await self._over(tenant)) < 0:
            return None
        left = await self._snapshots.weight(workspace_id) - over - 1
        await self._snapshots.tidy(workspace_id, most=max(left, 0))
        await self._rows.weigh(workspace_id, await self._snapshots.weight(workspace_id))
        return self._full() if await self._over(tenant) >= 0 else None

    async def check(self, tenant: str) -> None:
        """Refuse another workspace with files for a tenant that has stored as much as it may.

        :raises TenantStorageFull: a new workspace with files would be too much
        """
        if self._most and await self._over(tenant) >= 0:
            raise self._full()

    async def _over(self, tenant: str) -> int:
        return await self._rows.weight(tenant) - self._most

    def _full(self) -> TenantStorageFull:
        return TenantStorageFull(
            f"the tenant's snapshots take more than the {self._most} bytes that they may"
        )
