"""Archives of sessions: what goes in comes out, and what is wrong with one is found before it is used."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from roost.domain.archive import ArchiveMember, Card, entry_of, line_of
from roost.domain.events import PRIVATE, Entry
from roost.errors import BadArchive, DiskFull, TooLarge
from roost.ports.drafts import new_draft
from roost.ports.tree import Found
from roost.sandboxes.tree import LocalTree
from roost.stores.archives import FolderArchives, FolderBench

NOW = 1_800_000_000_000_000
UUID = "6f1d6f0e-5d0b-4c53-9d0a-2f4b8a3c7e19"


def archives(folder: Path, most: int = 1 << 30) -> FolderArchives:
    return FolderArchives(
        folder, lambda path: LocalTree(path, path.parent / "notes", range(0)), most=most
    )


def entries(*texts: str) -> list[Entry]:
    drafts = [new_draft("user.message", content=[{"type": "text", "text": t}]) for t in texts]
    return [Entry(n, d.id, d.type, d.body, NOW - 100 + n) for n, d in enumerate(drafts, 1)]


def made(folder: Path, fill: Callable[[FolderBench], None], **card: Any) -> bytes:
    with archives(folder).bench() as bench:
        fill(bench)
        with bench.pack(Card(sdk_session_id=UUID, **card)) as archive:
            return archive.read()


def test_what_goes_in_comes_out(tmp_path: Path):
    log = entries("one", "zwei \N{SNOWMAN}")

    def fill(bench: FolderBench) -> None:
        bench.log(log)
        inside = bench.folder / "folder"
        inside.mkdir()
        (inside / "file").write_bytes(b"\0" * 3_000_000 + b"end")
        (inside / "file").chmod(0o640)
        os.utime(inside / "file", (1_000_000, 1_000_000))
        (bench.folder / os.fsdecode(b"odd \xff name")).write_text("mine")
        (bench.folder / "link").symlink_to("/etc/passwd")
        (bench.folder / "empty").mkdir()
        os.mkfifo(bench.folder / "pipe")

    data = made(tmp_path / "a", fill, title="mine", metadata={"a": "b"})
    with archives(tmp_path / "b").bench() as bench:
        card = bench.unpack(io.BytesIO(data), NOW)
        assert (card.title, card.metadata, card.sdk_session_id) == ("mine", {"a": "b"}, UUID)
        assert list(bench.entries()) == log == list(bench.entries())
        file = bench.folder / "folder" / "file"
        assert file.read_bytes() == b"\0" * 3_000_000 + b"end"
        assert (file.stat().st_mode & 0o777, file.stat().st_mtime) == (0o640, 1_000_000)
        assert os.readlink(bench.folder / "link") == "/etc/passwd"  # noqa: PTH115
        found = {os.fsencode(path.name) for path in bench.folder.iterdir()}
        assert found == {b"folder", b"odd \xff name", b"link", b"empty"}
    assert list((tmp_path / "b").iterdir()) == []


@pytest.mark.parametrize("spoil", ["cut", "flipped", "empty", "no archive", "without its end"])
def test_a_damaged_archive_is_refused(tmp_path: Path, spoil: str):
    def fill(bench: FolderBench) -> None:
        bench.log(entries("one"))
        (bench.folder / "file").write_bytes(os.urandom(100_000))

    data = bytearray(made(tmp_path / "a", fill))
    if spoil == "flipped":
        data[len(data) // 2] ^= 1
    spoilt = {
        "cut": bytes(data[: len(data) // 2]),
        "flipped": bytes(data),
        "empty": b"",
        "no archive": b"PK\3\4 something else",
        "without its end": zstandard.compress(zstandard.decompress(data, 1 << 24)[:102_000]),
    }[spoil]
    with archives(tmp_path / "b").bench() as bench, pytest.raises(BadArchive):
        bench.unpack(io.BytesIO(spoilt), NOW)


def tar_of(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """An archive by hand, with a manifest that is right about what is in it."""
    out, listed = io.BytesIO(), []
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            kept = data if info.isreg() else info.linkname.encode()
            digest = "" if info.isdir() else sha256(kept).hexdigest()
            listed.append(ArchiveMember(info.name, len(data), digest))
        manifest = tarfile.TarInfo("manifest.json")
        said = msgspec.json.encode(listed)
        manifest.size = len(said)
        tar.addfile(manifest, io.BytesIO(said))
    return zstandard.compress(out.getvalue())


def named(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


CARD = (named("about.json"), msgspec.json.encode(Card(sdk_session_id=UUID)))
LOG = (named("log.jsonl"), b"")


in_each_other = pytest.mark.parametrize(
    ("levels", "name"),
    [
        pytest.param(1_200, "four", marks=pytest.mark.no_cover),
        pytest.param(15_000, "d", marks=pytest.mark.chaos),
    ],
)
"""Directories: more than a path has room for, or a program can call itself."""

named_so = pytest.mark.parametrize(
    "name",
    [pytest.param("four", marks=pytest.mark.no_cover), pytest.param("d", marks=pytest.mark.chaos)],
)

LONGEST = 4095
"""Bytes of a path."""


@contextmanager
def deepest_of(folder: Path, depth: int, name: str) -> Generator[int, None, None]:
    """So many directories in each other; the innermost is open."""
    at = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(depth):
            os.mkdir(name, dir_fd=at)
            inner = os.open(name, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = inner
        yield at
    finally:
        os.close(at)


def refused(tmp_path: Path, data: bytes, most: int = 1 << 30) -> str:
    outside = tmp_path / "outside"
    outside.mkdir()
    with archives(tmp_path / "b", most).bench() as bench:
        with pytest.raises((BadArchive, TooLarge)) as error:
            bench.unpack(io.BytesIO(data), NOW)
        assert list(outside.iterdir()) == []
    return error.value.message


@pytest.mark.parametrize(
    "member",
    [
        named("files/../../outside/file"),
        named("/etc/passwd"),
        named("files//file"),
        named("files/./file"),
        named("elsewhere/file"),
        named("files/folder/file"),  # in a directory that is not there
        named("files/pipe", tarfile.FIFOTYPE),
        named("files/device", tarfile.CHRTYPE),
        named("files/other", tarfile.LNKTYPE, "/etc/passwd"),
        named("files/" + "x/" * 2050 + "x"),
        named("about.json"),
        named("log.jsonl"),
    ],
    ids=lambda info: info.name[:30],
)
def test_members_that_lead_elsewhere_are_refused(tmp_path: Path, member: tarfile.TarInfo):
    refused(tmp_path, tar_of([CARD, LOG, (member, b"")]))


def test_nothing_is_written_through_a_link(tmp_path: Path):
    link = named("files/link", tarfile.SYMTYPE, str(tmp_path / "outside"))
    refused(tmp_path, tar_of([CARD, LOG, (link, b""), (named("files/link/file"), b"x")]))


def test_a_name_is_taken_once(tmp_path: Path):
    twice = [(named("files/file"), b"one"), (named("files/file"), b"two")]
    refused(tmp_path, tar_of([CARD, LOG, *twice]))


def test_an_archive_that_grows_without_end_is_refused(tmp_path: Path):
    bomb = [(named(f"files/{n}"), b"\0" * 1_000_000) for n in range(20)]
    data = tar_of([CARD, LOG, *bomb])
    assert len(data) < 100_000
    assert "more than 5000000 bytes" in refused(tmp_path, data, most=5_000_000)


@named_so
def test_directories_as_deep_as_a_path_goes_come_out_as_they_went_in(tmp_path: Path, name: str):
    fit = (LONGEST - 1) // (len(name) + 1)

    def fill(bench: FolderBench) -> None:
        with deepest_of(bench.folder, fit, name) as at:
            os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0o640, dir_fd=at))

    data = made(tmp_path / "a", fill)
    with archives(tmp_path / "b").bench() as bench:
        bench.unpack(io.BytesIO(data), NOW)
        found = [one.path for one in bench.tree.walk() if isinstance(one, Found)]
    assert (len(found), found[-1]) == (fit + 1, f"{name}/".encode() * fit + b"f")
    assert list((tmp_path / "b").iterdir()) == []


@named_so
def test_directories_deeper_than_any_path_are_refused_and_nothing_is_left(
    tmp_path: Path, name: str
):
    nest = [
        (named("files" + f"/{name}" * depth, tarfile.DIRTYPE), b"")
        for depth in range(1, LONGEST // (len(name) + 1) + 50)
    ]
    assert f"{LONGEST} bytes" in refused(tmp_path, tar_of([CARD, LOG, *nest]))
    assert list((tmp_path / "b").iterdir()) == []


@in_each_other
def test_of_directories_deeper_than_any_path_an_archive_has_what_has_one(
    tmp_path: Path, levels: int, name: str
):
    def fill(bench: FolderBench) -> None:
        with deepest_of(bench.folder, levels, name):
            pass

    data = made(tmp_path / "a", fill)
    with archives(tmp_path / "b").bench() as bench:
        bench.unpack(io.BytesIO(data), NOW)
        paths = [one.path for one in bench.tree.walk() if isinstance(one, Found)]
    assert len(paths) == (LONGEST + 1) // (len(name) + 1)
    assert list((tmp_path / "a").iterdir()) == []


@in_each_other
def test_what_a_killed_server_has_left_is_removed_however_deep_it_is(
    tmp_path: Path, levels: int, name: str
):
    left = tmp_path / "a" / "left"
    left.mkdir(parents=True)
    with deepest_of(left, levels, name):
        pass
    archives(tmp_path / "a")
    assert not left.exists()


def test_what_cannot_be_removed_does_not_stop_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "a" / "left").mkdir(parents=True)
    monkeypatch.setattr("roost.stores.archives.remove", refuse)
    archives(tmp_path / "a")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path, kind: bytes):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        card = named("about.json")
        card.size = len(CARD[1])
        tar.addfile(card, io.BytesIO(CARD[1]))
        info = named("x", kind)
        info.size = 200_000_000
        out.write(info.tobuf(tarfile.USTAR_FORMAT))
        out.write(bytes(info.size))
    assert "more than 65536" in refused(tmp_path, zstandard.compress(out.getvalue()))


def test_headers_before_headers_without_end_are_refused(tmp_path: Path):
    out = io.BytesIO()
    for _ in range(5000):
        info = named("x", tarfile.XHDTYPE)
        record = b"18 comment=a word\n"
        info.size = len(record)
        out.write(info.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0"))
    refused(tmp_path, zstandard.compress(out.getvalue()))


def test_names_that_would_fill_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.stores.archives._MOST_NAMES", 10_000)
    many = [(named(f"files/{n}" + "x" * 240), b"") for n in range(100)]
    assert "10000 bytes" in refused(tmp_path, tar_of([CARD, LOG, *many]))


def test_more_than_a_server_would_take_in_is_not_packed(tmp_path: Path):
    with archives(tmp_path, 1_000_000).bench() as bench:
        with (bench.folder / "sparse").open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(TooLarge):
            bench.pack(Card())


def test_on_a_disk_that_is_nearly_full_none_is_begun(tmp_path: Path):
    def tree_at(path: Path) -> LocalTree:
        return LocalTree(path, path.parent / "notes", range(0))

    full = FolderArchives(tmp_path / "a", tree_at, most=1, least_free=1 << 60)
    with pytest.raises(DiskFull), full.bench():
        raise AssertionError("there is no room")


def test_a_newer_format_is_refused_and_says_so(tmp_path: Path):
    card = (named("about.json"), b'{"format": 99, "something": "new"}')
    assert "format 99" in refused(tmp_path, tar_of([card, LOG]))


@pytest.mark.parametrize(
    "card",
    [b"{}", b"[]", b'{"format": 0}', b'{"format": 1, "sdk_session_id": "../../x"}', b"\xff"],
)
def test_a_card_that_makes_no_sense_is_refused(tmp_path: Path, card: bytes):
    refused(tmp_path, tar_of([(named("about.json"), card), LOG]))


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"not json",
        b'{"type": "user.message", "id": "sevt_1", "at": 1}',
        b'{"type": "user.message", "id": "sevt_1", "at": 1, "content": "text"}',
        b'{"type": "user.message", "id": "sevt_1", "at": 1, "content": [{"type": "text"}]}',
        b'{"type": "user.message", "id": "../..", "at": 1, "content": []}',
        b'{"type": "worker.message", "id": "sevt_1", "at": 1}',
        b'{"type": "agent.tool_use", "id": "sevt_1", "at": 1, "name": "bash"}',
        b'{"type": "session.status_idle", "id": "sevt_1", "at": 1, "stop_reason": {}}',
        b'{"type": "session.status_idle", "id": "sevt_1", "at": 1}',
        b'{"type": "session.error", "id": "sevt_1", "at": 1, "error": "\\u0000"}',
    ],
)
def test_a_line_that_is_no_event_is_refused(tmp_path: Path, line: bytes):
    refused(tmp_path, tar_of([CARD, (named("log.jsonl"), line + b"\n")]))


def test_times_never_run_backwards_nor_ahead(tmp_path: Path):
    lines = [{"type": "session.usage", "id": f"sevt_{n}", "at": at} for n, at in enumerate(TIMES)]
    log = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    with archives(tmp_path).bench() as bench:
        bench.unpack(io.BytesIO(tar_of([CARD, (named("log.jsonl"), log)])), NOW)
        assert [entry.at for entry in bench.entries()] == [5, 5, 7, NOW, NOW]


TIMES = (5, 3, 7, NOW * 2, 8)


@pytest.mark.parametrize("kind", sorted(PRIVATE))
def test_an_entry_that_is_a_harnesss_own_is_not_taken_from_an_archive(kind: str):
    line = line_of(Entry(1, "sevt_1", kind, b"{}", 0))
    with pytest.raises(BadArchive, match="line 1 is not an event"):
        entry_of(line, 1, 0, NOW)
