"""A workspace's files, where somebody is going to work: here already, or restored first.

Which copy of the files is the living one is a row, and the copy knows its own name. A machine whose copy
has that name has the newest files, however old the newest snapshot is. Any other machine, or this one
after its directory was lost, restores the newest snapshot, and its copy is the living one from then on.
The steps are ordered so that dying between any two means restoring again, and nothing else.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import anyio
import msgspec
from anyio import to_thread
from msgspec.structs import replace

from roost.core.concurrency import alongside
from roost.core.snapshots.restore import RestoreProgress, restored
from roost.core.snapshots.snapshots import Snapshots
from roost.core.workspaces.copies import (
    LocalCopy,
    WorkspacePast,
    is_living,
    look,
    sign,
    sign_anew,
    sign_in,
    sign_off,
)
from roost.core.workspaces.quota import SnapshotQuota
from roost.core.workspaces.seeding import Seeding
from roost.core.workspaces.sync import Say, Sync, SyncPace, SyncParts, to_nobody
from roost.domain.snapshot import Snapshot
from roost.domain.sync import BEHIND, SyncState
from roost.errors import (
    FilesElsewhere,
    LeaseLost,
    NotFound,
    RoostError,
    SnapshotsMissing,
    WorkspaceTooLarge,
)
from roost.ids import mint
from roost.ports.notifier import Notifier
from roost.ports.tree import Tree
from roost.ports.workspaces import Workspace, Workspaces

_log = logging.getLogger(__name__)
_LOOK_ELSEWHERE = 0.2  # seconds between two looks at what another node is storing
_LOOK_AGAIN = 300.0  # seconds between two looks for what is left to store or to remove
_TRY_AGAIN = 30.0  # seconds between two tries to store what could not be stored

SyncPhase = Literal[
    "restore_started",
    "restoring",
    "restored",
    "restore_skipped",
    "restore_failed",
    "sync_retrying",
    "sync_failed",
    "sync_recovered",
]
_TROUBLES: Final[dict[SyncState, SyncPhase]] = {
    SyncState.RETRYING: "sync_retrying",
    SyncState.ERROR: "sync_failed",
}


class SyncStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is going on with a workspace's files on this node. A hint, kept in memory only."""

    phase: SyncPhase = "restore_skipped"
    progress: RestoreProgress | None = None
    sync: SyncState = SyncState.IDLE


def topic(workspace_id: str) -> str:
    """The topic notified when a workspace's status has changed."""
    return f"files:{workspace_id}"


def _has_snapshots(row: Workspace) -> bool:
    """Whether anything was ever stored of it. A fork or an import begins with a snapshot, and its row says
    so only after the session is made.
    """
    return row.sequence > 0 or (row.generation == 0 and not row.copy)


@dataclass(frozen=True)
class WorkspaceFacts:
    """What the rest of the server knows of workspaces.

    `past_of` is what the log says about one, if nobody works in it. `elsewhere`: whether another node that
    lives works in it, or has a copy. `here`: of which workspaces this machine has a copy.
    """

    past_of: Callable[[str], Awaitable[WorkspacePast]]
    elsewhere: Callable[[str], Awaitable[bool]]
    here: Callable[[], Iterable[str]]


class LocalWorkspaces:
    """The files of all workspaces, on this node. `tree_of` says where a workspace's are."""

    def __init__(
        self,
        snapshots: Snapshots,
        rows: Workspaces,
        tree_of: Callable[[str], Tree],
        notifier: Notifier,
        quota: SnapshotQuota,
        facts: WorkspaceFacts,
        pace: SyncPace,
    ) -> None:
        self.seeding = Seeding(snapshots, rows, quota)
        self._snapshots = snapshots
        self._rows = rows
        self._tree_of = tree_of
        self._notifier = notifier
        self._quota = quota
        self._facts = facts
        self._pace = pace
        self._living: dict[str, Sync] = {}
        self._status: dict[str, SyncStatus] = {}
        self._locks: dict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._visits: dict[str, anyio.Lock] = defaultdict(anyio.Lock)

    def status(self, workspace_id: str) -> SyncStatus | None:
        """What is going on; None if nothing is, here."""
        return self._status.get(workspace_id)

    def changed(self, workspace_id: str, mark: int) -> None:
        """The turn that ended at `mark` is over, and its files are stored now; 0: soon."""
        if living := self._living.get(workspace_id):
            living.changed(mark)

    def rested(self, workspace_id: str, mark: int) -> None:
        """The same, after which the agent's own record has all that its session has."""
        if living := self._living.get(workspace_id):
            living.behind = False
            living.changed(mark)

    def ended(self, workspace_id: str, session_id: str, seq: int) -> None:
        """A turn of one of the sessions that share the workspace is over, and its files are stored now."""
        if living := self._living.get(workspace_id):
            living.ended(session_id, seq)

    async def past(self, workspace_id: str) -> WorkspacePast:
        """What the log says about its files."""
        return await self._facts.past_of(workspace_id)

    def may_be_behind(self, workspace_id: str) -> bool:
        """Whether what is in place may be older than the session: its last node did not store it all."""
        living = self._living.get(workspace_id)
        return living is not None and living.behind

    async def is_behind(self, workspace_id: str) -> bool:
        """Whether the files that are here are older than the session, because those that it had are lost."""
        if living := self._living.get(workspace_id):
            return living.behind
        _, copy = await to_thread.run_sync(look, self._tree_of(workspace_id))
        return copy is not None and copy.behind

    async def begun(self, workspace_id: str) -> None:
        """A turn begins: returns when the files are stored as the one before has left them, if turns are kept."""
        if living := self._living.get(workspace_id):
            await living.begun()

    async def snapshot_of(
        self, workspace_id: str, first: int, last: int, session_id: str | None = None
    ) -> Snapshot | None:
        """The files as they were when the turn ended that has these marks; None if that is not known.

        If several sessions use the workspace, whose turn it was has to be said.

        If they are being stored at this moment, it waits for that.
        """
        until = anyio.current_time() + self._pace.turn
        while True:
            if living := self._living.get(workspace_id):
                with anyio.move_on_after(self._pace.turn):
                    await living.settled()
            row = await self._rows.find(workspace_id)
            head = await self._snapshots.head(workspace_id)
            marks = (first, last)
            found = head.ended(session_id, *marks) if session_id else head.marked(*marks)
            if row is not None and _has_snapshots(row) and head.newest is None:
                raise SnapshotsMissing
            elsewhere = row is not None and row.state is not SyncState.IDLE and living is None
            if found is not None or not elsewhere or anyio.current_time() > until:
                return found
            await anyio.sleep(_LOOK_ELSEWHERE)

    async def has_any(self, workspace_id: str) -> bool:
        """Whether files of it were ever stored, or are about to be."""
        return await self._rows.find(workspace_id) is not None

    async def pin(self, workspace_id: str, snapshot: Snapshot) -> None:
        """Keep a snapshot that the workspace is going to be rewound to. :raises NotFound: it is gone"""
        await self._snapshots.pin(workspace_id, snapshot)

    @asynccontextmanager
    async def open(
        self,
        workspace_id: str,
        generation: int,
        past: WorkspacePast | None = None,
        *,
        remembers: bool = True,
        keeps_turns: bool = True,
        say: Say = to_nobody,
    ) -> AsyncGenerator[None, None]:
        """The newest files are in place while the body runs, and stored when it ends.

        `remembers`: an agent's own record is among them, and may be behind its session. In a workspace
        that several sessions use there is none. `keeps_turns`: a turn begins when what the one before has
        left is stored. `say` writes to the log that storing was given up, and that it was made good.

        :raises BlobsFailed: they are not here, and cannot be restored now
        :raises LeaseLost: a newer generation has the workspace
        """
        tree, past = self._tree_of(workspace_id), past or WorkspacePast()
        async with self._locks[workspace_id]:
            before = await self._rows.find(workspace_id)
            row, whole = await self._brought_here(before, workspace_id, tree, generation, past)
        sync = self._living[workspace_id] = Sync(
            row,
            tree,
            SyncParts(self._snapshots, self._rows, self._quota, self._pace),
            self._locks[workspace_id],
            partial(self._tell_state, workspace_id),
            say,
            used=before is not None,
            keeps_turns=keeps_turns,
        )
        if before is not None and before.state is not SyncState.IDLE:
            sync.behind = remembers
            sync.changed(past.mark if whole else 0)
            for end in past.turns if whole else ():
                sync.ended(*end)
        try:
            async with alongside(sync.run):
                yield
        finally:
            await sync.flush()
            await self._left(workspace_id, sync, tree)

    async def bring(self, workspace_id: str) -> None:
        """Have the newest files here, for somebody who only looks at them.

        :raises FilesElsewhere: another node has them :raises BlobsFailed: they cannot be restored now
        """
        if not await self._is_here(workspace_id):
            async with self._visits[workspace_id], self._visited(workspace_id):
                pass

    @asynccontextmanager
    async def visit(self, workspace_id: str) -> AsyncGenerator[None, None]:
        """The newest files are here, to be changed by somebody who is not the session's runner.

        If its agent is awake here, the change is stored with the agent's own; else before this returns.

        :raises FilesElsewhere: another node has them, or has taken them meanwhile
        :raises BlobsFailed: they are not here, and cannot be restored now
        """
        async with self._visits[workspace_id]:
            living = self._living.get(workspace_id)
            if living is not None:
                await living.begun()  # what the visitor does is not part of the turn that is over
                yield
            if living is None or self._living.get(workspace_id) is not living:
                async with self._visited(workspace_id):
                    if living is None:
                        yield
                    self.changed(workspace_id, 0)
                if not await self._is_here(workspace_id):
                    raise FilesElsewhere
            else:
                living.changed(0)

    async def forget(self, workspace_id: str) -> None:
        """Remove the files of a session that never was; none of them was ever stored."""
        await to_thread.run_sync(self._tree_of(workspace_id).remove)
        await self._rows.forget(workspace_id)

    async def run(self) -> None:
        """Store what an earlier server, or a failing store, has left unstored; remove what belonged to
        deleted sessions; weigh what an older version has stored. Until cancelled.
        """
        while True:
            left = 0
            tidying = (self._recover_all, self._remove_all, self._remove_orphans, self._weigh_all)
            for tidy in tidying:
                try:
                    left += await tidy() or 0
                except (RoostError, OSError) as error:
                    _log.warning("cannot tidy up: %s", error, extra={"action": "recover"})
            await anyio.sleep(_TRY_AGAIN if left else _LOOK_AGAIN)

    @asynccontextmanager
    async def _visited(self, workspace_id: str) -> AsyncGenerator[None, None]:
        """As `open`, in the generation that there is: a runner's is newer, and has its way."""
        row = await self._rows.find(workspace_id)
        in_use = row is not None and row.state is not SyncState.IDLE
        if row and in_use and not await self._is_here(row.id) and not await self._is_lost(row):
            raise FilesElsewhere
        try:
            past = await self._facts.past_of(workspace_id)
            async with self.open(workspace_id, 0 if row is None else row.generation, past):
                await self.begun(workspace_id)
                yield
        except LeaseLost:
            raise FilesElsewhere from None

    async def _is_lost(self, row: Workspace) -> bool:
        """Whether nobody has anything newer than the newest snapshot, though the session has seen more."""
        if row.error == BEHIND or await self._was_here(row):
            return True
        return not await self._facts.elsewhere(row.id)

    async def _was_here(self, row: Workspace) -> bool:
        """Whether this machine had the living copy. Asked if it has it no more."""
        _, copy = await to_thread.run_sync(look, self._tree_of(row.id))
        return copy is not None and copy.name == row.copy

    async def _is_here(self, workspace_id: str) -> bool:
        """Whether what is in place on this node are the newest files; if nobody has any, they are."""
        if workspace_id in self._living:
            return True
        row = await self._rows.find(workspace_id)
        if row is None:
            return True
        tree = self._tree_of(workspace_id)
        root, copy = await to_thread.run_sync(look, tree)
        return is_living(row, root, copy, tree, await self._facts.past_of(workspace_id))

    async def _recover_all(self) -> int:
        """How many could not be stored; one that cannot does not keep the others from it."""
        failed = 0
        for row in await self._rows.unsynced():
            try:
                await self._recover(row)
            except (LeaseLost, NotFound) as error:  # somebody else has it now, or it is gone
                _log.info("not stored: %s", error.message, extra={"session": row.id})
            except (RoostError, OSError) as error:
                failed += not isinstance(
                    error, WorkspaceTooLarge
                )  # that lasts, and looking is dear
                about = {"action": "recover", "session": row.id}
                _log.warning("cannot store what was left: %s", error, extra=about)
                self._tell(row.id, phase="sync_failed")
        return failed

    async def _remove_orphans(self) -> None:
        """Remove copies of files whose session was deleted at another node.

        One node removes what is stored of a deleted session, with its row; each node removes its own copy:
        one that has neither a row nor a session.
        """
        here = await to_thread.run_sync(lambda: list(self._facts.here()))
        for workspace_id in await self._rows.strangers(here):
            async with self._locks[workspace_id]:
                # Whoever begins to work in it writes the row under this lock.
                if not await self._rows.strangers([workspace_id]):
                    continue
                await to_thread.run_sync(self._tree_of(workspace_id).remove)
            _log.info("removed a copy", extra={"action": "remove", "session": workspace_id})

    async def _weigh_all(self) -> None:
        """What was stored before weights were noted counts for its tenant, too."""
        for row in await self._rows.unweighed():
            await self._rows.weigh(row.id, await self._snapshots.weight(row.id))

    async def _remove_all(self) -> None:
        for row in await self._rows.orphans():
            await self._remove(row)

    async def _brought_here(
        self,
        row: Workspace | None,
        workspace_id: str,
        tree: Tree,
        generation: int,
        past: WorkspacePast,
    ) -> tuple[Workspace, bool]:
        """The row, and whether the files are certainly as the last turn has left them."""
        root, copy = await to_thread.run_sync(look, tree)
        if row is None or is_living(row, root, copy, tree, past):
            self._tell(workspace_id, phase="restore_skipped")
            known = copy if row is not None else None
            name = known.name if known is not None else mint("copy")
            if root is not None:
                await to_thread.run_sync(sign_in, tree, name, root, known, past.rewound)
            whole = known is not None and not known.behind
            return await self._rows.hold(workspace_id, name, generation), whole
        newest = await self._newest(row, generation, past)
        if newest is None:
            self._tell(workspace_id, phase="restore_skipped")
            behind = row.state is not SyncState.IDLE
            name = await to_thread.run_sync(partial(sign_anew, tree, past.rewound, behind=behind))
            return await self._rows.hold(workspace_id, name, generation), False
        keep = root is not None and not root.empty and not (copy is not None and copy.clean)
        here = LocalCopy(
            name=mint("copy"),
            root="",
            boot=tree.boot(),
            used=tree.boot(),
            rewound=past.rewound,
            behind=row.state is not SyncState.IDLE,
        )
        return await self._restored(workspace_id, tree, newest, generation, keep, here), False

    async def _newest(
        self, row: Workspace, generation: int, past: WorkspacePast
    ) -> Snapshot | None:
        """The snapshot to restore; None if there never was one.

        :raises SnapshotsMissing: there was one, and this store has none; nothing was written to it
        """
        try:
            expected = _has_snapshots(row)
            head = await self._snapshots.fence(row.id, generation, expected=expected)
            if past.rewound:
                await self._snapshots.rewind(row.id, past.rewound, past.to, generation)
                head = await self._snapshots.head(row.id)
        except LeaseLost:
            raise
        except (RoostError, OSError) as error:
            self._tell_failed(row.id, error)
            raise
        return head.newest

    def _tell_failed(self, workspace_id: str, error: Exception) -> None:
        about = {"action": "restore", "session": workspace_id}
        _log.error("cannot restore the files: %s", error, extra=about)
        self._tell(workspace_id, phase="restore_failed")

    async def _restored(
        self,
        workspace_id: str,
        tree: Tree,
        newest: Snapshot,
        generation: int,
        keep: bool,
        copy: LocalCopy,
    ) -> Workspace:
        self._tell(workspace_id, phase="restore_started")
        about = {"action": "restore", "session": workspace_id}

        def progressed(progress: RestoreProgress) -> None:
            self._tell(workspace_id, phase="restoring", progress=progress)

        try:
            async with restored(self._snapshots.fetch, newest, tree, progressed) as whole:
                here = replace(copy, root=whole.root.identity)
                await to_thread.run_sync(sign, tree, here)
                row = await self._rows.hold(workspace_id, copy.name, generation)
                await to_thread.run_sync(partial(whole.staging.replace, keep=keep))
        except LeaseLost:
            raise
        except (RoostError, OSError) as error:
            self._tell_failed(workspace_id, error)
            raise
        _log.info("restored %d files", newest.totals.entries, extra=about)
        self._tell(workspace_id, phase="restored")
        return row

    async def _left(self, workspace_id: str, sync: Sync, tree: Tree) -> None:
        """Whoever worked here is gone."""
        if self._living.get(workspace_id) is not sync:
            return  # a newer generation has come already
        del self._living[workspace_id]
        if sync.state is not SyncState.ERROR:
            self._status.pop(workspace_id, None)
        if sync.used and sync.state is SyncState.IDLE and not sync.behind:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(sign_off, tree)

    async def _recover(self, row: Workspace) -> None:
        if row.id in self._living:
            return
        tree = self._tree_of(row.id)
        async with self._locks[row.id]:
            root, copy = await to_thread.run_sync(look, tree)
            past = await self._facts.past_of(row.id)
            if row.id in self._living:
                return
            if not is_living(row, root, copy, tree, past):
                if copy is not None and copy.name == row.copy and row.error != BEHIND:
                    _log.error("its newest files are lost", extra={"session": row.id})
                    await self._rows.note(replace(row, error=BEHIND))
                return
            if copy is not None and copy.behind:
                return  # a snapshot has all of it, and a turn has to come before it is whole
            marks = (lambda: past.mark, lambda: past.turns)
            known, refusal = row.sequence > 0, await self._quota.refusal(row.id)
            taken = await self._snapshots.take(
                row.id, tree, row.generation, *marks, expected=known, refusal=refusal
            )
            sequence = taken.snapshot.sequence
            stored = replace(row, state=SyncState.IDLE, sequence=sequence, attempts=0, error="")
            await self._rows.note(stored, await self._snapshots.weight(row.id))
        _log.info("stored what was left", extra={"action": "recover", "session": row.id})
        self._tell(row.id, phase="sync_recovered")

    async def _remove(self, row: Workspace) -> None:
        """Its session was deleted. The row goes last: until then, this is done again."""
        async with self._locks[row.id]:
            await to_thread.run_sync(self._tree_of(row.id).remove)
            await self._snapshots.delete(row.id, surely=row.generation == 0)
            await self._snapshots.tidy(row.id)
            for heir in await self._snapshots.heirs(row.id):  # what is left of it is theirs now
                await self._rows.weigh(heir, await self._snapshots.weight(heir))
            await self._rows.forget(row.id)
        _log.info("removed the files", extra={"action": "remove", "session": row.id})

    def _tell_state(self, workspace_id: str, state: SyncState) -> None:
        before = self._status.get(workspace_id, SyncStatus()).phase
        phase = _TROUBLES.get(state, before)
        if state is SyncState.IDLE and before in _TROUBLES.values():
            phase = "sync_recovered"
        self._tell(workspace_id, sync=state, phase=phase)

    def _tell(self, workspace_id: str, **fields: object) -> None:
        before = self._status.get(workspace_id, SyncStatus())
        self._status[workspace_id] = replace(before, **fields)
        self._notifier.notify(topic(workspace_id))
