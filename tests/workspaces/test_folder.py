"""Looking into a directory that a sandbox writes in, and putting files there, whatever it has planted."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
from tests.parts import need

from roost.errors import Conflict, InvalidRequest, NotFound
from roost.ports.folder import ListingPosition
from roost.sandboxes.tree import LocalFolder

UIDS = range(210_000, 210_100)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "homes" / "s").mkdir(parents=True)
    return tmp_path / "homes" / "s"


@pytest.fixture
def folder(home: Path) -> LocalFolder:
    return LocalFolder(home, UIDS, frozenset({".agent"}))


def read(folder: LocalFolder, path: str) -> bytes:
    content = folder.open(path)
    try:
        return content.read(0, content.item.size)
    finally:
        content.close()


def put(folder: LocalFolder, path: str, data: bytes = b"new", *, overwrite: bool = False) -> None:
    folder.put(path, BytesIO(data), overwrite=overwrite)


def test_directories_are_listed_first_and_page_by_page(folder: LocalFolder, home: Path):
    for name in ("b", "a", "Z"):
        (home / f"{name}.txt").write_text(name)
        (home / name).mkdir()
    seen: list[str] = []
    after: ListingPosition | None = None
    while True:
        listing = folder.list("", after, 2)
        seen += [item.name for item in listing.items]
        after = listing.more
        if after is None:
            break
    assert seen == ["Z", "a", "b", "Z.txt", "a.txt", "b.txt"]
    assert (listing.items[-1].size, listing.items[-1].kind) == (1, "file")


def test_a_directory_with_too_many_entries_is_cut_and_says_so(home: Path):
    for i in range(30):
        (home / f"{i:02}").touch()
    listing = LocalFolder(home, UIDS, most=20).list("", None, 50)
    assert listing.cut
    assert len(listing.items) == 20


def test_what_is_the_agents_own_is_not_there(folder: LocalFolder, home: Path):
    (home / ".agent").mkdir()
    (home / ".agent" / "transcript").write_text("private")
    assert folder.list("", None, 9).items == []
    for attempt in (
        lambda: folder.list(".agent", None, 9),
        lambda: folder.open(".agent/transcript"),
        lambda: put(folder, ".agent/settings"),
        lambda: folder.remove(".agent", recursive=True),
    ):
        with pytest.raises(NotFound):
            attempt()


def test_nothing_outside_is_read_or_written_over_links(folder: LocalFolder, home: Path):
    outside = home.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("the host's")
    (home / "file").symlink_to(outside / "secret")
    (home / "dir").symlink_to(outside)
    (home / "real").mkdir()
    (home / "real" / "up").symlink_to("../..")
    for path in ("file", "dir/secret", "real/up/outside/secret"):
        with pytest.raises(InvalidRequest):
            folder.open(path)
    for path in ("dir/new", "real/up/new", "dir/deep/er/new"):
        with pytest.raises((InvalidRequest, Conflict)):
            put(folder, path)
    for path in ("dir", "real/up"):
        with pytest.raises(InvalidRequest):
            folder.list(path, None, 9)
        with pytest.raises(InvalidRequest):
            folder.remove(f"{path}/secret", recursive=True)
    put(folder, "file", overwrite=True)  # the link itself is replaced
    folder.remove("dir", recursive=True)  # the link itself is removed
    assert (outside / "secret").read_text() == "the host's"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert read(folder, "file") == b"new"


@pytest.mark.parametrize("path", ["", ".", "..", "../x", "a/../b", "a//b", "./a", "a/."])
def test_a_path_is_named_in_one_way_only(folder: LocalFolder, home: Path, path: str):
    (home / "a").mkdir()
    for attempt in (lambda: folder.open(path), lambda: put(folder, path)):
        with pytest.raises(InvalidRequest):
            attempt()


def test_only_regular_files_are_read_and_nothing_waits(folder: LocalFolder, home: Path):
    os.mkfifo(home / "fifo")
    (home / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "s"))
        for name in ("fifo", "dir", "s"):
            with pytest.raises(InvalidRequest):
                folder.open(name)
    kinds = {item.name: item.kind for item in folder.list("", None, 9).items}
    assert kinds == {"dir": "directory", "fifo": "other", "s": "other"}


def test_a_name_that_is_no_text_is_shown_and_cannot_be_asked_for(folder: LocalFolder, home: Path):
    (home / os.fsdecode(b"caf\xe9")).touch()
    (item,) = folder.list("", None, 9).items
    assert (item.name, item.path) == ("caf\N{REPLACEMENT CHARACTER}", None)


def test_a_sparse_giant_is_read_piece_by_piece(folder: LocalFolder, home: Path):
    with (home / "giant").open("wb") as file:
        file.truncate(2**40)
    content = folder.open("giant")
    assert content.item.size == 2**40
    assert content.read(2**40 - 3, 1000) == b"\0\0\0"
    content.close()


def test_what_is_put_is_there_whole_and_beside_it_nothing_is_left(folder: LocalFolder, home: Path):
    put(folder, "a/b/c.txt", b"1")
    with pytest.raises(Conflict):
        put(folder, "a/b/c.txt", b"2")
    assert read(folder, "a/b/c.txt") == b"1"
    put(folder, "a/b/c.txt", b"2", overwrite=True)
    assert read(folder, "a/b/c.txt") == b"2"
    with pytest.raises(Conflict):
        put(folder, "a/b", overwrite=True)
    with pytest.raises((Conflict, InvalidRequest)):
        put(folder, "a/b/c.txt/d")
    assert list((home.parent / ".s.incoming").iterdir()) == []


def test_what_a_killed_server_was_writing_is_removed_and_what_is_written_now_is_not(
    folder: LocalFolder, home: Path
):
    beside = home.parent / ".s.incoming"
    put(folder, "first")
    (beside / "left").write_bytes(b"half")
    (beside / "link").symlink_to("/etc/passwd")
    (beside / "tree").mkdir()
    going_on, may_end = threading.Event(), threading.Event()

    class Slow(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            going_on.set()
            assert may_end.wait(30)
            return super().read(size)

    slow = threading.Thread(target=lambda: folder.put("slow", Slow(b"all of it"), overwrite=False))
    slow.start()
    assert going_on.wait(30)
    put(folder, "second")
    assert [path.name for path in beside.iterdir()] != []
    assert not {"left", "link", "tree"} & {path.name for path in beside.iterdir()}
    may_end.set()
    slow.join(30)
    assert read(folder, "slow") == b"all of it"
    assert list(beside.iterdir()) == []


def test_what_is_put_belongs_to_the_session(folder: LocalFolder, home: Path):
    need("root", os.geteuid() == 0, "root")
    os.chown(home, 210_007, 210_008)
    put(folder, "a/file")
    folder.make("b/c")
    for path in ("a", "a/file", "b", "b/c"):
        status = (home / path).lstat()
        assert (status.st_uid, status.st_gid) == (210_007, 210_008)
    assert stat.S_IMODE((home / "a/file").stat().st_mode) == 0o644
    os.chown(home, 0, 0)
    put(folder, "other")
    assert (home / "other").stat().st_uid == 0


def test_a_tree_is_removed_however_deep_and_only_if_asked(folder: LocalFolder, home: Path):
    dig = "import os\nfor _ in range(600): os.mkdir('d'); os.chdir('d')"
    subprocess.run([sys.executable, "-c", dig], cwd=home, check=True)
    with pytest.raises(Conflict):
        folder.remove("d", recursive=False)
    folder.remove("d", recursive=True)
    assert folder.list("", None, 9).items == []
    folder.make("empty")
    folder.remove("empty", recursive=False)
    with pytest.raises(NotFound):
        folder.remove("empty", recursive=True)


def test_a_directory_that_becomes_a_link_at_any_moment_never_leads_out(
    folder: LocalFolder, home: Path
):
    outside = home.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("the host's")
    (home / "at").mkdir()
    (home / "at" / "file").write_text("mine")
    (home / "link").symlink_to(outside)
    over = threading.Event()
    libc = ctypes.CDLL(None)
    both = os.fsencode(home / "at"), os.fsencode(home / "link")

    def exchange() -> None:
        while not over.is_set():
            assert libc.renameat2(-100, both[0], -100, both[1], 2) == 0  # RENAME_EXCHANGE

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(1500):
            with suppress(NotFound, InvalidRequest):
                assert read(folder, "at/file") == b"mine"
            with suppress(NotFound, InvalidRequest, Conflict):
                put(folder, "at/new", overwrite=True)
    finally:
        over.set()
        thread.join()
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "the host's"
