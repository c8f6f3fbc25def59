"""Where a workspace's living files are, when they are stored, and what happens in between."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from inspect import iscoroutine
from pathlib import Path
from pkgutil import resolve_name

import anyio
import pytest
from tests.workspaces.trees import UIDS

from roost.blobs.folder import FolderBlobs
from roost.core.snapshots.snapshots import Snapshots
from roost.core.workspaces.copies import WorkspacePast, copies_in
from roost.core.workspaces.local import SyncStatus, topic
from roost.core.workspaces.sync import SyncPace
from roost.disk import remove
from roost.domain.events import Draft
from roost.domain.snapshot import Snapshot
from roost.domain.sync import TABLE, SyncMove, SyncState, step
from roost.errors import (
    BlobsFailed,
    FilesElsewhere,
    LeaseLost,
    NotFound,
    RoostError,
    SnapshotsMissing,
    TenantStorageFull,
)
from roost.ports.blobs import Blobs
from roost.ports.workspaces import Workspace
from roost.sandboxes.tree import LocalTree
from roost.stores.notifier import LocalNotifier
from roost.stores.sql.database import finished
from roost.stores.sqlite import SqliteStore
from roost.testing.faulty_blobs import Fault, FaultyBlobs
from roost.testing.null_parts import workspaces_of
from roost.testing.stage import TENANT, Stage

QUICK = SyncPace(quiet=0.05, longest=0.2, pauses=(0.01, 0.01), flush=5)
LAZY = SyncPace(quiet=60, longest=60, pauses=(), flush=5)


@dataclass
class Machine:
    """A directory for homes, and what works in them; `told` is every status of workspace `w`."""

    folder: Path
    store: SqliteStore
    blobs: Blobs
    pace: SyncPace = LAZY
    notifier: LocalNotifier = field(default_factory=LocalNotifier)
    told: list[SyncStatus] = field(default_factory=list)
    workspace: str = "w"
    most_of_tenant: int = 0
    elsewhere: bool = True
    past_of: Callable[[str], Awaitable[WorkspacePast]] | None = None

    def __post_init__(self) -> None:
        self.snapshots = Snapshots(self.blobs)
        given = {"past_of": self.past_of} if self.past_of else {}
        self.files = workspaces_of(
            self.snapshots,
            self.store.workspaces,
            self._tree,
            self.notifier,
            pace=self.pace,
            here=lambda: copies_in(self.folder / "notes"),
            most_of_tenant=self.most_of_tenant,
            elsewhere=self._is_elsewhere,
            **given,
        )
        notify = self.notifier.notify

        def overhear(name: str) -> None:
            notify(name)
            if name == topic("w") and (status := self.files.status("w")):
                self.told.append(status)

        self.notifier.notify = overhear  # type: ignore[method-assign]

    async def _is_elsewhere(self, workspace: str) -> bool:
        return self.elsewhere

    def _tree(self, workspace: str) -> LocalTree:
        return LocalTree(self.folder / "homes" / workspace, self.folder / "notes", UIDS)

    @property
    def home(self) -> Path:
        return self.folder / "homes" / self.workspace

    @asynccontextmanager
    async def at_work(self, generation: int = 1) -> AsyncGenerator[Path, None]:
        """A turn in it is over when the body ends."""
        self.home.mkdir(parents=True, exist_ok=True)
        async with self.files.open(self.workspace, generation):
            yield self.home
            self.files.rested(self.workspace, 0)

    @asynccontextmanager
    async def files_of_a_turn(self, mark: int, generation: int = 1) -> AsyncGenerator[Path, None]:
        """A turn that wrote `file` is over and stored when the body begins."""
        self.home.mkdir(parents=True, exist_ok=True)
        async with self.files.open(self.workspace, generation):
            await self.files.begun(self.workspace)
            (self.home / "file").write_text(f"turn {mark}")
            self.files.changed(self.workspace, mark)
            await self.files.snapshot_of(self.workspace, mark, mark)
            yield self.home

    async def stored(self) -> list[Snapshot]:
        return list((await self.snapshots.head("w")).snapshots)

    async def until(self, true: Callable[[], Awaitable[bool]]) -> None:
        with anyio.fail_after(60), self.notifier.subscribe(topic("w")) as subscription:
            while not await true():
                await subscription.wait(0.05)
                subscription.notified()

    async def until_stored(self, count: int) -> None:
        async def stored() -> bool:
            status = self.files.status("w")
            settled = status is not None and status.sync is SyncState.IDLE
            return settled and len(await self.stored()) >= count

        await self.until(stored)

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(status.phase for status in self.told))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteStore]:
    async with SqliteStore.open(tmp_path / "roost.db") as store:
        yield store


@pytest.fixture
def machine(tmp_path: Path, store: SqliteStore) -> Machine:
    return Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"))


@pytest.fixture
def another(tmp_path: Path, store: SqliteStore) -> Machine:
    return Machine(tmp_path / "second", store, FolderBlobs(tmp_path / "blobs"))


async def test_what_was_made_is_stored_when_the_work_ends(machine: Machine, store: SqliteStore):
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
        machine.files.changed("w", 1)
        row = await store.workspaces.find("w")
        assert row is not None
        assert row.state is SyncState.PENDING
    assert len(await machine.stored()) == 1
    row = await store.workspaces.find("w")
    assert row is not None
    assert (row.state, row.sequence) == (SyncState.IDLE, 1)
    assert machine.phases == ["restore_skipped"]


async def test_what_was_made_ready_for_nobody_is_not_stored_and_can_be_forgotten(
    machine: Machine, store: SqliteStore
):
    machine.home.mkdir(parents=True)
    async with machine.files.open("w", 1):
        (machine.home / "settings").write_text("of an agent that was started ahead")
    assert await machine.stored() == []
    await machine.files.forget("w")
    assert await store.workspaces.find("w") is None
    assert not machine.home.exists()


async def test_living_files_are_left_alone_though_they_are_newer_than_any_snapshot(
    machine: Machine,
):
    async with machine.at_work() as home:
        (home / "file").write_text("stored")
    (home / "file").write_text("written since, by the person whose files these are")
    async with machine.at_work(2) as home:
        assert (home / "file").read_text().startswith("written since")
    assert machine.phases == ["restore_skipped"]


async def test_a_machine_that_has_no_copy_restores_one_and_tells_how_far_it_is(
    machine: Machine, another: Machine
):
    async with machine.at_work() as home:
        (home / "file").write_bytes(b"mine" * 1000)
    async with another.at_work(2) as home:
        assert (home / "file").read_bytes() == b"mine" * 1000
        (home / "file").write_text("theirs")
    assert another.phases == ["restore_started", "restoring", "restored"]
    progress = [status.progress for status in another.told if status.phase == "restoring"]
    assert progress[-1] is not None
    assert (progress[-1].files, progress[-1].bytes) == (1, 4000)
    # The first machine has a copy, but not the living one any more.
    async with machine.at_work(3) as home:
        assert (home / "file").read_text() == "theirs"
    assert not (home.parent / ".w.aside").exists()


@pytest.mark.parametrize("loss", ["removed", "emptied", "replaced"])
async def test_a_lost_directory_is_restored(machine: Machine, loss: str):
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
        (home / "folder").mkdir()
    shutil.rmtree(home)
    if loss != "removed":
        home.mkdir()
    if loss == "replaced":
        (home / "other").write_text("from a backup of some other day")
    async with machine.at_work(2) as home:
        assert (home / "file").read_text() == "mine"
        assert not (home / "other").exists()


@pytest.mark.parametrize("restored", [False, True])
async def test_what_an_agent_has_emptied_stays_empty_after_a_kill(
    tmp_path: Path, store: SqliteStore, machine: Machine, another: Machine, restored: bool
):
    """Killed before that was stored: the newest snapshot still has its files."""
    async with machine.at_work() as home:
        (home / "file").write_text("stored")
    if restored:
        shutil.rmtree(home)
    await emptied(tmp_path, store)
    back = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"))
    async with back.files.open("w", 3):
        assert list(home.iterdir()) == []
        back.files.rested("w", 0)
    async with another.at_work(4) as there:
        assert list(there.iterdir()) == []


async def test_what_an_agent_has_emptied_is_stored_after_a_kill_though_nobody_opens_it(
    tmp_path: Path, store: SqliteStore, machine: Machine, caplog: pytest.LogCaptureFixture
):
    async with machine.at_work() as home:
        (home / "file").write_text("stored")
    await emptied(tmp_path, store)
    back = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"))

    async def is_stored() -> bool:
        row = await store.workspaces.find("w")
        return row is not None and row.state is SyncState.IDLE

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(back.files.run)
        await back.until(is_stored)
        tasks.cancel_scope.cancel()
    assert (await back.stored())[-1].totals.entries == 0
    assert "its newest files are lost" not in caplog.text


async def test_a_directory_that_a_power_cut_has_emptied_is_restored(
    tmp_path: Path, store: SqliteStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    """What was not on disk is gone, and nobody has removed it."""
    async with machine.at_work() as home:
        (home / "file").write_text("stored")
    await emptied(tmp_path, store)
    monkeypatch.setattr(LocalTree, "boot", lambda tree: "another start of the machine")
    back = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"))
    async with back.at_work(3) as home:
        assert (home / "file").read_text() == "stored"


async def emptied(folder: Path, store: SqliteStore) -> None:
    """An agent removes all files, and its server dies before that is stored."""
    removed: list[Path] = []
    down = FaultyBlobs(FolderBlobs(folder / "blobs"), lambda call: "refused" if removed else None)
    async with Machine(folder / "first", store, down).at_work(2) as home:
        removed.append(home / "file")
        removed[0].unlink()


async def test_a_copy_that_was_never_stored_is_kept_aside_when_another_one_lives(
    tmp_path: Path, store: SqliteStore, another: Machine
):
    down = FaultyBlobs(FolderBlobs(tmp_path / "blobs"), lambda call: "refused")
    machine = Machine(tmp_path / "first", store, down)
    async with machine.at_work() as home:
        (home / "file").write_text("never stored")
    async with another.at_work(2) as there:
        assert list(there.iterdir()) == []
        (there / "file").write_text("newer")
    back = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"))
    async with back.at_work(3) as home:
        assert (home / "file").read_text() == "newer"
    assert (home.parent / ".w.aside" / "file").read_text() == "never stored"


async def test_files_of_a_node_that_died_may_be_behind_until_a_turn_has_ended_elsewhere(
    tmp_path: Path, store: SqliteStore, machine: Machine, another: Machine
):
    async with machine.at_work() as home:
        (home / "file").write_text("stored")
        assert not machine.files.may_be_behind("w")
    down = FaultyBlobs(FolderBlobs(tmp_path / "blobs"), lambda call: "refused")
    dying = Machine(tmp_path / "first", store, down)
    async with dying.at_work(2) as home:
        (home / "file").write_text("never stored")
    for generation in (3, 4):  # the second time its own copy is the living one, and no better
        async with another.files.open("w", generation):
            assert (another.home / "file").read_text() == "stored"
            assert another.files.may_be_behind("w")
        row = await store.workspaces.find("w")
        assert row is not None and row.state is not SyncState.IDLE
        with anyio.move_on_after(0.2):
            await Machine(another.folder, store, another.blobs).files.run()
        row = await store.workspaces.find("w")
        assert row is not None and row.state is not SyncState.IDLE, "a turn has to come first"
    async with another.at_work(5):
        assert another.files.may_be_behind("w")
    row = await store.workspaces.find("w")
    assert row is not None and row.state is SyncState.IDLE
    async with machine.at_work(6):
        assert not machine.files.may_be_behind("w")


async def test_what_was_stored_before_weights_were_noted_is_weighed_by_the_next_server(
    machine: Machine, store: SqliteStore
):
    session = await Stage(store).session()
    mine = replace(machine, workspace=session)
    async with mine.at_work() as home:
        (home / "file").write_bytes(os.urandom(10_000))
        mine.files.changed(session, 1)
    weight = await store.workspaces.weight(TENANT)
    await store.workspaces.weigh(session, 0)  # as an older version has left it
    again = replace(machine, workspace=session, notifier=LocalNotifier())

    async def weighed() -> bool:
        return await store.workspaces.weight(TENANT) == weight > 10_000

    assert not await weighed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(again.files.run)
        await again.until(weighed)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("where", ["here", "here, and nothing was stored", "with its node"])
async def test_where_the_newest_files_are_lost_the_last_ones_that_were_stored_can_be_read(
    tmp_path: Path, store: SqliteStore, machine: Machine, another: Machine, where: str
):
    if where != "here, and nothing was stored":
        async with machine.at_work() as home:
            (home / "file").write_text("stored")
    down = FaultyBlobs(FolderBlobs(tmp_path / "blobs"), lambda call: "refused")
    dying = Machine(tmp_path / "first", store, down)
    async with dying.at_work(2) as home:
        (home / "file").write_text("never stored")
    again = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"))
    if where == "with its node":
        with pytest.raises(FilesElsewhere):
            await another.files.bring("w")
        again = Machine(another.folder, store, another.blobs, elsewhere=False)
    else:
        remove(home)
    for _ in range(2):
        await again.files.bring("w")
        assert await again.files.is_behind("w")
        if again.home.exists():
            assert (again.home / "file").read_text() == "stored"
    async with again.at_work(3):
        assert again.files.may_be_behind("w")
    assert not await again.files.is_behind("w")


async def test_a_node_that_has_lost_the_newest_files_lets_others_read_the_last_that_were_stored(
    tmp_path: Path, store: SqliteStore, machine: Machine, another: Machine
):
    async with machine.at_work() as home:
        (home / "file").write_text("stored")
    down = FaultyBlobs(FolderBlobs(tmp_path / "blobs"), lambda call: "refused")
    async with Machine(tmp_path / "first", store, down).at_work(2):
        (home / "file").write_text("never stored")
    again = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"))
    with pytest.raises(FilesElsewhere):
        await another.files.bring("w")
    remove(home)
    await again.files._recover_all()
    await another.files.bring("w")
    await again.files.bring("w")
    assert (another.home / "file").read_text() == (home / "file").read_text() == "stored"


async def test_changes_are_stored_once_it_is_quiet(tmp_path: Path, store: SqliteStore):
    machine = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"), QUICK)
    async with machine.at_work() as home:
        for number in range(5):
            (home / "file").write_text(f"{number}")
            machine.files.changed("w", 0)
            await anyio.sleep(0.01)
        await machine.until_stored(1)
        assert len(await machine.stored()) == 1
    states = [status.sync for status in machine.told]
    assert list(dict.fromkeys(states[1:])) == ["pending", "syncing", "idle", "flushing"]


async def test_changes_without_a_pause_are_stored_all_the_same(tmp_path: Path, store: SqliteStore):
    machine = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"), QUICK)
    async with machine.at_work() as home:
        for number in range(60):
            (home / "file").write_text(f"{number}")
            machine.files.changed("w", 0)
            await anyio.sleep(0.02)
        stored = len(await machine.stored())
        assert stored >= 2


async def test_the_end_of_a_turn_is_stored_at_once_and_has_its_mark(machine: Machine):
    async with machine.at_work() as home:
        for turn in (1, 2, 3):
            await machine.files.begun("w")
            (home / "file").write_text(f"turn {turn}")
            machine.files.changed("w", 10 * turn)
        await machine.files.begun("w")
        (home / "file").write_text("in the middle of turn 4")
    assert [snapshot.mark for snapshot in await machine.stored()] == [10, 20, 30, 0]


async def test_a_turn_that_changes_nothing_has_a_snapshot_too(machine: Machine):
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
        for turn in (1, 2):
            machine.files.changed("w", turn)
            await machine.files.begun("w")
    first, second = await machine.stored()
    assert (first.mark, second.mark, first.key) == (1, 2, second.key)


async def test_whoever_asks_for_a_turn_while_the_agent_goes_to_sleep_gets_it(
    tmp_path: Path, store: SqliteStore
):
    machine = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"), LAZY)
    put, may_go_on = machine.blobs.put, anyio.Event()
    found: list[Snapshot | None] = []

    async def slow(key: str, data: bytes) -> None:
        await may_go_on.wait()
        await put(key, data)

    async def ask() -> None:
        found.append(await machine.files.snapshot_of("w", 1, 1))

    machine.home.mkdir(parents=True)
    machine.blobs.put = slow  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks, machine.files.open("w", 1):
        machine.files.changed("w", 1)
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(_set_soon, may_go_on)
    assert [snapshot and snapshot.mark for snapshot in found] == [1]


async def test_nobody_waits_for_a_turn_that_nobody_stores(tmp_path: Path, store: SqliteStore):
    pace = SyncPace(turn=600)
    machine = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"), pace)
    with anyio.fail_after(60):
        assert await machine.files.snapshot_of("w", 1, 1) is None
        async with machine.at_work() as home:
            (home / "file").write_text("of no turn")
        assert await machine.stored()
        assert await machine.files.snapshot_of("w", 1, 1) is None


async def _set_soon(event: anyio.Event) -> None:
    await anyio.sleep(0.2)
    event.set()


async def test_what_is_written_after_a_turn_belongs_to_it_and_replaces_its_snapshot(
    machine: Machine,
):
    async with machine.files_of_a_turn(7) as home:
        (home / "late").write_text("by a process that was left behind")
    (only,) = await machine.stored()
    assert (only.mark, only.totals.entries) == (7, 2)


async def test_a_turn_begins_without_its_predecessors_snapshot_if_that_takes_too_long(
    tmp_path: Path, store: SqliteStore
):
    pace = SyncPace(quiet=60, longest=60, pauses=(), flush=5, turn=0.05)
    machine = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"), pace)
    put, may_go_on = machine.blobs.put, anyio.Event()

    async def slow(key: str, data: bytes) -> None:
        await may_go_on.wait()
        await put(key, data)

    machine.blobs.put = slow  # type: ignore[method-assign]
    async with machine.at_work() as home:
        (home / "file").write_text("turn 1")
        machine.files.changed("w", 1)
        with anyio.fail_after(60):
            await machine.files.begun("w")
        may_go_on.set()
        await machine.until_stored(1)
    assert [snapshot.mark for snapshot in await machine.stored()] == [0]


async def test_where_turns_are_not_kept_the_next_one_waits_for_nothing(
    tmp_path: Path, store: SqliteStore
):
    pace = SyncPace(quiet=60, longest=60, soon=0.05, pauses=(), flush=5, turn=600)
    machine = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"), pace)
    put, may_go_on, storing = machine.blobs.put, anyio.Event(), anyio.Event()

    async def slow(key: str, data: bytes) -> None:
        storing.set()
        await may_go_on.wait()
        await put(key, data)

    machine.blobs.put = slow  # type: ignore[method-assign]
    machine.home.mkdir(parents=True)
    with anyio.fail_after(60):
        async with machine.files.open("w", 1, keeps_turns=False):
            (machine.home / "file").write_text("turn 1")
            machine.files.rested("w", 1)
            await storing.wait()
            await machine.files.begun("w")
            assert await machine.files.snapshot_of("w", 1, 1) is None
            may_go_on.set()
            await machine.until_stored(1)
            (machine.home / "file").write_text("turn 2")
            machine.files.rested("w", 2)
            await machine.files.snapshot_of("w", 2, 2)  # it is waited for by whoever asks for it
            await machine.files.begun("w")
    assert [snapshot.mark for snapshot in await machine.stored()] == [0, 2]


async def test_nobody_waits_for_a_store_that_fails(tmp_path: Path, store: SqliteStore):
    down = FaultyBlobs(FolderBlobs(tmp_path / "blobs"), lambda call: "refused")
    pace = SyncPace(quiet=60, longest=60, pauses=(60,), flush=0.1, turn=60)
    machine = Machine(tmp_path / "first", store, down, pace)
    async with machine.at_work():
        with anyio.fail_after(60):
            for turn in (1, 2, 3):
                machine.files.changed("w", turn)
                await machine.files.begun("w")


async def test_a_turn_that_was_not_stored_when_the_server_died_is_stored_with_its_mark(
    machine: Machine, tmp_path: Path, store: SqliteStore
):
    await store.workspaces.hold("w", "copy_1", 1)
    async with machine.at_work(2) as home:
        (home / "file").write_text("turn 1")
        await store.workspaces.find("w")
    row = await store.workspaces.find("w")
    assert row is not None
    await store.workspaces.hold("w", row.copy, 3)  # and nobody is left to store it
    (home / "file").write_text("turn 2")

    async def past_of(workspace_id: str) -> WorkspacePast:
        return WorkspacePast(mark=22)

    later = Machine(tmp_path / "first", store, machine.blobs, past_of=past_of)
    await recovered(later)
    assert (await later.stored())[-1].mark == 22


async def test_a_change_while_a_snapshot_is_taken_is_in_the_next_one(
    tmp_path: Path, store: SqliteStore
):
    machine = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"), QUICK)
    async with machine.at_work() as home:
        put = machine.blobs.put

        async def slow(key: str, data: bytes) -> None:
            if not (home / "late").exists():
                (home / "late").write_text("after the walk")
                machine.files.changed("w", 2)
            await put(key, data)

        machine.blobs.put = slow  # type: ignore[method-assign]
        (home / "file").write_text("early")
        machine.files.changed("w", 1)
        await machine.until_stored(2)
        assert [snapshot.mark for snapshot in await machine.stored()] == [0, 2]
        assert (await machine.stored())[-1].totals.entries == 2


async def test_a_failing_store_is_tried_again_then_noted_and_recovered_later(
    tmp_path: Path, store: SqliteStore
):
    faults: list[Fault | None] = ["refused"] * 100
    blobs = FaultyBlobs(FolderBlobs(tmp_path / "blobs"), lambda call: faults[0] if faults else None)
    machine = Machine(tmp_path / "first", store, blobs, QUICK)
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
        machine.files.changed("w", 1)

        async def given_up() -> bool:
            row = await store.workspaces.find("w")
            return row is not None and row.state is SyncState.ERROR

        await machine.until(given_up)
        row = await store.workspaces.find("w")
        assert row is not None
        assert (row.attempts, row.error) == (3, "500 Internal Server Error")
    (row,) = await store.workspaces.unsynced()
    assert row.state is SyncState.ERROR
    faults.clear()
    later = Machine(tmp_path / "first", store, blobs)
    await recovered(later)
    assert list(await store.workspaces.unsynced()) == []
    assert len(await later.stored()) == 1
    assert later.phases == ["sync_recovered"]


async def recovered(machine: Machine) -> None:
    """A server starts, and finds nothing left to store."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(machine.files.run)

        async def nothing_left() -> bool:
            return not await machine.store.workspaces.unsynced()

        await machine.until(nothing_left)
        tasks.cancel_scope.cancel()


async def test_only_the_machine_with_the_living_copy_recovers_it(
    machine: Machine, another: Machine, store: SqliteStore
):
    held = await store.workspaces.hold("w", "copy_elsewhere", 1)
    another.home.mkdir(parents=True)
    (another.home / "file").write_text("not the living one")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(another.files.run)
        await anyio.sleep(0.1)
        tasks.cancel_scope.cancel()
    assert list(await store.workspaces.unsynced()) == [held]
    assert await another.stored() == []


async def test_the_files_of_a_deleted_session_are_removed_everywhere(
    machine: Machine, store: SqliteStore, tmp_path: Path
):
    stage = Stage(store)
    machine.workspace = await stage.session()
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
    await store.sessions.delete(TENANT, machine.workspace)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(machine.files.run)

        async def gone() -> bool:
            return await store.workspaces.find(machine.workspace) is None

        await machine.until(gone)
        tasks.cancel_scope.cancel()
    assert [path.name for path in files_of(machine.workspace, tmp_path)] == ["head"]


async def test_a_machine_removes_its_copy_of_a_session_that_was_deleted_elsewhere(
    machine: Machine, another: Machine, store: SqliteStore
):
    stage = Stage(store)
    kept, gone = await stage.session(), await stage.session()
    for session_id in (kept, gone):
        for place in (machine, another):
            place.workspace = session_id
        async with machine.at_work(1) as home:
            (home / "file").write_text("mine")
        async with another.at_work(2):
            pass
    await store.sessions.delete(TENANT, gone)
    await another.files._remove_all()
    assert not another.home.exists()
    assert machine.home.exists()
    await machine.files._remove_orphans()
    assert not machine.home.exists()
    assert copies_in(machine.folder / "notes") == [kept]
    machine.workspace = kept
    assert (machine.home / "file").read_text() == "mine"


async def test_a_copy_that_is_just_being_made_is_no_stray(machine: Machine, store: SqliteStore):
    """An agent that is started ahead has a copy, and no session yet."""
    async with machine.at_work():
        await machine.files._remove_orphans()
        assert machine.home.exists()


def files_of(workspace: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if workspace in f"{path}" and path.is_file()]


async def test_an_older_generation_stores_nothing_any_more(machine: Machine, another: Machine):
    async with AsyncExitStack() as old:
        home = await old.enter_async_context(machine.at_work(1))
        (home / "file").write_text("before")
        async with another.at_work(2) as there:
            (there / "file").write_text("of the new one")
        (home / "file").write_text("of the old one")
    async with another.at_work(3) as there:
        assert (there / "file").read_text() == "of the new one"
    with pytest.raises(LeaseLost):
        async with machine.at_work(1):
            pass


async def test_files_that_cannot_be_restored_are_an_error_and_not_an_empty_directory(
    machine: Machine, tmp_path: Path, store: SqliteStore
):
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
    down = FaultyBlobs(
        FolderBlobs(tmp_path / "blobs"), lambda call: "refused" if call > 2 else None
    )
    another = Machine(tmp_path / "second", store, down)
    with pytest.raises(BlobsFailed):
        async with another.at_work(2):
            pass
    assert another.phases[-1] == "restore_failed"
    back = Machine(tmp_path / "second", store, FolderBlobs(tmp_path / "blobs"))
    async with back.at_work(3) as there:
        assert (there / "file").read_text() == "mine"


@pytest.mark.parametrize("step", ["sign", "hold", "replace"])
@pytest.mark.parametrize("after", [False, True])
async def test_dying_between_any_two_steps_of_a_restore_means_restoring_again(
    machine: Machine,
    another: Machine,
    store: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    after: bool,
):
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
    where = {
        "sign": "roost.core.workspaces.local.sign",
        "hold": "roost.stores.sql.workspaces.HoldWorkspace.on",
        "replace": "roost.sandboxes.tree.stage.LocalStaging.replace",
    }[step]
    with monkeypatch.context() as patched:
        patched.setattr(where, dying(where, after=after))
        with pytest.raises(RuntimeError, match="the machine goes down"):
            async with another.at_work(2):
                pass
    fresh = Machine(another.folder, store, another.blobs)
    async with fresh.at_work(3) as there:
        assert (there / "file").read_text() == "mine"
        (there / "file").write_text("more")
    async with Machine(another.folder, store, another.blobs).at_work(4) as there:
        assert (there / "file").read_text() == "more"


@pytest.mark.parametrize("step", ["nothing", "head", "sign", "hold", "replace"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_dying_between_any_two_steps_of_a_rewind_means_going_back_all_the_same(
    machine: Machine,
    another: Machine,
    store: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    after: bool,
    elsewhere: bool,
):
    async with machine.files_of_a_turn(1):
        pass
    async with machine.files_of_a_turn(2, generation=2) as home:
        (home / "more").write_text("of turn 2")
    rewind, where = WorkspacePast(rewound=10, to=1), another if elsewhere else machine
    where.home.mkdir(parents=True, exist_ok=True)
    with monkeypatch.context() as patched:
        if step != "nothing":
            patched.setattr(DEATHS[step], dying(DEATHS[step], after=after))
            with pytest.raises(RuntimeError, match="the machine goes down"):
                async with where.files.open("w", 3, rewind):
                    pass

    async def past_of(workspace_id: str) -> WorkspacePast:
        return rewind

    fresh = Machine(where.folder, store, where.blobs, past_of=past_of)
    for row in await store.workspaces.unsynced():
        await fresh.files._recover(row)
    async with fresh.files.open("w", 4, rewind):
        assert (fresh.home / "file").read_text() == "turn 1"
        assert not (fresh.home / "more").exists()
        await fresh.files.begun("w")
        (fresh.home / "file").write_text("turn 3")
        fresh.files.changed("w", 13)
    async with fresh.files.open("w", 5, rewind):
        assert (fresh.home / "file").read_text() == "turn 3"
    assert [s.mark for s in await fresh.stored()] == [1, 2, 1, 13]


async def test_a_snapshot_that_is_pinned_is_there_however_many_follow(machine: Machine):
    machine.files._snapshots._keep = 2
    async with machine.files_of_a_turn(1):
        first = await machine.files.snapshot_of("w", 1, 1)
        assert first is not None
        await machine.files.pin("w", first)
    for turn in (2, 3, 4):
        async with machine.files_of_a_turn(turn, generation=turn):
            pass
    await machine.snapshots.tidy("w")
    async with machine.files.open("w", 9, WorkspacePast(rewound=10, to=1)):
        assert (machine.home / "file").read_text() == "turn 1"
    assert (await machine.snapshots.head("w")).holds == ()


async def test_a_rewind_to_a_snapshot_that_is_gone_is_an_error_and_changes_nothing(
    machine: Machine,
):
    async with machine.files_of_a_turn(2):
        pass
    with pytest.raises(NotFound):
        async with machine.files.open("w", 2, WorkspacePast(rewound=10, to=1)):
            pytest.fail("there is nothing to go back to")
    assert (machine.home / "file").read_text() == "turn 2"


async def test_a_fork_has_the_files_of_its_turn_and_outlives_its_origin(
    machine: Machine, store: SqliteStore
):
    async with machine.files_of_a_turn(1) as home:
        snapshot = await machine.files.snapshot_of("w", 1, 1)
        assert snapshot is not None
        async with machine.files.seeding.forked("w", snapshot, "f"):
            pass
        (home / "file").write_text("changed since")
    await machine.files._remove(await row_of(store, "w"))
    fork = Machine(machine.folder, store, machine.blobs, workspace="f")
    fork.home.mkdir(parents=True)
    async with fork.files.open("f", 2):
        assert (fork.home / "file").read_text() == "turn 1"
    await fork.files._remove(await row_of(store, "f"))
    left = sorted(stored.key for stored in await machine.blobs.list("workspaces/"))
    assert left == ["workspaces/f/head", "workspaces/w/head"]  # notes that they were


async def test_a_snapshot_whose_turn_has_a_newer_one_since_is_as_good(machine: Machine):
    async with machine.files_of_a_turn(1) as home:
        snapshot = await machine.files.snapshot_of("w", 1, 1)
        assert snapshot is not None
        (home / "late").write_text("by a process that was left behind")
    async with machine.files.seeding.forked("w", snapshot, "f"):
        pass
    (held,) = (await machine.snapshots.head("w")).holds
    (first,) = (await machine.snapshots.head("f")).snapshots
    assert held.snapshot.key == first.key != snapshot.key


async def test_a_fork_that_was_never_made_lets_go_of_its_origin(
    machine: Machine, store: SqliteStore
):
    async with machine.files_of_a_turn(1):
        snapshot = await machine.files.snapshot_of("w", 1, 1)
        assert snapshot is not None
        with pytest.raises(RuntimeError):
            async with machine.files.seeding.forked("w", snapshot, "f"):
                raise RuntimeError("the machine goes down")
    assert len((await machine.snapshots.head("w")).holds) == 1
    (left,) = [row for row in await store.workspaces.orphans(given_up_after=-1) if row.id == "f"]
    await machine.files._remove(left)
    await machine.snapshots.tidy("w")
    assert (await machine.snapshots.head("w")).holds == ()


async def test_taking_a_snapshot_goes_on_though_somebody_asks_for_a_hold_meanwhile(
    machine: Machine,
):
    async with machine.files_of_a_turn(1) as home:
        snapshot = await machine.files.snapshot_of("w", 1, 1)
        assert snapshot is not None
        put = machine.blobs.put

        async def slow(key: str, data: bytes) -> None:
            await put(key, data)
            await machine.snapshots.pin("w", snapshot)

        machine.blobs.put = slow  # type: ignore[method-assign]
        (home / "more").write_text("of turn 2")
        machine.files.changed("w", 2)
        await machine.files.begun("w")
    assert [s.mark for s in await machine.stored()] == [1, 2]
    assert len((await machine.snapshots.head("w")).holds) == 1


async def row_of(store: SqliteStore, workspace: str) -> Workspace:
    row = await store.workspaces.find(workspace)
    assert row is not None
    return row


DEATHS = {
    "head": "roost.core.snapshots.heads.seal",
    "sign": "roost.core.workspaces.local.sign",
    "hold": "roost.stores.sql.workspaces.HoldWorkspace.on",
    "replace": "roost.sandboxes.tree.stage.LocalStaging.replace",
}


def dying(where: str, *, after: bool):
    original = resolve_name(where)

    def work(*args, **kwargs):
        if after:
            done = original(*args, **kwargs)
            if iscoroutine(done):
                finished(done)
        raise RuntimeError("the machine goes down")

    return work


def test_every_state_has_a_way_out_and_what_is_not_in_the_table_is_refused():
    for state in SyncState:
        assert any(one is state for one, _ in TABLE)
        moves = [move for move in SyncMove if (state, move) not in TABLE]
        for move in moves:
            with pytest.raises(RoostError):
                step(state, move)
    assert set(TABLE.values()) == set(SyncState)


async def test_a_visitors_change_is_stored_at_once_while_nobody_works(
    machine: Machine, another: Machine
):
    machine.home.mkdir(parents=True)
    async with machine.files.visit("w"):
        (machine.home / "brought").write_text("by a person")
    assert [snapshot.mark for snapshot in await machine.stored()] == [0]
    async with another.at_work(3) as home:
        assert (home / "brought").read_text() == "by a person"
    await another.files.bring("w")


async def test_a_visitor_brings_the_newest_files_here_and_leaves_those_in_use_alone(
    machine: Machine, another: Machine
):
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
        machine.files.changed("w", 1)
        with pytest.raises(FilesElsewhere):
            await another.files.bring("w")
        with pytest.raises(FilesElsewhere):
            async with another.files.visit("w"):
                pytest.fail("the files are in use on the other machine")
        async with machine.files.visit("w"):
            (home / "brought").write_text("while the agent works")
    await another.files.bring("w")
    assert (another.home / "file").read_text() == "mine"
    assert (another.home / "brought").read_text() == "while the agent works"
    async with machine.at_work(2) as home:
        assert (home / "brought").exists()


async def test_a_visitor_whose_files_are_taken_meanwhile_is_told(
    machine: Machine, another: Machine
):
    machine.home.mkdir(parents=True)
    with pytest.raises(FilesElsewhere):
        async with machine.files.visit("w"), another.at_work(1):
            (machine.home / "late").touch()
    async with another.at_work(2) as home:
        assert not (home / "late").exists()


async def test_a_change_made_while_the_agent_falls_asleep_is_stored_all_the_same(
    machine: Machine, another: Machine
):
    async with AsyncExitStack() as awake:
        await awake.enter_async_context(machine.at_work())
        async with machine.files.visit("w"):
            await awake.aclose()
            (machine.home / "late").touch()
    async with another.at_work(2) as home:
        assert (home / "late").exists()


async def test_a_store_without_the_snapshots_is_a_failed_restore_and_nothing_is_written(
    machine: Machine, store: SqliteStore, tmp_path: Path
):
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
    before = await store.workspaces.find("w")
    wrong = Machine(tmp_path / "second", store, FolderBlobs(tmp_path / "wrong"))
    with pytest.raises(SnapshotsMissing):
        async with wrong.at_work(2):
            raise AssertionError("somebody works in an empty directory")
    assert wrong.phases == ["restore_failed"]
    with pytest.raises(SnapshotsMissing):
        await wrong.files.bring("w")
    with pytest.raises(SnapshotsMissing):
        await wrong.files.snapshot_of("w", 1, 9)
    assert await store.workspaces.find("w") == before
    assert await wrong.blobs.list("") == []
    right = Machine(tmp_path / "second", store, machine.blobs)
    async with right.at_work(2) as home:
        assert (home / "file").read_text() == "mine"


async def test_a_fork_whose_row_does_not_say_so_yet_has_snapshots_all_the_same(
    machine: Machine, store: SqliteStore, tmp_path: Path
):
    await store.workspaces.hold("w", "", 0)  # its server died before it noted the first snapshot
    with pytest.raises(SnapshotsMissing):
        async with machine.files.open("w", 1):
            raise AssertionError("somebody works in an empty directory")


async def test_what_is_here_is_not_stored_in_a_store_that_lost_its_snapshots(
    machine: Machine, store: SqliteStore, tmp_path: Path
):
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
    wrong = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "wrong"))
    async with wrong.at_work(2) as home:
        (home / "file").write_text("more")
        wrong.files.changed("w", 1)
    assert await wrong.blobs.list("") == []
    row = await store.workspaces.find("w")
    assert row is not None
    assert row.state is SyncState.ERROR
    right = Machine(tmp_path / "first", store, machine.blobs)
    await right.files._recover_all()
    assert len(await right.stored()) == 2


@pytest.mark.parametrize("calls", range(1, 7))
async def test_a_store_that_is_away_at_any_step_of_a_restore_is_told_as_a_failed_one(
    machine: Machine, store: SqliteStore, tmp_path: Path, calls: int
):
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
    down = FaultyBlobs(machine.blobs, lambda call: "refused" if call >= calls else None)
    away = Machine(tmp_path / "second", store, down)
    try:
        async with away.at_work(2) as home:
            assert (home / "file").read_text() == "mine"
    except BlobsFailed:
        assert away.told[-1].phase == "restore_failed"
        assert "restore_skipped" not in away.phases
    again = Machine(tmp_path / "second", store, machine.blobs)
    async with again.at_work(2) as home:
        assert (home / "file").read_text() == "mine"


async def test_what_cannot_be_stored_is_told_and_made_good_while_the_agent_is_awake(
    tmp_path: Path, store: SqliteStore
):
    faults: list[Fault | None] = ["refused"]
    blobs = FaultyBlobs(FolderBlobs(tmp_path / "blobs"), lambda call: faults[0] if faults else None)
    pace = SyncPace(quiet=0.05, longest=0.2, pauses=(0.01, 0.01), again=0.05, flush=5)
    machine = Machine(tmp_path / "first", store, blobs, pace)
    said: list[Draft] = []

    async def say(draft: Draft) -> None:
        said.append(draft)

    machine.home.mkdir(parents=True)
    async with machine.files.open("w", 1, say=say):
        (machine.home / "file").write_text("mine")
        machine.files.changed("w", 1)

        async def given_up() -> bool:
            return "sync_failed" in machine.phases

        await machine.until(given_up)
        await anyio.sleep(0.3)  # it is tried again, and not told again
        faults.clear()
        await machine.until_stored(1)  # by itself: nothing has changed since
    assert machine.phases == ["restore_skipped", "sync_retrying", "sync_failed", "sync_recovered"]
    assert [draft.type for draft in said] == ["session.error", "roost.files_stored"]
    assert b"blobs_failed" in said[0].body


async def test_what_was_not_stored_when_the_agent_slept_is_stored_without_a_restart(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.workspaces.local._TRY_AGAIN", 0.05)
    faults: list[Fault | None] = ["refused"]
    blobs = FaultyBlobs(FolderBlobs(tmp_path / "blobs"), lambda call: faults[0] if faults else None)
    machine = Machine(tmp_path / "first", store, blobs, QUICK)
    async with machine.at_work() as home:
        (home / "file").write_text("mine")
    status = machine.files.status("w")
    assert status is not None
    assert status.phase == "sync_failed"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(machine.files.run)
        await anyio.sleep(0.2)
        faults.clear()

        async def nothing_left() -> bool:
            return machine.phases[-1] == "sync_recovered"

        await machine.until(nothing_left)
        tasks.cancel_scope.cancel()
    assert list(await store.workspaces.unsynced()) == []


async def test_one_workspace_that_cannot_be_stored_keeps_no_other_from_it(
    tmp_path: Path, store: SqliteStore
):
    async def refused() -> None:
        raise BlobsFailed("500")

    down = FaultyBlobs(FolderBlobs(tmp_path / "blobs"), lambda call: "refused")
    for name in ("one", "other"):
        machine = Machine(tmp_path / "first", store, down, QUICK, workspace=name)
        async with machine.at_work() as home:
            (home / "file").write_text(name)
    later = Machine(tmp_path / "first", store, FolderBlobs(tmp_path / "blobs"), QUICK)
    take = later.snapshots.take

    async def one_fails(workspace: str, *given: object, **more: object) -> object:
        return await (refused() if workspace == "one" else take(workspace, *given, **more))  # type: ignore[arg-type]

    later.snapshots.take = one_fails  # type: ignore[method-assign,assignment]
    assert await later.files._recover_all() == 1
    assert [row.id for row in await store.workspaces.unsynced()] == ["one"]


MIB = 1 << 20


async def fill(machine: Machine, session: str, size: int = MIB, generation: int = 1) -> None:
    """A session rests after it has written so much that cannot be compressed."""
    machine.workspace = session
    async with machine.at_work(generation) as home:
        (home / "file").write_bytes(os.urandom(size))


async def test_a_tenant_that_is_full_stores_nothing_more_and_others_do(
    machine: Machine, store: SqliteStore
):
    stage = Stage(store)
    mine = [await stage.session() for _ in range(3)]
    other = await stage.session(tenant="tenant_2")
    small = Machine(machine.folder, store, machine.blobs, QUICK, most_of_tenant=2 * MIB)
    for session in (*mine, other):
        await fill(small, session)
    states = [(await row_of(store, session)).state for session in (*mine, other)]
    assert states == [SyncState.IDLE, SyncState.IDLE, SyncState.ERROR, SyncState.IDLE]
    taken = [await small.snapshots.weight(session) for session in mine]
    assert await store.workspaces.weight(TENANT) == sum(taken)
    assert await small.files._recover_all() == 1, "it is tried again, and nothing of it is lost"
    await store.sessions.delete(TENANT, mine[0])
    await small.files._remove_all()
    assert await small.files._recover_all() == 0
    assert (await row_of(store, mine[2])).state is SyncState.IDLE


async def test_a_full_tenant_is_told_by_name_and_goes_on_once_the_bound_is_raised(
    machine: Machine, store: SqliteStore
):
    pace = SyncPace(quiet=0.05, longest=0.2, pauses=(60,), again=0.05, flush=5)
    small = Machine(machine.folder, store, machine.blobs, pace, most_of_tenant=MIB)
    stage = Stage(store)
    await fill(small, await stage.session())
    small.workspace = session = await stage.session()
    small.home.mkdir(parents=True)
    said: list[Draft] = []

    async def say(draft: Draft) -> None:
        said.append(draft)

    async def said_are(count: int) -> bool:
        return len(said) >= count

    async with small.files.open(session, 1, say=say):
        (small.home / "file").write_bytes(b"mine")
        small.files.changed(session, 1)
        await small.until(lambda: said_are(1))
        small.files._quota._most = 4 * MIB
        await small.until(lambda: said_are(2))
    assert [draft.type for draft in said] == ["session.error", "roost.files_stored"]
    assert b"tenant_storage_full" in said[0].body
    assert b"ROOST_MAX_TENANT_BYTES" in said[0].body
    assert (await row_of(store, session)).state is SyncState.IDLE


async def test_a_session_of_a_full_tenant_lets_go_of_its_oldest_snapshots_first(
    machine: Machine, store: SqliteStore
):
    small = Machine(machine.folder, store, machine.blobs, QUICK, most_of_tenant=3 * MIB)
    session = await Stage(store).session()
    for generation in range(1, 8):
        await fill(small, session, generation=generation)
        assert (await row_of(store, session)).state is SyncState.IDLE
        assert await store.workspaces.weight(TENANT) < 4.1 * MIB
    head = await small.snapshots.head(session)
    assert head.sequence == 7
    assert head.newest is not None


async def test_what_takes_no_room_is_not_refused_to_a_full_tenant(
    machine: Machine, store: SqliteStore
):
    session = await Stage(store).session()
    await fill(machine, session)
    small = Machine(
        machine.folder, store, machine.blobs, QUICK, workspace=session, most_of_tenant=1
    )
    async with small.at_work(2):
        pass
    assert (await row_of(store, session)).state is SyncState.IDLE
    async with small.at_work(3) as home:
        (home / "more").write_text("x")
    assert (await row_of(store, session)).state is SyncState.ERROR
    assert (await small.snapshots.head(session)).newest is not None


async def test_dying_before_a_weight_is_noted_is_made_good_by_the_next_snapshot(
    machine: Machine, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    machine.workspace = session = await Stage(store).session()

    async def dies(*_: object) -> None:
        raise BlobsFailed("the process ends here")

    with monkeypatch.context() as dying:
        dying.setattr(store.workspaces, "note", dies)
        await fill(machine, session)
    assert await store.workspaces.weight(TENANT) == 0
    assert (await machine.snapshots.head(session)).sequence == 1
    async with machine.at_work(2):  # nothing has changed since
        pass
    assert await store.workspaces.weight(TENANT) > MIB


async def test_what_a_deleted_session_leaves_to_its_fork_weighs_for_the_fork(
    machine: Machine, store: SqliteStore
):
    stage = Stage(store)
    machine.workspace = session = await stage.session()
    fork = await stage.session()
    async with machine.at_work() as home:
        (home / "file").write_bytes(os.urandom(MIB))
    newest = (await machine.snapshots.head(session)).newest
    assert newest is not None
    async with machine.files.seeding.forked(session, newest, fork):
        pass
    assert await store.workspaces.weight(TENANT) < 1.1 * MIB, "it is stored once"
    await store.sessions.delete(TENANT, session)
    await machine.files._remove_all()
    assert MIB < await store.workspaces.weight(TENANT) < 1.1 * MIB
    await store.sessions.delete(TENANT, fork)
    await machine.files._remove_all()
    assert await store.workspaces.weight(TENANT) == 0


async def test_files_are_not_imported_into_a_full_tenant(machine: Machine, store: SqliteStore):
    await fill(machine, await Stage(store).session())
    small = Machine(machine.folder, store, machine.blobs, QUICK, most_of_tenant=1)
    before = await machine.blobs.list("workspaces/")
    with pytest.raises(TenantStorageFull):
        async with small.files.seeding.planted(small._tree("x"), "x", TENANT):
            pass
    assert await machine.blobs.list("workspaces/") == before
    assert await store.workspaces.find("x") is None
