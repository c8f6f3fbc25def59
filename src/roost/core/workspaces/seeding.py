"""Workspaces that begin with files: those of a snapshot, of two, or of an archive.

Each is made for a session that does not exist yet. The row comes first, of generation 0: what a crash leaves
before the session is there is found by it, and removed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from functools import partial

from anyio import to_thread
from msgspec.structs import replace

from roost.core.snapshots.restore import restored
from roost.core.snapshots.snapshots import Origin, Snapshots
from roost.core.snapshots.unite import in_one
from roost.core.workspaces.quota import SnapshotQuota
from roost.domain.snapshot import BEGINNING, Snapshot
from roost.domain.sync import SyncState
from roost.ports.tree import Tree
from roost.ports.workspaces import Workspaces


class Seeding:
    """Gives new workspaces the files that they begin with."""

    def __init__(self, snapshots: Snapshots, rows: Workspaces, room: SnapshotQuota) -> None:
        self._room = room
        self._snapshots = snapshots
        self._rows = rows

    @asynccontextmanager
    async def forked(
        self,
        source: str,
        snapshot: Snapshot,
        target: str,
        shared: Origin | None = None,
        own: Collection[str] = (),
    ) -> AsyncGenerator[None, None]:
        """Another workspace, with the files of a snapshot, for a session that the body makes.

        `shared`: and with those of a workspace that others use, in the same tree; there, the `own`
        directories are those of the first.

        If it is not made, what is there of the workspace is removed as soon as nobody can be making it.

        :raises NotFound: the snapshot is gone
        """
        row = await self._rows.hold(target, "", 0)
        if shared is None:
            await self._snapshots.fork(source, snapshot, target)
        else:
            await self._snapshots.unite((source, snapshot), shared, target, _bytes(own))
        weight = await self._snapshots.weight(target)
        yield
        await self._rows.note(replace(row, state=SyncState.IDLE, sequence=1), weight)

    @asynccontextmanager
    async def planted(self, tree: Tree, target: str, tenant: str) -> AsyncGenerator[None, None]:
        """As `forked`, with files that came from elsewhere and are in this tree now.

        :raises WorkspaceTooLarge: :raises TenantStorageFull: nothing was stored
        """
        await self._room.check(tenant)
        row = await self._rows.hold(target, "", 0)
        await self._snapshots.take(target, tree, 0, lambda: BEGINNING)
        weight = await self._snapshots.weight(target)
        yield
        await self._rows.note(replace(row, state=SyncState.IDLE, sequence=1), weight)

    async def put_into(
        self,
        tree: Tree,
        snapshot: Snapshot,
        shared: Origin | None = None,
        own: Collection[str] = (),
    ) -> None:
        """Restore a snapshot to a tree that is no workspace; `shared` and `own` as for `forked`."""
        fetch, entries = self._snapshots.fetch, None
        if shared is not None:
            _, entries = await in_one(fetch, snapshot, shared[1], _bytes(own))
        async with restored(fetch, snapshot, tree, entries=entries) as whole:
            await to_thread.run_sync(partial(whole.staging.replace, keep=False))


def _bytes(names: Collection[str]) -> frozenset[bytes]:
    return frozenset(name.encode() for name in names)
