"""Workspaces that several sessions use at once: one tree of files, kept for all of them together.

A shared workspace lives on one node at a time. The first session that comes to it on a node takes it: that
is written to its row, with a new generation, and refused while another living node has it. The last one
that leaves stores everything and lets go. In between, whoever comes joins what is there. A node that died
lets go by being dead, and one that hung until another took the workspace stores nothing any more: its
generation is old.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from roost.core.snapshots.snapshots import Snapshots
from roost.core.workspaces.copies import WorkspacePast
from roost.core.workspaces.local import LocalWorkspaces
from roost.core.workspaces.sync import Say, to_nobody
from roost.domain import workspace
from roost.domain.events import Draft
from roost.domain.workspace import WorkspacePolicy
from roost.errors import NotFound, RoostError, WorkspaceDeleted
from roost.ids import mint
from roost.ports.catalog import Catalog
from roost.ports.log import Log
from roost.ports.notifier import WORK, Notifier
from roost.ports.tree import Skipped, Tree
from roost.ports.workspaces import Workspaces

_DAY: Final = 86_400_000_000
_LOOK_AGAIN: Final = 3600.0  # seconds between two looks for snapshots that have grown too old
_log = logging.getLogger(__name__)


class _Stay:
    """One stay of a workspace on this node, from the first session that came to the last that left."""

    def __init__(self) -> None:
        self.users = 0
        self.ready = anyio.Event()
        self.over = anyio.Event()
        self.gone = anyio.Event()
        self.failure: Exception | None = None
        self.says: list[Say] = []

    async def say(self, draft: Draft) -> None:
        """In the logs of all who are there."""
        for say in list(self.says):
            with suppress(RoostError):  # that one has gone
                await say(Draft(draft.type, draft.body, mint("sevt")))


class SharedWorkspaces:
    """The shared workspaces that are on this node. `tree_of` says where one's files are."""

    def __init__(
        self,
        files: LocalWorkspaces,
        snapshots: Snapshots,
        rows: Workspaces,
        catalog: Catalog,
        notifier: Notifier,
        tree_of: Callable[[str], Tree],
        *,
        node: str,
    ) -> None:
        self._files = files
        self._snapshots = snapshots
        self._rows = rows
        self._catalog = catalog
        self._notifier = notifier
        self._tree_of = tree_of
        self._node = node
        self._stays: dict[str, _Stay] = {}
        self._tasks: TaskGroup | None = None

    async def run(self) -> None:
        """Keep what sessions come to, until cancelled: no session's own task could outlive it."""
        async with anyio.create_task_group() as self._tasks:
            while True:
                await self.release_all()
                await anyio.sleep(_LOOK_AGAIN)

    async def release_all(self) -> None:
        """Release what has grown too old in workspaces that nobody leaves, because nobody comes or stays.

        Each node does, for all of them: the head of a workspace is changed by one at a time, and what one
        has released is no more work for the next.
        """
        try:
            for tenant, row in await self._rows.named():
                await self._release(tenant, row.id, row.generation)
        except RoostError as error:
            _log.warning("snapshots not released: %s", error.message, extra={"action": "release"})

    async def settings(self, tenant: str, workspace_id: str) -> WorkspacePolicy:
        """How a workspace is set up now. :raises WorkspaceDeleted:"""
        try:
            record = await self._catalog.get("workspace", tenant, workspace_id)
        except NotFound:
            raise WorkspaceDeleted() from None
        return workspace.settings_of(record.body)

    @asynccontextmanager
    async def join(
        self, tenant: str, workspace_id: str, say: Say = to_nobody
    ) -> AsyncGenerator[None, None]:
        """The workspace's newest files are on this node while the body runs, whoever else uses them.

        :raises FilesElsewhere: another node has them :raises BlobsFailed: they cannot be restored now
        :raises WorkspaceDeleted:
        """
        await self.settings(tenant, workspace_id)
        stay = await self._stay(tenant, workspace_id)
        stay.users += 1
        stay.says.append(say)
        try:
            await stay.ready.wait()
            if stay.failure is not None:
                raise stay.failure
            yield
        finally:
            stay.says.remove(say)
            stay.users -= 1
            if not stay.users:
                stay.over.set()
                with anyio.CancelScope(shield=True):
                    await stay.gone.wait()

    async def begun(self, workspace_id: str) -> None:
        """Somebody is going to change files: returns when they are stored as turns before have left them."""
        await self._files.begun(workspace_id)

    def changed(self, workspace_id: str) -> None:
        """Somebody has changed files, and they are stored soon."""
        self._files.changed(workspace_id, 0)
        self._notifier.notify(workspace_id)

    def ended(self, workspace_id: str, session_id: str, seq: int) -> None:
        """A turn of this session is over, at this place in its log: its files are stored now."""
        self._files.ended(workspace_id, session_id, seq)
        self._notifier.notify(workspace_id)

    async def size(self, workspace_id: str) -> int:
        """What the files on this node take, as their sizes say; one with several names counts once."""
        return await to_thread.run_sync(_size_of, self._tree_of(workspace_id))

    async def _stay(self, tenant: str, workspace_id: str) -> _Stay:
        if self._tasks is None:
            raise RoostError("shared workspaces are not kept here yet")
        while (stay := self._stays.get(workspace_id)) is not None:
            if not stay.over.is_set():
                return stay
            await stay.gone.wait()
        stay = self._stays[workspace_id] = _Stay()
        self._tasks.start_soon(self._keep, tenant, workspace_id, stay)
        return stay

    async def _keep(self, tenant: str, workspace_id: str, stay: _Stay) -> None:
        try:
            row = await self._rows.take(workspace_id, self._node)
            past = await self._files.past(workspace_id)
            files = self._files.open(
                workspace_id, row.generation, past, remembers=False, say=stay.say
            )
            async with files:
                stay.ready.set()
                await stay.over.wait()
            await self._release(tenant, workspace_id, row.generation)
        except Exception as error:  # noqa: BLE001 - whoever comes is told; others are not concerned
            stay.failure = error
        finally:
            with anyio.CancelScope(shield=True):
                await self._let_go(workspace_id, stay)

    async def _let_go(self, workspace_id: str, stay: _Stay) -> None:
        try:
            await self._rows.leave(workspace_id, self._node)
        except RoostError as error:  # then it is let go when this node is known to be gone
            about = {"action": "leave", "workspace": workspace_id}
            _log.warning("cannot release the workspace: %s", error.message, extra=about)
        del self._stays[workspace_id]
        stay.over.set()
        stay.ready.set()
        stay.gone.set()
        self._notifier.notify(WORK)  # other nodes may claim its sessions now

    async def _release(self, tenant: str, workspace_id: str, generation: int) -> None:
        """Release the snapshots that its settings do not keep, for garbage collection."""
        try:
            wanted = await self.settings(tenant, workspace_id)
            if (wanted.keep_snapshots, wanted.keep_days) == (
                WorkspacePolicy().keep_snapshots,
                None,
            ):
                return  # as many as are ever kept
            since = time.time_ns() // 1000 - wanted.keep_days * _DAY if wanted.keep_days else 0
            if await self._snapshots.release(
                workspace_id, generation, keep=wanted.keep_snapshots, since=since
            ):
                await self._snapshots.tidy(workspace_id)
        except RoostError as error:
            about = {"action": "release", "workspace": workspace_id}
            _log.warning("snapshots not released: %s", error.message, extra=about)


async def shared_past(rows: Workspaces, log: Log, workspace_id: str) -> WorkspacePast:
    """What the logs say about a workspace that nobody has: if the last thing that happened in any of its
    sessions was the end of a turn, the files are as that turn has left them.
    """
    last, *before = await rows.latest(workspace_id) or (None,)
    if last is None or not last.turned:
        return WorkspacePast()
    (end,) = await log.read(last.session_id, last.turned - 1, 1)
    if any(end.at < heard.at for heard in before):
        return WorkspacePast()
    return WorkspacePast(turns=((last.session_id, last.turned),))


def _size_of(tree: Tree) -> int:
    total, seen = 0, set[tuple[int, int]]()
    if tree.root() is None:
        return 0
    for found in tree.walk():
        if isinstance(found, Skipped) or found.kind != "file":
            continue
        if found.identity is not None and found.identity in seen:
            continue
        if found.identity is not None:
            seen.add(found.identity)
        total += found.size
    return total
