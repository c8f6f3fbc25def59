"""Snapshots: what was taken comes back, whatever the tree, whatever changes, wherever it is cut off."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.workspaces.trees import QUICK, TreeChanger, picture, put_back, tree

from roost.blobs.folder import FolderBlobs
from roost.core.snapshots.garbage import collect
from roost.core.snapshots.gather import GatherLimits
from roost.core.snapshots.restore import RestoreProgress, restored
from roost.core.snapshots.snapshots import Snapshots
from roost.domain.snapshot import Head
from roost.errors import DiskFull, LeaseLost, NotFound, SnapshotCorrupt, WorkspaceTooLarge
from roost.ports.blobs import Blobs, Pointer, Stored

SMALL = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def small_packs_and_short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small trees have several packs, and files need not rest long to be believed."""
    monkeypatch.setattr("roost.core.snapshots.packs.LOAD", 200_000)
    monkeypatch.setattr("roost.core.snapshots.packs.FRAME", 50_000)
    monkeypatch.setattr("roost.core.snapshots.gather._CUT", 0x3)
    monkeypatch.setattr("roost.sandboxes.tree.walk._TOO_RECENT", 10_000_000)


def rest() -> None:
    time.sleep(0.02)


@given(seed=st.integers(0, 2**32), rounds=st.lists(st.integers(0, 25), min_size=1, max_size=4))
@settings(parent=SMALL, max_examples=25)
def test_what_was_taken_comes_back(seed: int, rounds: list[int]):
    async def check(folder: Path) -> None:
        snapshots = Snapshots(FolderBlobs(folder / "blobs"))
        changer = TreeChanger(folder / "home", seed)
        taken = []
        for steps in rounds:
            changer.work(steps)
            rest()
            taken.append(
                ((await snapshots.take("w", tree(folder / "home"), 1)), picture(folder / "home"))
            )
        for number, (one, seen) in enumerate(taken):
            await put_back(snapshots, one.snapshot, folder / f"again{number}")
            assert picture(folder / f"again{number}") == seen

    with TemporaryDirectory(dir=QUICK) as folder:
        anyio.run(check, Path(folder))


class Death(BaseException):
    """Nothing that anybody would handle."""


class Dying:
    """A blob store whose writer dies at the so-many-th write: before it, or just after."""

    def __init__(self, inner: FolderBlobs, writes: int, *, after: bool) -> None:
        self._inner = inner
        self._left = writes
        self._after = after

    async def put(self, key: str, data: bytes) -> None:
        self._left -= 1
        if self._left >= 0 or (self._left == -1 and self._after):
            await self._inner.put(key, data)
        self._die()

    async def swap(self, key: str, data: bytes, version: str | None) -> str:
        self._left -= 1
        moved = ""
        if self._left >= 0 or (self._left == -1 and self._after):
            moved = await self._inner.swap(key, data, version)
        self._die()
        return moved

    def _die(self) -> None:
        if self._left < 0:
            raise Death

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._inner.get(key, start, end)

    async def read(self, key: str) -> Pointer | None:
        return await self._inner.read(key)

    async def list(self, prefix: str) -> Sequence[Stored]:
        return await self._inner.list(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._inner.delete(keys)


@given(
    seed=st.integers(0, 2**32),
    writes=st.integers(0, 8),
    after=st.booleans(),
    tidied=st.booleans(),
)
@settings(parent=SMALL, max_examples=30)
def test_a_crash_at_any_write_leaves_the_last_snapshot_and_the_next_one_is_right(
    seed: int, writes: int, after: bool, tidied: bool
):
    async def check(folder: Path) -> None:
        home, blobs = folder / "home", FolderBlobs(folder / "blobs")
        changer = TreeChanger(home, seed)
        changer.work(15)
        first = await Snapshots(blobs).take("w", tree(home), 1)
        before = picture(home)
        changer.work(15)
        now = picture(home)
        with suppress(Death):
            await Snapshots(Dying(blobs, writes, after=after)).take("w", tree(home), 1)
        if tidied:
            await collect(blobs, "w")
        newest = (await Snapshots(blobs).head("w")).newest
        assert newest is not None
        await put_back(Snapshots(blobs), newest, folder / "again")
        assert picture(folder / "again") == (before if newest == first.snapshot else now)
        changer.work(5)
        rest()
        after_all = await Snapshots(blobs).take("w", tree(home), 1)
        await collect(blobs, "w")
        await put_back(Snapshots(blobs), after_all.snapshot, folder / "at last")
        assert picture(folder / "at last") == picture(home)

    with TemporaryDirectory(dir=QUICK) as folder:
        anyio.run(check, Path(folder))


def spoil_one_of(folder: Path) -> None:
    """Of the files restored so far, one is not what it looks like."""
    for spoilt in folder.glob(".again.restoring-*/*"):
        if spoilt.is_file() and not spoilt.is_symlink():
            status = spoilt.stat()
            spoilt.chmod(0o600)  # an ordinary user does not write to what is only to be read
            spoilt.write_bytes(os.urandom(status.st_size))
            spoilt.chmod(status.st_mode)
            os.utime(spoilt, ns=(status.st_mtime_ns, status.st_mtime_ns))
            return


@given(seed=st.integers(0, 2**32), files=st.integers(0, 6))
@settings(parent=SMALL, max_examples=15)
def test_a_restore_that_was_cut_off_goes_on_and_comes_to_the_same(seed: int, files: int):
    async def check(folder: Path) -> None:
        home = folder / "home"
        TreeChanger(home, seed).work(30)
        snapshots = Snapshots(FolderBlobs(folder / "blobs"))
        taken = await snapshots.take("w", tree(home), 1)

        def dies(progress: RestoreProgress) -> None:
            if progress.files >= files:
                raise Death

        try:
            await put_back(snapshots, taken.snapshot, folder / "again", dies)
        except Death:
            assert not (folder / "again").exists()
        spoil_one_of(folder)
        await put_back(snapshots, taken.snapshot, folder / "again")
        assert picture(folder / "again") == picture(home)

    with TemporaryDirectory(dir=QUICK) as folder:
        anyio.run(check, Path(folder))


class World:
    """A home, a blob store, and how much was read and stored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.blobs = FolderBlobs(folder / "blobs")
        self.snapshots = Snapshots(self.blobs, keep=3)
        self.tree = tree(self.home)

    async def take(self, generation: int = 1):
        return await self.snapshots.take("w", self.tree, generation)

    async def keys(self) -> set[str]:
        return {stored.key for stored in await self.blobs.list("workspaces/")}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_what_has_not_changed_is_neither_read_nor_stored_again(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    for number in range(50):
        (world.home / f"{number}.bin").write_bytes(os.urandom(10_000))
    rest()
    first = await world.take()
    assert first.stored > 500_000
    read = []
    original = world.tree.read
    monkeypatch.setattr(
        world.tree, "read", lambda found: read.append(found.path) or original(found)
    )
    again = await world.take()
    assert (again.stored, again.snapshot, read) == (0, first.snapshot, [])
    (world.home / "7.bin").write_bytes(b"new")
    third = await world.take()
    assert read == [b"7.bin"]
    assert 0 < third.stored < 10_000
    assert third.snapshot.sequence == 2


async def test_without_its_index_it_reads_everything_and_stores_nothing_twice(world: World):
    for number in range(20):
        (world.home / f"{number}.bin").write_bytes(os.urandom(10_000))
    await world.take()
    for note in (world.folder / "notes").iterdir():
        note.unlink()
    assert (await world.take()).stored == 0
    (world.home / "0.bin").rename(world.home / "moved.bin")
    assert (await world.take()).stored < 10_000


async def test_an_older_generation_can_store_nothing(world: World):
    (world.home / "file").write_text("mine")
    taken = await world.take(generation=2)
    (world.home / "file").write_text("not mine any more")
    with pytest.raises(LeaseLost):
        await world.take(generation=1)
    await world.snapshots.fence("w", 3)
    with pytest.raises(LeaseLost):
        await world.take(generation=2)
    head = await world.snapshots.head("w")
    assert (head.newest, head.generation) == (taken.snapshot, 3)


async def test_of_two_that_take_a_snapshot_at_once_one_is_refused(world: World):
    (world.home / "file").write_text("content")
    outcomes = []

    async def take() -> None:
        try:
            outcomes.append(await Snapshots(world.blobs).take("w", tree(world.home), 1))
        except LeaseLost as error:
            outcomes.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        tasks.start_soon(take)
    assert sorted(isinstance(outcome, LeaseLost) for outcome in outcomes) == [False, True]
    await put_back(
        world.snapshots, (await world.snapshots.head("w")).newest, world.folder / "again"
    )


async def test_only_so_many_snapshots_are_kept_and_the_rest_is_collected(world: World):
    for number in range(6):
        (world.home / f"{number}.bin").write_bytes(os.urandom(20_000))
        if number:
            (world.home / f"{number - 1}.bin").unlink()
        await world.take()
    head = await world.snapshots.head("w")
    assert [snapshot.sequence for snapshot in head.snapshots] == [4, 5, 6]
    before = await world.keys()
    assert await collect(world.blobs, "w") == 6
    assert await collect(world.blobs, "w") == 0
    assert len(before - await world.keys()) == 6
    for snapshot in head.snapshots:
        await put_back(world.snapshots, snapshot, world.folder / "again")
        assert [path.name for path in (world.folder / "again").iterdir()] == [
            f"{snapshot.sequence - 1}.bin"
        ]


def sized(world: World, blobs: Blobs | None = None) -> Snapshots:
    return Snapshots(blobs or world.blobs, most_bytes=100_000)


async def filled(world: World, count: int) -> None:
    """So many snapshots of one file that is rewritten each time."""
    for _ in range(count):
        (world.home / "file").write_bytes(os.urandom(30_000))
        rest()
        await sized(world).take("w", world.tree, 1)


async def stored_bytes(world: World) -> int:
    return sum(stored.size for stored in await world.blobs.list("workspaces/w/"))


async def test_the_oldest_snapshots_go_when_all_of_them_take_too_much(world: World):
    await filled(world, 8)
    await sized(world).tidy("w")
    head = await world.snapshots.head("w")
    assert [snapshot.sequence for snapshot in head.snapshots] == [6, 7, 8]
    assert await stored_bytes(world) < 100_000 + 2_000
    await put_back(world.snapshots, head.newest, world.folder / "again")
    assert picture(world.folder / "again") == picture(world.home)


async def test_what_the_newest_needs_and_what_a_fork_holds_stays_however_large(world: World):
    await filled(world, 1)
    first = (await world.snapshots.head("w")).newest
    assert first is not None
    await sized(world).fork("w", first, "fork")
    (world.home / "large").write_bytes(os.urandom(300_000))
    await filled(world, 2)
    await sized(world).tidy("w")
    head = await world.snapshots.head("w")
    assert [snapshot.sequence for snapshot in head.snapshots] == [3]
    for snapshot in (first, head.newest):
        await put_back(world.snapshots, snapshot, world.folder / "again")


@pytest.mark.parametrize("after", [False, True])
async def test_dying_while_old_snapshots_go_leaves_the_newest_and_the_rest_goes_later(
    world: World, after: bool
):
    await filled(world, 8)
    with pytest.raises(Death):
        await sized(world, Dying(world.blobs, 0, after=after)).tidy("w")
    head = await world.snapshots.head("w")
    await put_back(world.snapshots, head.newest, world.folder / "again")
    assert picture(world.folder / "again") == picture(world.home)
    await sized(world).tidy("w")
    assert await stored_bytes(world) < 100_000 + 2_000


async def test_a_disk_that_is_nearly_full_takes_no_objects_but_lets_them_go(world: World):
    await filled(world, 2)
    full = FolderBlobs(world.folder / "blobs", least_free=1 << 60)
    (world.home / "file").write_bytes(os.urandom(30_000))
    with pytest.raises(DiskFull):
        await Snapshots(full).take("w", world.tree, 1)
    await Snapshots(full, most_bytes=1).tidy("w")
    head = await world.snapshots.head("w")
    assert len(head.snapshots) == 1
    await put_back(world.snapshots, head.newest, world.folder / "again")


async def test_a_collection_beside_a_snapshot_takes_nothing_that_it_needs(world: World):
    """At every step of a snapshot, garbage is collected by somebody else."""

    class Tidied(Dying):
        def _die(self) -> None:
            pass

        async def put(self, key: str, data: bytes) -> None:
            await collect(world.blobs, "w")
            await super().put(key, data)
            await collect(world.blobs, "w")

        async def swap(self, key: str, data: bytes, version: str | None) -> str:
            await collect(world.blobs, "w")
            return await super().swap(key, data, version)

    for number in range(5):
        (world.home / f"{number}.bin").write_bytes(os.urandom(250_000))
        tidied = Snapshots(Tidied(world.blobs, 1000, after=False), keep=1)
        taken = await tidied.take("w", world.tree, 1)
        await collect(world.blobs, "w")
        await put_back(world.snapshots, taken.snapshot, world.folder / "again")
        assert picture(world.folder / "again") == picture(world.home)


async def test_a_fork_keeps_what_it_needs_though_its_origin_is_gone(world: World):
    (world.home / "old.bin").write_bytes(os.urandom(20_000))
    taken = await world.take()
    seen = picture(world.home)
    await world.snapshots.fork("w", taken.snapshot, "fork")
    await world.snapshots.delete("w")
    assert await collect(world.blobs, "w") == 0
    with pytest.raises(NotFound):
        await world.take()
    newest = (await world.snapshots.head("fork")).newest
    await put_back(world.snapshots, newest, world.folder / "other" / "home")
    assert picture(world.folder / "other" / "home") == seen
    (world.folder / "other" / "home" / "new").write_text("of the fork's own")
    later = await world.snapshots.take("fork", tree(world.folder / "other" / "home"), 1)
    assert later.stored < 10_000
    await collect(world.blobs, "w")
    await put_back(world.snapshots, later.snapshot, world.folder / "again")


async def test_a_deleted_workspace_leaves_nothing_but_the_note_that_it_was(world: World):
    (world.home / "file").write_text("content")
    await world.take()
    await world.snapshots.delete("w")
    await collect(world.blobs, "w")
    assert await world.keys() == {"workspaces/w/head"}


async def test_that_a_workspace_was_never_seen_is_noted_once_and_only_if_asked_for(world: World):
    await world.snapshots.delete("never")
    assert await world.keys() == set()
    await world.snapshots.delete("never", surely=True)
    head = await world.snapshots.head("never")
    assert head.deleted
    await world.snapshots.delete("never", surely=True)
    assert await world.snapshots.head("never") == head


async def test_a_damaged_snapshot_is_refused_and_the_place_is_as_it_was(world: World):
    (world.home / "file.bin").write_bytes(os.urandom(50_000))
    taken = await world.take()
    for key in await world.keys() - {"workspaces/w/head"}:
        path = world.folder / "blobs" / key
        good = path.read_bytes()
        for at in (0, len(good) // 2, len(good) - 1):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(SnapshotCorrupt):
                await put_back(world.snapshots, taken.snapshot, world.folder / "again")
            assert not (world.folder / "again").exists()
        path.write_bytes(good)
    await put_back(world.snapshots, taken.snapshot, world.folder / "again")


async def test_progress_is_told_from_nothing_to_all(world: World):
    for number in range(30):
        (world.home / f"{number}.bin").write_bytes(os.urandom(30_000))
    taken = await world.take()
    told: list[RestoreProgress] = []
    await put_back(world.snapshots, taken.snapshot, world.folder / "again", told.append)
    assert told[0] == RestoreProgress(0, 30, 0, 900_000)
    assert told[-1] == RestoreProgress(30, 30, 900_000, 900_000)
    assert len(told) > 3
    assert told == sorted(told, key=lambda progress: progress.bytes)


async def test_what_was_in_the_place_can_be_kept_aside(world: World):
    (world.home / "file").write_text("stored")
    taken = await world.take()
    (world.home / "file").write_text("never stored")
    async with restored(world.snapshots.fetch, taken.snapshot, world.tree) as whole:
        whole.staging.replace(keep=True)
    assert (world.home / "file").read_text() == "stored"
    assert (world.folder / ".home.aside" / "file").read_text() == "never stored"


async def test_a_workspace_with_too_many_files_is_refused(world: World):
    for number in range(12):
        (world.home / f"{number}").touch()
    small = Snapshots(world.blobs, limits=GatherLimits(entries=10))
    with pytest.raises(WorkspaceTooLarge):
        await small.take("w", world.tree, 1)
    assert await world.snapshots.head("w") == Head()
