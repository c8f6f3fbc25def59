"""Files from a container are not believed: they stay in their directory, and within their limit."""

from __future__ import annotations

import ctypes
import errno
import gzip
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from roost.errors import SandboxFailed
from roost.guest import commands
from roost.guest.commands import Files, Names
from roost.ports.sandbox_provider import LocalVolume, Mount, Plan
from roost.sandboxes.pool import transfer
from roost.sandboxes.pool.transfer import WITH_HOLES, Place, Received, pack, places

Member = tuple[tarfile.TarInfo, bytes]
_NOBODY = (65534, 65534) if os.geteuid() == 0 else (os.geteuid(), os.getegid())


def member(name: str, data: bytes = b"", **fields: object) -> Member:
    made = tarfile.TarInfo(name)
    made.size = len(data)
    for field, value in fields.items():
        setattr(made, field, value)
    return made, data


def archive(*members: Member, form: int = tarfile.GNU_FORMAT) -> io.BytesIO:
    file = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=file, mode="wb") as packed,
        tarfile.open(fileobj=packed, mode="w|", format=form) as made,
    ):
        for info, data in members:
            made.addfile(info, io.BytesIO(data))
    file.seek(0)
    return file


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("outside")
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.mark.parametrize(
    "path", ["../outside/file", "a/../../outside/file", "/etc/passwd", ".", "a//b", "a/./b"]
)
def test_a_path_that_leads_out_is_refused(home: Path, path: str) -> None:
    with pytest.raises(SandboxFailed, match="not a path"):
        Received([home], 0).apply(archive(member(f"0/{path}", b"x")), [])
    with pytest.raises(SandboxFailed, match="not a path"):
        Received([home], 0).apply(archive(), [[0, path]])
    assert (home.parent / "outside" / "file").read_text() == "outside"


def test_a_link_that_was_planted_is_not_followed(home: Path) -> None:
    plant = member("0/link", type=tarfile.SYMTYPE, linkname="../outside")
    received = Received([home], 0)
    received.apply(archive(plant, member("0/link/file", b"inside")), [])
    assert (home / "link" / "file").read_text() == "inside"
    assert (home.parent / "outside" / "file").read_text() == "outside"
    (home / "other").symlink_to("../outside")
    received.apply(archive(), [[0, "other/file"], [0, "missing"]])
    assert (home.parent / "outside" / "file").read_text() == "outside"
    received.apply(archive(), [[0, "other"], [0, "link"]])
    assert list(home.iterdir()) == []


def test_something_else_takes_the_place_of_what_was_there(home: Path) -> None:
    (home / "folder").mkdir()
    (home / "folder" / "file").write_text("file")
    (home / "file").write_text("file")
    folder = member("0/file", type=tarfile.DIRTYPE, mode=0o750)
    Received([home], 0).apply(
        archive(member("0/folder", b"new"), folder, member("0/file/in", b"1")), []
    )
    assert (home / "folder").read_text() == "new"
    assert (home / "file").stat().st_mode & 0o777 == 0o750
    assert (home / "file" / "in").read_text() == "1"


def test_only_files_directories_and_links_are_taken_and_no_set_uid(home: Path) -> None:
    odd = [member(f"0/odd{kind!r}", type=kind) for kind in (tarfile.FIFOTYPE, tarfile.CHRTYPE)]
    linked = member("0/hard", type=tarfile.LNKTYPE, linkname="/etc/passwd")
    Received([home], 0).apply(archive(*odd, linked, member("0/suid", b"x", mode=0o4755)), [])
    assert [path.name for path in home.iterdir()] == ["suid"]
    assert (home / "suid").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: io.BytesIO(b"not an archive"),
        lambda file: io.BytesIO(file.getvalue()[:-30]),
        lambda file: archive(member("7/file", b"x")),
        lambda file: archive(member("seven/file", b"x")),
        lambda file: archive(member("-1/file", b"x")),
        lambda file: archive(member("0/file", b"x", mtime=2**80)),
    ],
)
def test_what_is_no_archive_is_the_sandbox_s_failure(
    home: Path, spoil: Callable[[io.BytesIO], io.BytesIO]
) -> None:
    with pytest.raises(SandboxFailed):
        Received([home], 0).apply(spoil(archive(member("0/file", b"x" * 100_000))), [])


@pytest.mark.parametrize(
    "gone", [[[float("inf"), "x"]], [[float("nan"), "x"]], [[-1, "x"]], [[{}, "x"]], [5], ["0"]]
)
def test_what_is_gone_may_be_nonsense(home: Path, gone: list[list[object]]) -> None:
    with pytest.raises(SandboxFailed):
        Received([home], 0).apply(archive(), gone)


def test_more_than_the_disk_may_have_is_refused(home: Path) -> None:
    with pytest.raises(SandboxFailed, match="limit of the disk"):
        Received([home], 1000).apply(archive(member("0/much", b"x" * 1001)), [])
    assert list(home.iterdir()) == []


def test_more_entries_than_a_directory_may_have_are_refused(home: Path) -> None:
    links = [member(f"0/{n}", type=tarfile.SYMTYPE, linkname="x") for n in range(4)]
    with pytest.raises(SandboxFailed, match="too many files"):
        Received([home], 0, members=3).apply(archive(*links), [])
    assert len(list(home.iterdir())) == 3
    with pytest.raises(SandboxFailed, match="too many files"):
        Received([home], 0, members=3).apply(archive(member("0/a/b/c/d/e", b"x")), [])


def test_what_is_small_only_while_it_is_packed_is_refused(home: Path) -> None:
    zeros = bytes(40_000_000)
    for kind in (tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME):
        header, _ = member("0", type=kind)
        header.size = len(zeros)
        packed = io.BytesIO(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + zeros, 1))
        with pytest.raises(SandboxFailed, match=r"limit of the disk|another form"):
            Received([home], 1000).apply(packed, [])


@pytest.mark.parametrize(
    "odd",
    [
        member("0/file", b"x", pax_headers={"comment": "x" * 10}),
        member("0/file", b"x", type=tarfile.GNUTYPE_SPARSE),
    ],
)
def test_an_archive_of_another_form_is_refused(home: Path, odd: Member) -> None:
    with pytest.raises(SandboxFailed, match="another form"):
        Received([home], 0).apply(archive(odd, form=tarfile.PAX_FORMAT), [])


def test_names_in_names_have_an_end(home: Path) -> None:
    header, _ = member("0/x", type=tarfile.GNUTYPE_LONGNAME)
    packed = io.BytesIO(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) * 20_000, 1))
    with pytest.raises(SandboxFailed):
        Received([home], 0).apply(packed, [])


def test_storing_files_has_a_time_limit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_SECONDS", -1.0)
    with pytest.raises(SandboxFailed, match="take too long"):
        Received([home], 0).apply(archive(member("0/file", b"x")), [])


def test_a_long_name_comes_back(home: Path) -> None:
    path = "/".join(["d" * 200] * 5)
    Received([home], 0).apply(archive(member(f"0/{path}/\u00e9", b"x")), [])
    assert (home / path / "\u00e9").read_bytes() == b"x"


@pytest.fixture
def common() -> Iterator[Path]:
    """A directory that everybody can come to."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        (Path(made) / "home").mkdir()
        yield Path(made) / "home"


def test_what_is_in_directories_without_rights_comes_back(common: Path) -> None:
    """Also if the server is not root: here what it does counts as somebody else's."""
    home = common
    (home / "closed" / "in").mkdir(parents=True)
    for name in ("gone", "kept"):
        (home / "closed" / name).write_text(name)
    for folder in (home / "closed", home):
        folder.chmod(0o555)
        os.chown(folder, *_NOBODY)
    os.chown(home / "closed" / "in", *_NOBODY)
    made = [
        member("0/closed/kept", b"new"),
        member("0/fresh", type=tarfile.DIRTYPE, mode=0o555),
        member("0/fresh/file", b"file"),
    ]

    def apply() -> None:
        if os.geteuid() == 0:  # of this thread alone, which ends
            ctypes.CDLL(None).setfsuid(_NOBODY[0])
            with pytest.raises(PermissionError):
                (home / "closed" / "other").write_text("x")
        Received([home], 0).apply(archive(*made), [[0, "closed/gone"], [0, "closed/in"]])

    with ThreadPoolExecutor(1) as pool:
        pool.submit(apply).result()
    assert {p.name: p.read_text() for p in (home / "closed").iterdir()} == {"kept": "new"}
    assert (home / "fresh" / "file").read_text() == "file"
    for folder in (home, home / "closed", home / "fresh"):
        assert folder.stat().st_mode & 0o777 == 0o555
        folder.chmod(0o755)


def test_both_sides_mean_the_same_by_holes() -> None:
    assert commands.WITH_HOLES == WITH_HOLES


def test_an_archive_has_what_is_there_and_follows_nothing(home: Path) -> None:
    (home / "folder").mkdir()
    (home / "folder" / "file").write_text("file")
    (home / "link").symlink_to("../outside")
    single = home.parent / "outside" / "file"
    file = io.BytesIO()
    pack([Place(home, "/workspace"), Place(single, "/opt/one")], file)
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:gz") as made:
        assert sorted(made.getnames()) == ["0/folder", "0/folder/file", "0/link", "1"]
        assert made.getmember("0/link").linkname == "../outside"


def test_a_file_that_cannot_be_looked_into_is_closed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int, status: os.stat_result) -> None:
        opened.append(file)
        raise OSError(errno.EIO, "a bad disk")

    opened: list[int] = []
    (home / "file").write_text("x")
    monkeypatch.setattr(transfer, "_data_in", fail)
    with pytest.raises(OSError, match="a bad disk"):
        pack([Place(home, "/workspace", comes_back=True)], io.BytesIO())
    (file,) = opened
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_holes_are_not_sent_and_are_there_again_in_both_directions(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_MOST_PIECES", 10)
    monkeypatch.setattr(commands, "MOST_PIECES", 10)
    size = 50 * 1024**3
    for name, begins in (("holes", [0, 2**21, size - 3]), ("empty", []), ("many", range(15))):
        with (home / name).open("wb") as file:
            file.truncate(size if name != "many" else 15 * 2**18)
            for at in begins:
                file.seek(at * (2**18 if name == "many" else 1))
                file.write(b"end")
    exchange, inside = home.parent / "exchange", home.parent / "inside"
    for folder in (exchange, inside):
        folder.mkdir()
    names = Names()
    names.add("/workspace", str(inside))
    files = Files(names, {"folder": str(exchange)})
    with (exchange / "up-0").open("wb") as archive:
        pack([Place(home, "/workspace", comes_back=True)], archive)
    assert (exchange / "up-0").stat().st_size < 2**21
    files.unpack(["up-0"], ["/workspace"], wiped=["/workspace"], kept=["/workspace"])
    sums = []
    for folder in (home, inside):
        sums.append([piece_of(folder / "holes", at) for at in (0, 2**20, 2**21, size - 10)])
        assert (folder / "holes").stat().st_blocks * 512 < 2**21
        assert (folder / "empty").stat().st_size == size
    assert sums[0] == sums[1]
    assert (inside / "many").read_bytes() == (home / "many").read_bytes()
    with (inside / "holes").open("r+b") as file:
        file.seek(2**30)
        file.write(b"new")
    (inside / "many").touch()
    told = files.pack(1)
    assert told["changed"] == 2
    back = io.BytesIO(b"".join((exchange / name).read_bytes() for name, _, _ in told["parts"]))
    Received([home], 0).apply(back, told["gone"])
    assert [piece_of(home / "holes", at) for at in (0, 2**30)] == [
        b"end" + bytes(7),
        b"new" + bytes(7),
    ]
    assert (home / "holes").stat().st_blocks * 512 < 2**21
    assert (inside / "many").read_bytes() == (home / "many").read_bytes()
    with pytest.raises(SandboxFailed, match="limit of the disk"):
        back.seek(0)
        Received([home], 2**30).apply(back, [])


def piece_of(path: Path, at: int) -> bytes:
    with path.open("rb") as file:
        file.seek(at)
        return file.read(10)


@pytest.mark.parametrize(
    "head",
    [
        "",
        "{}",
        "[10]",
        "[10, [[0, 5], [4, 9]]]",
        "[10, [[0, 11]]]",
        "[10, [[-1, 3]]]",
        "[10, [[3, 3]]]",
        "[-1, []]",
        "[Infinity, []]",
        "[10, [[0, 9]]]",
        "[10, [[0, Infinity]]]",
        "[" * 60_000,
    ],
)
def test_a_file_with_holes_is_not_believed(home: Path, head: str) -> None:
    odd = member("0/file", f"{head}\nfour".encode(), type=WITH_HOLES)
    with pytest.raises(SandboxFailed):
        Received([home], 0).apply(archive(odd), [])
    assert list(home.iterdir()) == []


def packed(*places: Place) -> list[str]:
    file = io.BytesIO()
    pack(places, file)
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:gz") as made:
        return sorted(made.getnames())


def test_what_a_mount_hides_is_an_empty_directory(home: Path) -> None:
    for folder in (".private/deep", "notes/.private", "notes/deep/er"):
        (home / folder).mkdir(parents=True)
        (home / folder / "file").write_text("file")
    (home / "link").symlink_to("notes")
    hiding = Mount(home, "/vault", hidden=[".private", "notes/deep", "link", "missing"])
    (place,) = places(plan_with(home, hiding))[1:]
    assert packed(place) == [
        "0/.private",
        "0/notes",
        "0/notes/.private",
        "0/notes/.private/file",
        "0/notes/deep",
    ]


def test_of_a_mount_that_is_only_read_there_is_what_everybody_may_read(home: Path) -> None:
    for folder, mode in (("open", 0o755), ("listed", 0o754), ("own", 0o700)):
        (home / folder).mkdir()
        (home / folder / "file").write_text("file")
        (home / folder).chmod(mode)
    (home / "secret").write_text("secret")
    (home / "secret").chmod(0o640)
    (home / "link").symlink_to("secret")
    seen = packed(*places(plan_with(home, Mount(home, "/vault")))[1:])
    assert seen == ["0/link", "0/listed", "0/open", "0/open/file", "0/own"]
    writable = Mount(home, "/vault", writable=True)
    assert "0/secret" in packed(*places(plan_with(home, writable))[1:])
    secret = Mount(home / "secret", "/etc/secret")
    assert places(plan_with(home, secret))[1:] == []
    home.chmod(0o700)
    assert packed(*places(plan_with(home, Mount(home, "/vault")))[1:]) == []


def plan_with(home: Path, mount: Mount) -> Plan:
    volume = LocalVolume(home.parent / "outside")
    return Plan(session_id="sesn_1", generation=1, home=volume, workspace=volume, mounts=[mount])
