"""Files on their way: a plan's volumes and mounts as an archive, and what was changed in a container put back.

Nothing in an archive that comes from a container is believed: every step is taken from an open directory, no link is
followed, and there is a limit to how much it may be, packed or unpacked, and to how long it may take. Of the forms that
an archive may have it is the plainest (GNU's, with long names): others keep lists in their headers, which have no end.
A file with large holes is sent without them, as a kind of member that both sides know (`WITH_HOLES`): a line says how
large it is and where there is data, and then comes the data. All of it blocks.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import secrets
import stat
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, Self

from roost import disk
from roost.errors import SandboxFailed
from roost.ports.sandbox_provider import Mount, Plan
from roost.ports.tree import Changed, Found
from roost.sandboxes.paths import open_at
from roost.sandboxes.pool.link import NONSENSE
from roost.sandboxes.tree.local import LocalTree
from roost.sandboxes.tree.read import extents
from roost.sandboxes.tree.walk import Walk, name_of

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SMALLEST_HOLE: Final = 64 * 1024
_MOST: Final = 64 * 1024**3
_MOST_MEMBERS: Final = 1_000_000
PART: Final = 32 * 1024**2
"""Bytes of an archive in one file."""
_PIECE: Final = 1024 * 1024
_MOST_CLOSED: Final = 100_000  # directories whose modes have to wait until all is in them
_LONGEST_HEADER: Final = 64 * 1024  # bytes: a path, or what a link leads to
_OF_A_MEMBER: Final = 16 * 1024  # bytes around a file: headers with both, and what fills blocks
_SECONDS: Final = 300.0
WITH_HOLES: Final = b"R"
_MOST_PIECES: Final = 1000  # of data in a file with holes
_LONG: Final = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_KINDS: Final = frozenset(
    {
        tarfile.REGTYPE,
        tarfile.AREGTYPE,
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        WITH_HOLES,
        *_LONG,
    }
)


class Place:
    """A directory or file of this machine, and what it is called inside.

    What is in a directory under one of the names in `hidden` stays here. So does what not everybody may read, unless
    the place `comes_back`: whoever is inside is nobody in particular on this machine.
    """

    def __init__(
        self, source: Path, target: str, *, comes_back: bool = False, hidden: Sequence[str] = ()
    ) -> None:
        self.source = source
        self.target = target
        self.is_folder = source.is_dir()
        self.comes_back = comes_back
        self._hidden = frozenset(os.fsencode(os.path.normpath(name)) for name in hidden)

    @property
    def is_shown(self) -> bool:
        """Whether anything of it is."""
        return self.comes_back or _is_public(self.source.stat().st_mode, is_folder=self.is_folder)

    def walk(self) -> Iterator[Found]:
        """What is in a directory, each directory before what is in it; those that are hidden are empty."""
        if not self.is_shown:
            return
        for found in Walk(self.source, _MOST_MEMBERS, self._is_closed):
            if isinstance(found, Found) and self._shows(found):
                yield found

    def _is_closed(self, found: Found) -> bool:
        return found.path in self._hidden or not self._is_readable(found)

    def _shows(self, found: Found) -> bool:
        if found.kind == "directory":
            return True
        return found.path not in self._hidden and self._is_readable(found)

    def _is_readable(self, found: Found) -> bool:
        is_folder = found.kind == "directory"
        return (
            self.comes_back
            or found.kind == "symlink"
            or _is_public(found.mode, is_folder=is_folder)
        )


def _is_public(mode: int, *, is_folder: bool) -> bool:
    wanted = stat.S_IROTH | (stat.S_IXOTH if is_folder else 0)
    return mode & wanted == wanted


def places(plan: Plan) -> list[Place]:
    """What a container is filled with: the volumes first."""
    made = [Place(plan.workspace.path, "/workspace", comes_back=True)]
    if plan.home != plan.workspace:
        made.append(Place(plan.home.path, "/home/sandbox", comes_back=True))
    taken = {each.source for each in made}
    # A second name of the workspace is the workspace.
    mounts: list[Mount] = [each for each in plan.mounts if each.source not in taken]
    made += [
        Place(each.source, each.target, comes_back=each.writable, hidden=each.hidden)
        for each in mounts
    ]
    return [each for each in made if each.source.exists() and (each.is_folder or each.is_shown)]


def digest(path: Path) -> str:
    """The sum of a file, which is remembered: programs are large, and many sandboxes get the same."""
    status = path.stat()
    return _digest(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _digest(path: Path, size: int, mtime: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pack(wanted: Sequence[Place], into: IO[bytes]) -> None:
    """Write an archive of these places: each is a number in it. :raises OSError:"""
    with (
        gzip.GzipFile(fileobj=into, mode="wb", compresslevel=1) as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        for index, place in enumerate(wanted):
            if place.is_folder:
                _pack_folder(archive, index, place)
            else:
                member = tarfile.TarInfo(str(index))
                with place.source.open("rb") as file:
                    status = os.fstat(file.fileno())
                    member.size, member.mode = status.st_size, stat.S_IMODE(status.st_mode)
                    member.mtime = int(status.st_mtime)
                    archive.addfile(member, file)


def _pack_folder(archive: tarfile.TarFile, index: int, place: Place) -> None:
    tree = LocalTree(place.source, place.source, range(0))
    for found in place.walk():
        member = tarfile.TarInfo(f"{index}/{os.fsdecode(found.path)}")
        member.mode, member.mtime = found.mode, found.mtime / 1e9
        try:
            if found.kind == "directory":
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif found.kind == "symlink":
                member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(tree.link(found))
                archive.addfile(member)
            else:
                with _Content(found) as content:
                    member.type = WITH_HOLES if content.head else tarfile.REGTYPE
                    member.size = content.size
                    archive.addfile(member, content)  # type: ignore[arg-type]  # it is read only
        except Changed:
            continue  # it is gone, or somebody is writing to it


class _Content:
    """A file of a tree, without its large holes; what it lacks of its size meanwhile is zeros.

    `head` is the line that says where there is data, if there are holes.

    :raises Changed: it is not the one that was found any more
    """

    def __init__(self, found: Found) -> None:
        try:
            self._file = os.open(name_of(found.path), _FILE, dir_fd=found.handle)
        except OSError:
            raise Changed from None
        try:
            status = os.fstat(self._file)
            if not stat.S_ISREG(status.st_mode) or status.st_size != found.size:
                raise Changed
            self._left = _data_in(self._file, status)
        except BaseException:
            os.close(self._file)
            raise
        is_whole = self._left == [(0, found.size)]
        self.head = b"" if is_whole else json.dumps([found.size, self._left]).encode() + b"\n"
        self.size = len(self.head) + sum(end - start for start, end in self._left)
        self._held = self.head

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def read(self, size: int) -> bytes:
        """The next bytes."""
        made, self._held = self._held[:size], self._held[size:]
        while len(made) < size and self._left:
            (start, end), *more = self._left
            wanted = min(size - len(made), end - start)
            made += os.pread(self._file, wanted, start).ljust(wanted, b"\0")
            self._left = more if start + wanted == end else [(start + wanted, end), *more]
        return made


def _data_in(file: int, status: os.stat_result) -> list[tuple[int, int]]:
    """Where there is data; the smaller holes count as such if there are many."""
    size, smallest = status.st_size, _SMALLEST_HOLE
    if not size or status.st_blocks * 512 >= size:
        return [(0, size)]
    while len(found := list(extents(file, size, smallest))) > _MOST_PIECES:
        smallest *= 4
    return found


def checked_parts(told: list[Any], most: int) -> list[tuple[str, int, int]]:
    """The parts of an archive, if they can be those of files that the disk has room for.

    :raises SandboxFailed: they cannot :raises ValueError: :raises TypeError: they are none
    """
    parts = [(str(name), int(size), int(check)) for name, size, check in told]
    if not all(0 < size <= PART for _, size, _ in parts):
        raise SandboxFailed("the container's files are in parts that cannot be")
    if len({name for name, _, _ in parts}) != len(parts):
        raise SandboxFailed("the container's files have a part twice")
    if sum(size for _, size, _ in parts) > most + PART:
        raise SandboxFailed("the container's files are over the limit of the disk")
    return parts


class Received:
    """Puts what was changed in a container into the directories that it was filled from."""

    def __init__(
        self, directories: Sequence[Path], most: int, *, members: int = _MOST_MEMBERS
    ) -> None:
        self._directories = directories
        self._members = members
        self._unpacked = _PIECE
        self._until = time.monotonic() + _SECONDS
        self.most = min(most or _MOST, _MOST)
        self._left = self.most

    def apply(self, archive: IO[bytes], gone: Sequence[Sequence[Any]]) -> None:
        """All of an archive; what is `gone` is removed first. :raises SandboxFailed: it cannot be"""
        try:
            for index, path in gone:
                self._remove(self._top(index), str(path))
            self._unpacked += self.most
            with (
                gzip.GzipFile(fileobj=archive) as unpacked,
                tarfile.open(
                    fileobj=_Measured(unpacked, self._measure), mode="r|", tarinfo=_Member
                ) as members,
            ):
                self._take(members)
        except (tarfile.TarError, zlib.error, EOFError, IndexError, *NONSENSE) as error:
            raise SandboxFailed(f"the container's files cannot be read: {error}") from error
        except OSError as error:
            raise SandboxFailed(f"the container's files cannot be stored: {error}") from error

    def _take(self, members: tarfile.TarFile) -> None:
        closed: list[tuple[Path, str, int]] = []
        while (member := members.next()) is not None:
            members.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
            self._count()
            number, _, path = member.name.partition("/")
            top = self._top(number)
            if not path:
                continue
            self._put(top, path, member, members)
            if not member.isdir():
                continue
            if member.mode & stat.S_IRWXU == stat.S_IRWXU:
                _settle(top, path, member.mode)
            else:
                closed.append((top, path, member.mode))
            if len(closed) > _MOST_CLOSED:
                raise SandboxFailed("the container has too many directories without rights")
        for top, path, mode in reversed(closed):
            _settle(top, path, mode)

    def _count(self) -> None:
        """One more entry of a directory."""
        self._members -= 1
        self._unpacked += _OF_A_MEMBER
        if self._members < 0:
            raise SandboxFailed("the container has too many files")

    def _measure(self, size: int) -> None:
        """So many bytes were unpacked."""
        self._unpacked -= size
        if self._unpacked < 0:
            raise SandboxFailed("the container's files are over the limit of the disk")
        if time.monotonic() > self._until:
            raise SandboxFailed("the container's files take too long to store")

    def _top(self, number: Any) -> Path:
        index = int(number)
        if index < 0:
            raise ValueError(f"there is no directory {index}")
        return self._directories[index]

    def _remove(self, directory: Path, path: str) -> None:
        folder, name = _split(path)
        with _Opened(directory, folder, writes=True) as at:
            if at is None:
                return
            try:
                if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                    _discard(at, name)
                else:
                    os.unlink(name, dir_fd=at)
            except FileNotFoundError:
                return

    def _put(
        self, directory: Path, path: str, member: tarfile.TarInfo, members: tarfile.TarFile
    ) -> None:
        folder, name = _split(path)
        with _Opened(directory, folder, writes=True, makes=self._count) as at:
            assert at is not None
            if member.isdir():
                _make(at, name)
            elif member.issym():
                _clear(at, name)
                os.symlink(member.linkname, name, dir_fd=at)
            elif member.isreg() or member.type == WITH_HOLES:
                self._spend(member.size)
                content = members.extractfile(member)
                assert content is not None
                size, pieces = self._pieces(content, member)
                _write(at, name, content, member, size, pieces)

    def _spend(self, size: int) -> None:
        """So many bytes are stored."""
        self._left -= size
        if self._left < 0:
            raise SandboxFailed("the container's files are over the limit of the disk")

    def _pieces(
        self, content: IO[bytes], member: tarfile.TarInfo
    ) -> tuple[int, Sequence[tuple[int, int]]]:
        """How large the file is, and where there is data in it. :raises ValueError: :raises TypeError: it is none"""
        if member.type != WITH_HOLES:
            return member.size, [(0, member.size)]
        head = content.readline(_LONGEST_HEADER)
        size, told = json.loads(head)
        if size > self.most:
            raise SandboxFailed("the container's files are over the limit of the disk")
        pieces, at = [(int(start), int(end)) for start, end in told], 0
        for start, end in pieces:
            if not at <= start < end <= size:
                raise ValueError("a file whose data is nowhere")
            at = end
        if len(head) + sum(end - start for start, end in pieces) != member.size:
            raise ValueError("a file that has more or less data than it says")
        return int(size), pieces


class _Member(tarfile.TarInfo):
    """A member of an archive, of a kind that needs no more memory than its header's size."""

    # The library says that this may be overridden. Every version calls it for each header; `frombuf` is not called by newer ones.
    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        """:raises SandboxFailed: it is another kind"""
        is_long = self.type in _LONG and self.size > _LONGEST_HEADER
        if self.type not in _KINDS or self.size < 0 or is_long:
            raise SandboxFailed("the container's files are in an archive of another form")
        return super()._proc_member(archive)  # type: ignore[misc]


class _Measured(io.RawIOBase):
    """What is unpacked, piece by piece; each is told before it is given on."""

    def __init__(self, unpacked: gzip.GzipFile, tell: Callable[[int], None]) -> None:
        self._unpacked = unpacked
        self._tell = tell

    def read(self, size: int = -1) -> bytes:
        data = self._unpacked.read(size)
        self._tell(len(data))
        return data


def _write(
    at: int,
    name: str,
    content: IO[bytes],
    member: tarfile.TarInfo,
    size: int,
    pieces: Sequence[tuple[int, int]],
) -> None:
    made = f".roost-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(made, flags, 0o600, dir_fd=at)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for start, end in pieces:
                file.seek(start)
                while data := content.read(min(_PIECE, end - start)):
                    start += file.write(data)
            file.truncate(size)
            os.fchmod(descriptor, member.mode & 0o777)
            os.utime(descriptor, (member.mtime, member.mtime))
        _clear(at, name, only_folders=True)
        os.rename(made, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        os.unlink(made, dir_fd=at)
        raise


def _make(at: int, name: str) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=at)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=at)
            os.mkdir(name, 0o755, dir_fd=at)


def _clear(at: int, name: str, *, only_folders: bool = False) -> None:
    """Make room for something else under this name."""
    try:
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        _discard(at, name)
    elif not only_folders:
        os.unlink(name, dir_fd=at)


def _discard(at: int, name: str) -> None:
    """Remove a directory with all that is in it."""
    disk.remove(Path(f"/proc/self/fd/{at}/{name}"))


def _settle(top: Path, path: str, mode: int) -> None:
    folder, name = _split(path)
    with _Opened(top, f"{folder}/{name}" if folder else name) as at:
        if at is not None:
            os.fchmod(at, mode & 0o777)


def _split(path: str) -> tuple[str, str]:
    """:raises ValueError: it is not a path below a directory"""
    parts = path.rstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ValueError(f"not a path: {path[:100]!r}")
    return "/".join(parts[:-1]), parts[-1]


class _Opened:
    """A directory below another, open while the body runs; None if it is not there, and none is to be made.

    `makes` is called before one is. If the body `writes` in it, the owner may do so meanwhile, whatever its mode is.
    """

    def __init__(
        self,
        top: Path,
        path: str,
        *,
        writes: bool = False,
        makes: Callable[[], None] | None = None,
    ) -> None:
        self._top = top
        self._path = path
        self._writes = writes
        self._makes = makes
        self._at: int | None = None
        self._mode: int | None = None

    def __enter__(self) -> int | None:
        at = os.open(self._top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in filter(None, self._path.split("/")):
                inner = self._step(at, name)
                os.close(at)
                at = -1
                if inner is None:
                    return None
                at = inner
            mode = stat.S_IMODE(os.fstat(at).st_mode)
            if self._writes and mode & stat.S_IRWXU != stat.S_IRWXU:
                os.fchmod(at, mode | stat.S_IRWXU)
                self._mode = mode
        except BaseException:
            if at >= 0:
                os.close(at)
            raise
        self._at = at
        return at

    def _step(self, at: int, name: str) -> int | None:
        try:
            return open_at(at, name, _DIRECTORY)
        except OSError:
            if self._makes is None:
                return None
        self._makes()
        _make(at, name)
        return open_at(at, name, _DIRECTORY)

    def __exit__(self, *error: object) -> None:
        if self._at is None:
            return
        try:
            if self._mode is not None:
                os.fchmod(self._at, self._mode)
        finally:
            os.close(self._at)
