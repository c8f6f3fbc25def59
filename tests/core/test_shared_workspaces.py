"""Workspaces that several sessions use at once: on one node, stored together, one turn at a time if asked."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.core.node import node
from tests.workspaces.complete_files import WRITE, look_at_all, torn_in
from tests.workspaces.trees import UIDS

from roost.blobs.folder import FolderBlobs
from roost.core.snapshots.snapshots import Snapshots
from roost.core.work.leased_log import LeasedLog
from roost.core.work.workspace_queue import WorkspaceQueue
from roost.core.workspaces.shared import SharedWorkspaces
from roost.core.workspaces.sync import SyncPace
from roost.core.write.intake import Intake
from roost.core.write.standby import StandbyRunners
from roost.domain.session import Lease, Session
from roost.domain.snapshot import Head, Snapshot, SnapshotHold
from roost.domain.sync import SyncState
from roost.errors import FilesElsewhere, RoostError
from roost.ports.drafts import new_draft
from roost.ports.notifier import Notifier
from roost.sandboxes.tree import LocalTree
from roost.stores.notifier import LocalNotifier
from roost.stores.sqlite import SqliteStore
from roost.testing.null_parts import workspaces_of
from roost.testing.stage import TENANT, Stage, message, types

W = "wksp_1"
QUICK = SyncPace(quiet=0.03, longest=0.1, pauses=(0.01,), flush=20)


@dataclass
class Machine:
    """A node with a directory for workspaces."""

    folder: Path
    store: SqliteStore
    node: str
    notifier: Notifier = field(default_factory=LocalNotifier)
    pace: SyncPace = QUICK

    def __post_init__(self) -> None:
        self.snapshots = Snapshots(FolderBlobs(self.folder.parent / "blobs"))
        rows, tree = self.store.workspaces, self._tree
        self.files = workspaces_of(self.snapshots, rows, tree, self.notifier, pace=self.pace)
        self.commons = SharedWorkspaces(
            *(self.files, self.snapshots, rows, self.store.catalog, self.notifier, tree),
            node=self.node,
        )
        self.gate = WorkspaceQueue(self.store.log, self.notifier, rows, self.commons)
        self.place = self.folder / "homes" / W
        self.place.mkdir(parents=True, exist_ok=True)

    def _tree(self, workspace: str) -> LocalTree:
        return LocalTree(self.folder / "homes" / workspace, self.folder / "notes", UIDS)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Machine, None]:
        await self.store.log.renew(self.node, 600)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.commons.run)
            await anyio.wait_all_tasks_blocked()
            yield self
            tasks.cancel_scope.cancel()

    def join(self) -> Any:
        return self.commons.join(TENANT, W)

    async def until_waits(self, lease: Lease, turn: LeasedLog) -> None:
        with anyio.fail_after(60), self.notifier.subscribe(lease.session_id) as subscription:
            while not turn.waits:
                await subscription.wait(0.05)

    async def turn(self, lease: Lease) -> tuple[Session, LeasedLog]:
        session = await self.store.sessions.find(lease.session_id)
        log = LeasedLog(self.store.log, self.notifier, lease)
        log.look(session.state)
        return session, log


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteStore]:
    async with SqliteStore.open(tmp_path / "roost.db") as store:
        await setup(store)
        yield store


async def setup(store: SqliteStore, **settings: Any) -> None:
    body = {"name": "notes", "settings": settings, "permissions": {}}
    await store.catalog.add("workspace", TENANT, W, body, unique_name=True)


async def set_up(store: SqliteStore, **settings: Any) -> None:
    await store.catalog.change("workspace", TENANT, W, lambda r: {**r.body, "settings": settings})


async def row_of(store: SqliteStore) -> Any:
    return await store.workspaces.find(W)


async def test_who_comes_later_joins_and_the_last_to_leave_stores_everything(
    tmp_path: Path, store: SqliteStore
):
    async with Machine(tmp_path / "a", store, "node_a").running() as machine:
        async with AsyncExitStack() as others:
            async with machine.join():
                (machine.place / "one").write_text("1")
                await others.enter_async_context(machine.join())
                assert (await row_of(store)).holder == "node_a"
            (machine.place / "two").write_text("2")
            assert (await row_of(store)).state is SyncState.PENDING
        row = await row_of(store)
        assert (row.holder, row.state, row.generation) == ("", SyncState.IDLE, 1)
        newest = (await look_at_all(machine.snapshots, W))[row.sequence]
        assert newest == {"one": b"1", "two": b"2"}
        async with machine.join():
            assert (await row_of(store)).generation == 2


async def test_the_end_of_a_turn_is_stored_without_waiting_for_quiet(
    tmp_path: Path, store: SqliteStore
):
    slow = SyncPace(quiet=600, longest=600, pauses=(), flush=20, turn=600)
    here = Machine(tmp_path / "a", store, "node_a", pace=slow)
    async with here.running() as machine, machine.join():
        (machine.place / "file").write_text("1")
        machine.commons.ended(W, "sesn_1", 5)
        with anyio.fail_after(60):
            assert await machine.files.snapshot_of(W, 5, 5, "sesn_1")


async def test_a_workspace_is_on_one_node_until_its_last_session_there_leaves(
    tmp_path: Path, store: SqliteStore
):
    async with (
        Machine(tmp_path / "a", store, "node_a").running() as first,
        Machine(tmp_path / "b", store, "node_b").running() as second,
    ):
        async with first.join():
            (first.place / "one").write_text("1")
            with pytest.raises(FilesElsewhere):
                async with second.join():
                    pass
        async with second.join():
            assert (second.place / "one").read_text() == "1"


async def test_a_node_that_was_taken_for_dead_stores_nothing_any_more(
    tmp_path: Path, store: SqliteStore
):
    async with (
        Machine(tmp_path / "a", store, "node_a").running() as first,
        Machine(tmp_path / "b", store, "node_b").running() as second,
    ):
        async with first.join():
            (first.place / "late").write_text("never stored")
            await store.log.renew("node_a", 0)
            async with second.join():
                (second.place / "new").write_text("stored")
                first.commons.changed(W)
                await anyio.sleep(0.3)
        newest = (await first.snapshots.head(W)).newest
        assert newest is not None
        seen = await look_at_all(first.snapshots, W)
        assert [sorted(files) for files in seen.values()][-1] == ["new"]
        assert (await row_of(store)).holder == ""


async def test_a_deleted_workspace_lets_nobody_in_and_its_files_are_removed(
    tmp_path: Path, store: SqliteStore
):
    async with Machine(tmp_path / "a", store, "node_a").running() as machine:
        async with machine.join():
            (machine.place / "one").write_text("1")
        await store.catalog.delete("workspace", TENANT, W)
        with pytest.raises(RoostError, match="was deleted"):
            async with machine.join():
                pass
        [row] = await store.workspaces.orphans()
        await machine.files._remove(row)
        assert not machine.place.exists()
        assert (await machine.snapshots.head(W)).deleted


async def test_ten_who_write_at_once_are_stored_file_by_file_whole(
    tmp_path: Path, store: SqliteStore
):
    async with Machine(tmp_path / "a", store, "node_a").running() as machine:

        async def write(number: int) -> None:
            async with machine.join():
                argv = [sys.executable, "-c", WRITE, f"s{number}", "15", str(machine.place), "0"]
                await anyio.to_thread.run_sync(partial(subprocess.run, argv, check=True))
                machine.commons.changed(W)

        async with machine.join():
            while len((await machine.snapshots.head(W)).snapshots) < 3:
                async with anyio.create_task_group() as tasks:
                    for number in range(10):
                        tasks.start_soon(write, number)
        seen = await look_at_all(machine.snapshots, W)
        assert torn_in(seen) == []
        newest = seen[max(seen)]
        assert newest == {name: (machine.place / name).read_bytes() for name in newest}


# One turn at a time


async def waiting(stage: Stage, count: int) -> list[Lease]:
    """Sessions in the workspace that were told something, and are claimed."""
    made = [await stage.session(message(), workspace=W) for _ in range(count)]
    leases = {lease.session_id: lease for lease in await stage.claim("node_a")}
    return [leases[session_id] for session_id in made]


async def test_turns_go_one_at_a_time_and_those_who_wait_say_so_once(
    tmp_path: Path, store: SqliteStore
):
    await set_up(store, writers="serialised")
    stage = Stage(store)
    first, second = await waiting(stage, 2)
    async with Machine(tmp_path / "a", store, "node_a").running() as machine:
        session, turn = await machine.turn(first)
        other, waits = await machine.turn(second)
        assert await machine.gate.passed(session, turn, 1)
        async with anyio.create_task_group() as tasks:
            passed: list[bool] = []

            async def come() -> None:
                while not await machine.gate.passed(other, waits, 2):
                    passed.append(False)
                passed.append(True)

            tasks.start_soon(come)
            await machine.until_waits(second, waits)
            assert (await stage.state(second.session_id)).status == "rescheduling"
            machine.notifier.notify(W)
            await anyio.sleep(0.1)
            await machine.gate.left(session, turn, turn.head)
        assert passed[-1] and not any(passed[:-1])
        said = [e for e in await stage.all(second.session_id) if e.type == "session.error"]
        assert len(said) == 1 and "queued behind" in said[0].fields["error"]["message"]


async def test_a_session_that_was_in_when_the_server_died_goes_on_before_the_others(
    tmp_path: Path, store: SqliteStore
):
    await set_up(store, writers="serialised")
    stage = Stage(store)
    first, second = await waiting(stage, 2)
    async with Machine(tmp_path / "a", store, "node_a").running() as machine:
        assert await store.workspaces.enter(W, second.session_id, 2)
        assert not await store.workspaces.enter(W, first.session_id, 1)
        # Nobody has left: the server was killed, and another one asks for the cut-off turn.
        session, turn = await machine.turn(second)
        assert await machine.gate.reopened(session, turn)
        await machine.gate.gave_up(session)
        session, turn = await machine.turn(first)
        assert await machine.gate.passed(session, turn, 1)


async def test_an_interrupt_ends_the_wait_of_a_turn_that_was_cut_off(
    tmp_path: Path, store: SqliteStore
):
    await set_up(store, writers="serialised")
    stage = Stage(store)
    first, second = await waiting(stage, 2)
    async with Machine(tmp_path / "a", store, "node_a").running() as machine:
        assert await store.workspaces.enter(W, first.session_id, 1)
        await stage.take_all(second)
        session, turn = await machine.turn(second)
        taken_again: list[bool] = []

        async def reopen() -> None:
            taken_again.append(await machine.gate.reopened(session, turn))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reopen)
            await machine.until_waits(second, turn)
            intake = Intake(store.log, machine.notifier, StandbyRunners(), max_queued=9)
            await intake.accept(second.session_id, [new_draft("user.interrupt")])
        assert taken_again == [False]
        assert (await stage.state(second.session_id)).turn is None


async def test_a_runner_hands_messages_over_one_session_after_the_other(tmp_path: Path):
    machines: list[Machine] = []

    def queue_of(store: SqliteStore, notifier: Notifier) -> WorkspaceQueue:
        machines.append(Machine(tmp_path / "a", store, "node_a", notifier))
        return machines[0].gate

    async with node(tmp_path, queue_of=queue_of) as here:
        await setup(here.store, writers="serialised")
        slow = 'SCRIPT[{"text": "one two three four five", "chunk_delay": 0.8}]'
        first = await here.session(message(slow), workspace=W)
        await here.until(first, "user.message", 1)  # the second entry of it: it is taken up
        second = await here.session(message("me too"), workspace=W)
        waited = await here.until(second, "session.error")
        assert "queued behind" in waited[-1].fields["error"]["message"]
        here.notifier.notify(W)  # it looks again, and says nothing again
        done = await here.until(second, "session.status_idle")
        assert len([entry for entry in done if entry.type == "session.error"]) == 1
        taken = [entry for entry in done if entry.type == "user.message" and not entry.queued]
        rested = await here.until(first, "session.status_idle")
        over = [entry.at for entry in rested if entry.type == "agent.message"]
        assert taken[0].at >= over[-1]
        # Interrupted while it waits, a session rests, and what waited is withdrawn.
        await here.until(first, "user.message", await here.say(first, slow))
        seq = await here.say(second, "and again")
        await here.until(second, "session.error", seq)
        await here.intake.accept(second.id, [new_draft("user.interrupt")])
        rested = await here.until(second, "session.status_idle", seq)
        assert [e.seq > seq for e in rested if e.withdrawn] == [True]
        assert await here.store.log.inputs(second.id) == []


async def test_what_is_said_with_an_interrupt_waits_for_its_turn_and_that_is_said(tmp_path: Path):
    def queue_of(store: SqliteStore, notifier: Notifier) -> WorkspaceQueue:
        return Machine(tmp_path / "a", store, "node_a", notifier).gate

    async with node(tmp_path, queue_of=queue_of) as here:
        await setup(here.store, writers="serialised")
        first = await here.session(message('SCRIPT[{"text": "late", "delay": 600}]'), workspace=W)
        await here.until(first, "user.message", 1)  # the second entry of it: it is taken up
        second = await here.session(message("me too"), workspace=W)
        await here.until(second, "session.error")
        sent = [new_draft("user.interrupt"), message("instead")]
        accepted = await here.intake.accept(second.id, sent)
        told = await here.until(second, "session.error", accepted.entries[-1].seq)
        assert "queued behind" in told[-1].fields["error"]["message"]


# Quota


async def test_over_its_quota_no_turn_begins_until_there_is_room(
    tmp_path: Path, store: SqliteStore
):
    await set_up(store, quota_bytes=1000)
    stage = Stage(store)
    [lease] = await waiting(stage, 1)
    async with Machine(tmp_path / "a", store, "node_a").running() as machine, machine.join():
        session, turn = await machine.turn(lease)
        (machine.place / "big").write_bytes(b"x" * 999)
        assert await machine.gate.passed(session, turn, 1)
        (machine.place / "more").write_bytes(b"x" * 2)
        await machine.gate.left(session, turn, turn.head)
        errors = [e for e in await stage.all(session.id) if e.type == "session.error"]
        assert "1,001 bytes, and its quota is 1,000" in errors[0].fields["error"]["message"]
        for cure in ("file", "quota"):
            (machine.place / "more").write_bytes(b"x" * 2)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_passes, machine, session, turn)
                await machine.until_waits(lease, turn)
                if cure == "file":
                    (machine.place / "more").unlink()
                    machine.commons.changed(W)
                else:
                    await set_up(store, quota_bytes=2000)
                    machine.notifier.notify(W)
            turn.waits = False
        assert types(await stage.all(session.id)).count("session.error") == 3


async def _passes(machine: Machine, session: Session, turn: LeasedLog) -> None:
    with anyio.fail_after(60):
        while not await machine.gate.passed(session, turn, 1):
            pass


# Retention


async def test_settings_say_which_snapshots_stay_when_the_last_session_leaves(
    tmp_path: Path, store: SqliteStore
):
    async with Machine(tmp_path / "a", store, "node_a").running() as machine:
        for number in range(4):
            async with machine.join():
                (machine.place / "file").write_text(str(number))
        sequences = [s.sequence for s in (await machine.snapshots.head(W)).snapshots]
        assert len(sequences) == 4
        await machine.snapshots.fork(W, (await machine.snapshots.head(W)).snapshots[0], "other")
        await set_up(store, keep_snapshots=2)
        async with machine.join():
            pass
        head = await machine.snapshots.head(W)
        assert [s.sequence for s in head.snapshots] == sequences[-2:]
        assert [hold.snapshot.sequence for hold in head.holds] == sequences[:1]
        held = await machine.snapshots.fetch.manifest(head.holds[0].snapshot)
        assert held.totals.entries == 1


async def test_snapshots_grow_too_old_whether_nobody_comes_or_nobody_leaves(
    tmp_path: Path, store: SqliteStore
):
    async def kept(machine: Machine) -> list[int]:
        return [snapshot.sequence for snapshot in (await machine.snapshots.head(W)).snapshots]

    async with (
        Machine(tmp_path / "a", store, "node_a").running() as machine,
        Machine(tmp_path / "b", store, "node_b").running() as other,
    ):
        machine.snapshots._clock = lambda: time.time_ns() // 1000 - 3 * 86_400_000_000
        for number in range(3):
            async with machine.join():
                (machine.place / "file").write_text(str(number))
        assert len(before := await kept(machine)) == 3
        await set_up(store, keep_days=4)
        await other.commons.release_all()
        assert await kept(machine) == before
        await set_up(store, keep_days=2)
        await other.commons.release_all()
        assert await kept(machine) == before[-1:]
        stored = len(list((tmp_path / "blobs").rglob("*-*")))
        async with machine.join():
            (machine.place / "file").write_text("more")
            machine.commons.changed(W)
            with anyio.fail_after(60):
                while len(await kept(machine)) < 2:  # noqa: ASYNC110 - it is stored beside this
                    await anyio.sleep(0.01)
            (machine.place / "file").write_text("and more")
            await other.commons.release_all()
            assert len(await kept(machine)) == 1
        newest = (await row_of(store)).sequence
        assert (await look_at_all(machine.snapshots, W))[newest] == {"file": b"and more"}
        assert len(list((tmp_path / "blobs").rglob("*-*"))) <= stored


def test_the_newest_snapshot_stays_however_old_it_is():
    def at(number: int) -> Snapshot:
        return Snapshot(key=str(number), digest=b"", sequence=number, at=number * 10)

    head = Head(sequence=3, snapshots=(at(1), at(2), at(3)), holds=(SnapshotHold(at(1), "other"),))
    assert head.released(10, 0) == head
    assert head.released(10, 20) == replace(head, snapshots=(at(2), at(3)))
    assert head.released(10, 99) == replace(head, snapshots=(at(3),))
    assert head.released(1, 0).live() == [at(3), at(1)]
    assert Head().released(1, 5) == Head()
