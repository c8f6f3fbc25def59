"""Trees that something in a sandbox has planted, and manifests that somebody has forged."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from tests.parts import need
from tests.workspaces.trees import picture, put_back, tree

from roost.blobs.folder import FolderBlobs
from roost.core.snapshots.gather import GatherLimits
from roost.core.snapshots.packs import Load, encode_entries, seal
from roost.core.snapshots.snapshots import Snapshots, TakenSnapshot
from roost.disk import remove
from roost.domain.snapshot import Manifest, Snapshot, Totals, TreeEntry, digest_of
from roost.errors import SnapshotCorrupt, WorkspaceTooLarge

SECRET = b"what only the host may know" * 100


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(FolderBlobs(tmp_path / "blobs"))


async def taken_and_put_back(snapshots: Snapshots, home: Path) -> TakenSnapshot:
    taken = await snapshots.take("w", tree(home), 1)
    await put_back(snapshots, taken.snapshot, home.parent / "again")
    return taken


async def test_links_to_the_hosts_files_stay_links(snapshots: Snapshots, home: Path):
    outside = home.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    (home / "file").symlink_to(outside / "secret")
    (home / "folder").symlink_to(outside)
    (home / "up").symlink_to("../outside")
    (home / "self").symlink_to("self")
    taken = await taken_and_put_back(snapshots, home)
    assert picture(home.parent / "again") == picture(home)
    assert taken.snapshot.totals == Totals(entries=4, bytes=0)


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def test_a_folder_exchanged_for_a_link_while_it_is_walked_leads_nowhere(
    snapshots: Snapshots, home: Path
):
    outside = home.parent / "outside"
    (outside / "a" / "b").mkdir(parents=True)
    (outside / "a" / "b" / "file").write_bytes(SECRET)
    (home / "x" / "a" / "b").mkdir(parents=True)
    (home / "x" / "a" / "b" / "file").write_bytes(b"mine")
    (home / "link").symlink_to(outside)

    def exchange() -> None:
        for one, other in (("x", "t"), ("link", "x"), ("x", "link"), ("t", "x")):
            (home / one).rename(home / other)

    with meanwhile(exchange):
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            taken = await snapshots.take("w", tree(home), 1)
            # It may be seen under both of its names; what lies outside is longer than that.
            assert taken.snapshot.totals.bytes < len(SECRET)
    assert not any(SECRET[:50] in blob.read_bytes() for blob in files_below(home.parent / "blobs"))


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_what_is_no_file_is_left_out_and_reported(snapshots: Snapshots, home: Path):
    (home / "file").write_text("content")
    os.mkfifo(home / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home / "socket"))
    wanted = {"fifo": 1, "socket": 1}
    if os.geteuid() == 0:
        os.mknod(home / "disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))
        os.mknod(home / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        wanted["device"] = 2
    taken = await taken_and_put_back(snapshots, home)
    assert taken.report.counts == wanted
    assert {skipped.path for skipped in taken.report.examples} >= {b"fifo", b"socket"}
    assert [path.name for path in (home.parent / "again").iterdir()] == ["file"]


async def test_a_terabyte_of_nothing_costs_nothing(snapshots: Snapshots, home: Path):
    with (home / "huge").open("wb") as file:
        for at in (0, 3 << 30, (1 << 40) - 5):
            file.seek(at)
            file.write(b"data!")
    taken = await taken_and_put_back(snapshots, home)
    assert taken.stored < 10_000
    again = home.parent / "again" / "huge"
    assert again.stat().st_size == 1 << 40
    assert again.stat().st_blocks < 1000
    with again.open("rb") as file:
        for at in (0, 3 << 30, (1 << 40) - 5):
            file.seek(at)
            assert file.read(5) == b"data!"
        file.seek(1 << 39)
        assert file.read(1000) == bytes(1000)


async def test_a_tree_deeper_than_any_path_is_cut_there_and_reported(
    snapshots: Snapshots, home: Path
):
    at = os.open(home, os.O_RDONLY)
    for level in range(1500):
        os.mkdir("deep", dir_fd=at)
        inner = os.open("deep", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
        if level % 100 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=at))
    os.close(at)
    taken = await taken_and_put_back(snapshots, home)
    assert taken.report.counts == {"long_path": 1}
    assert 800 < taken.snapshot.totals.entries < 850
    # And once more: what is in the way is removed, however deep it is.
    await put_back(snapshots, taken.snapshot, home)
    remove(home)
    remove(home.parent / "again")


async def test_too_many_files_are_refused_without_reading_them_all(home: Path, tmp_path: Path):
    small = Snapshots(FolderBlobs(tmp_path / "blobs"), limits=GatherLimits(entries=100))
    for number in range(300):
        (home / f"{number}").write_bytes(b"x")
    with pytest.raises(WorkspaceTooLarge):
        await small.take("w", tree(home), 1)
    assert (await small.head("w")).newest is None


async def test_a_file_that_is_written_to_is_never_stored_in_halves(
    snapshots: Snapshots, home: Path
):
    """Each writing fills the file with one letter: two letters are two halves."""
    pauses = cycle([True] * 20 + [False])
    letters = iter("abcdefghijklmnopqrstuvwxyz" * 100_000)
    (home / "file").write_bytes(b"0" * 300_000)
    await snapshots.take("w", tree(home), 1)

    def write() -> None:
        with (home / "file").open("r+b", buffering=0) as file:
            file.write(next(letters).encode() * 300_000)
        time.sleep(0.001 if next(pauses) else 0.05)

    seen = set()
    with meanwhile(write):
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            taken = await snapshots.take("w", tree(home), 1)
            await put_back(snapshots, taken.snapshot, home.parent / "again")
            content = (home.parent / "again" / "file").read_bytes()
            assert len(content) == 300_000
            assert len(set(content)) == 1
            seen.add(content[0])
    assert len(seen) > 1


FORGED = {
    "leads up": [TreeEntry("file", b"../evil")],
    "leads up inside": [TreeEntry("directory", b"a"), TreeEntry("file", b"a/../../evil")],
    "absolute": [TreeEntry("file", b"/tmp/evil")],
    "a dot": [TreeEntry("file", b"./evil")],
    "empty": [TreeEntry("file", b"")],
    "zero": [TreeEntry("file", b"a\0b")],
    "through a link": [TreeEntry("symlink", b"a", target=b"/tmp"), TreeEntry("file", b"a/evil")],
    "through a file": [TreeEntry("file", b"a"), TreeEntry("file", b"a/evil")],
    "no folder": [TreeEntry("file", b"a/evil")],
    "twice": [TreeEntry("symlink", b"a", target=b"/tmp/evil"), TreeEntry("file", b"a")],
    "out of order": [TreeEntry("file", b"b"), TreeEntry("file", b"a")],
    "a link to the host": [TreeEntry("link", b"a", target=b"../../../etc/passwd")],
    "a link to nothing": [TreeEntry("link", b"a", target=b"b")],
    "a link to a folder": [TreeEntry("directory", b"a"), TreeEntry("link", b"b", target=b"a")],
    "sizes": [TreeEntry("file", b"a", size=1 << 60)],
}


@pytest.mark.parametrize("entries", FORGED.values(), ids=FORGED.keys())
async def test_a_forged_snapshot_writes_nothing_outside(
    snapshots: Snapshots, home: Path, tmp_path: Path, entries: list[TreeEntry]
):
    load = Load("workspaces/w/packs/0-forged-0")
    segment = encode_entries(entries)
    part = load.add(digest_of(segment), segment)
    manifest = seal(
        Manifest(
            workspace="w",
            sequence=1,
            mode=0o755,
            mtime=0,
            owner=(0, 0),
            segments=(part,),
            packs=(load.key,),
            totals=Totals(),
        )
    )
    blobs = FolderBlobs(tmp_path / "blobs")
    await blobs.put(load.key, load.pack())
    await blobs.put("workspaces/w/snapshots/0-forged", manifest)
    forged = Snapshot(
        key="workspaces/w/snapshots/0-forged", digest=digest_of(manifest), sequence=1, at=0
    )
    place = tmp_path / "in" / "here" / "again"
    with pytest.raises(SnapshotCorrupt):
        await put_back(snapshots, forged, place)
    assert not place.exists()
    assert not [path for path in files_below(tmp_path) if path.name.startswith("evil")]


async def test_files_of_somebody_else_come_back_as_nobodys_who_lives_here(
    snapshots: Snapshots, home: Path
):
    need("root", os.geteuid() == 0, "sudo make test")
    for name, uid in (("root", 0), ("person", 1000), ("sandbox", 200_123)):
        (home / name).write_text(name)
        os.chown(home / name, uid, uid)
        (home / name).chmod(0o4755)
    os.chown(home, 200_007, 200_007)
    await taken_and_put_back(snapshots, home)
    again = home.parent / "again"
    found = {
        path.name: (path.stat().st_uid, path.stat().st_mode & 0o7777) for path in again.iterdir()
    }
    assert found == {"root": (0, 0o755), "person": (0, 0o755), "sandbox": (200_123, 0o4755)}
    assert again.stat().st_uid == 200_007


def plant(home: Path, folders: range, files: int) -> None:
    for folder in folders:
        (home / f"{folder}").mkdir()
        at = os.open(home / f"{folder}", os.O_RDONLY)
        for number in range(files):
            file = os.open(f"{number}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=at)
            os.write(file, b"%d/%d" % (folder, number))
            os.close(file)
        os.close(at)


def plant_traps(home: Path, outside: Path) -> None:
    """100 levels, 1 TB that is a hole, links out, devices."""
    deepest = home.joinpath(*["deep"] * 100)
    deepest.mkdir(parents=True)
    for folder in (home, deepest):
        (folder / "out").symlink_to(outside)
        os.mkfifo(folder / "fifo")
        with (folder / "huge").open("wb") as file:
            file.truncate(1 << 40)
        if os.geteuid() == 0:
            os.mknod(folder / "disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))


def step(name: str, home: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.workspaces.million", name, str(home)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    print(name, done.stdout)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.chaos
@pytest.mark.timeout(2400)
def test_a_million_files_are_stored_and_restored_in_little_memory_and_no_more_than_that(
    tmp_path: Path,
):
    home, outside = tmp_path / "home", tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    home.mkdir()
    plant(home, range(1000), 998)
    plant_traps(home, outside)
    first, second = step("take", home), step("take", home)
    assert first["entries"] == second["entries"] == 999_000 + 104
    assert first["left out"] == {"fifo": 2} | ({"device": 2} if os.geteuid() == 0 else {})
    assert (second["stored"], second["left out"]) == (0, first["left out"])
    restored = step("restore", home)
    again = tmp_path / "again"
    assert sum(1 for _ in os.scandir(again)) == 1003
    for folder in (0, 499, 999):
        names = sorted(path.name for path in (again / f"{folder}").iterdir())
        assert names == sorted(map(str, range(998)))
        assert (again / f"{folder}" / "997").read_text() == f"{folder}/997"
    assert again.joinpath(*["deep"] * 100, "huge").stat().st_size == 1 << 40
    plant(home, range(1000, 1001), 998)
    assert step("take", home)["refused"].startswith("the workspace has more than 1,000,000 files")
    place = step("open_sandbox", home)
    assert place["code"] == 0
    assert max(first["MiB"], second["MiB"]) < 500
    assert (restored["MiB"] < 1000, place["MiB"] < 50) == (True, True)
    assert not any(SECRET[:50] in blob.read_bytes() for blob in files_below(tmp_path / "blobs"))
    for each in (home, again):
        remove(each)
