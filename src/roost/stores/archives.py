"""Archives as tar files, put together and taken apart in a directory that nobody else sees."""

from __future__ import annotations

import io
import logging
import os
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Literal, Protocol
from urllib.parse import quote

import msgspec
import zstandard

from roost.disk import free, remove
from roost.domain import snapshot
from roost.domain.archive import (
    CARD,
    FILES,
    LOG,
    LONGEST_LINE,
    MANIFEST,
    ArchiveMember,
    Card,
    card_of,
    check_name,
    decoded,
    entry_of,
    line_of,
)
from roost.domain.events import Entry, Micros
from roost.errors import BadArchive, DiskFull, TooLarge
from roost.ports.tree import Found, Skipped, Staging, Tree

_log = logging.getLogger(__name__)
_PIECE: Final = 1 << 20
_MOST_CARD: Final = 16 << 20
_MOST_MEMBERS: Final = 1_000_000
_MOST_NAMES: Final = 64 << 20  # bytes, of all names together: they are kept in memory
_MOST_HEADER: Final = 64 << 10  # bytes, of what stands before a member whose name is long
_WINDOW: Final = 128 << 20  # of memory, for whatever an archive says it needs
_HEADERS: Final = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_UNREADABLE: Final = (
    *(tarfile.TarError, zstandard.ZstdError, EOFError, ValueError, OSError),
    RecursionError,  # headers before headers, without end
)
_SPLIT: Final = "Split the directory, or remove what is not needed from it."


class FolderArchives:
    """`ports.archives.Archives`, in a directory of the server's own. `most`: bytes of an archive's content;
    `least_free`: bytes of the disk below which none is begun.
    """

    def __init__(
        self, folder: Path, tree_at: Callable[[Path], Tree], *, most: int, least_free: int = 0
    ) -> None:
        self._folder = folder
        self._tree_at = tree_at
        self._most = most
        self._least_free = least_free
        _remove(folder)  # what a server that was killed has left

    @contextmanager
    def bench(self) -> Generator[FolderBench, None, None]:
        if free(self._folder) < self._least_free:
            raise DiskFull(f"there are fewer than {self._least_free} bytes free for an archive")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            (path / FILES).mkdir(mode=0o755)
            yield FolderBench(path, self._tree_at(path / FILES), self._most)
        finally:
            _remove(path)


def _remove(path: Path) -> None:
    """Remove it, or leave it for the next start: neither a start nor an answer depends on it."""
    try:
        remove(path)
    except OSError as error:
        _log.warning("cannot remove %s: %s", path, error, extra={"action": "archive"})


class FolderBench:
    """A `ports.archives.Bench` in a directory of this machine."""

    def __init__(self, path: Path, tree: Tree, most: int) -> None:
        self.tree = tree
        self.folder = path / FILES
        self._path = path
        self._most = most
        self._now: Micros = 0

    def log(self, entries: Iterable[Entry]) -> None:
        with (self._path / LOG).open("ab") as out:
            out.writelines(line_of(entry) for entry in entries)

    def pack(self, card: Card) -> BinaryIO:
        made = self._path / "archive"
        (self._path / LOG).touch()
        with (
            made.open("wb") as raw,
            zstandard.ZstdCompressor(3).stream_writer(raw) as out,
            tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            _Packer(tar, self.tree, self._most).pack(self._path, card)
        return made.open("rb")

    def unpack(self, archive: BinaryIO, now: Micros) -> Card:
        self._now = now
        try:
            opener = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
            with opener.stream_reader(archive, closefd=False) as raw:
                bounded = _Bounded(raw, self._most)
                with tarfile.open(fileobj=bounded, mode="r|", tarinfo=_Info) as tar:
                    card = self._unpacked(tar)
        except _UNREADABLE as error:
            raise BadArchive(f"the archive cannot be read: {error}") from None
        for _ in self.entries():  # each is looked at before any is believed
            pass
        return card

    def _unpacked(self, tar: tarfile.TarFile) -> Card:
        with self.tree.staging("archive", (os.geteuid(), os.getegid())) as staging:
            card = _Unpacker(tar, self._path, staging).unpack()
            staging.finish(0o755, self._now * 1000)
            staging.replace(keep=False)
        return card

    def entries(self) -> Iterable[Entry]:
        return _Log(self._path / LOG, self._now)


class _Log:
    """A log in a file, read anew each time."""

    def __init__(self, path: Path, now: Micros) -> None:
        self._path = path
        self._now = now

    def __iter__(self) -> Iterator[Entry]:
        latest = seq = 0
        with self._path.open("rb") as lines:
            while line := lines.readline(LONGEST_LINE):
                seq += 1
                entry = entry_of(line, seq, latest, self._now)
                latest = entry.at
                yield entry


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Bounded(io.RawIOBase):
    """A stream that ends in an error when it has given too much."""

    def __init__(self, inner: IO[bytes], most: int) -> None:
        self._inner = inner
        self._left = self._most = most

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(min(size if size >= 0 else _PIECE, _PIECE))
        self._left -= len(data)
        if self._left < 0:
            raise TooLarge(f"there are more than {self._most} bytes in the archive")
        return data


class _Info(tarfile.TarInfo):
    """A member's header, from a stranger: the library would read one of any size into memory."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type in _HEADERS and self.size > _MOST_HEADER:
            raise BadArchive(f"a header of the archive has more than {_MOST_HEADER} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse_sparse()
        return super()._proc_member(tar)  # type: ignore[misc]

    def _refuse_sparse(self, *_: object) -> None:
        raise BadArchive(f"{self.name[:200]!r} is sparse, which archives of sessions never are")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class _Members:
    """What an archive has in it, in order, within what a server that reads it keeps in memory."""

    def __init__(self) -> None:
        self.listed: list[ArchiveMember] = []
        self._names = 0

    def add(self, name: str, size: int, digest: str) -> None:
        """Add an entry to the list that is held in memory, which is bounded.

        :raises TooLarge: there are too many, or their names are too long
        """
        written = quote(os.fsencode(name))  # a name of any bytes, as text
        self._names += len(written)
        if len(self.listed) >= _MOST_MEMBERS:
            raise TooLarge(
                f"there are more than {_MOST_MEMBERS} members in the archive", hint=_SPLIT
            )
        if self._names > _MOST_NAMES:
            raise TooLarge(
                f"the names in the archive have more than {_MOST_NAMES} bytes", hint=_SPLIT
            )
        self.listed.append(ArchiveMember(written, size, digest))


class _Packer:
    def __init__(self, tar: tarfile.TarFile, tree: Tree, most: int) -> None:
        self._tar = tar
        self._tree = tree
        self._left = self._most = most
        self._members = _Members()

    def pack(self, path: Path, card: Card) -> None:
        self._add_bytes(CARD, msgspec.json.encode(card))
        with (path / LOG).open("rb") as log:
            self._add(tarfile.TarInfo(LOG), os.fstat(log.fileno()).st_size, log)
        for found in self._tree.walk():
            if not isinstance(found, Skipped):
                self._add_found(f"{FILES}/{os.fsdecode(found.path)}", found)
        self._add_bytes(MANIFEST, msgspec.json.encode(self._members.listed))

    def _add_found(self, name: str, found: Found) -> None:
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = found.mode & 0o777, found.mtime // 1_000_000_000
        if found.kind == "file":
            self._add(info, found.size, _Content(self._tree.read(found)))
            return
        if found.kind == "symlink":
            target = self._tree.link(found)
            info.type, info.linkname = tarfile.SYMTYPE, os.fsdecode(target)
            self._members.add(name, 0, sha256(target).hexdigest())
        else:
            info.type = tarfile.DIRTYPE
            self._members.add(name, 0, "")
        self._tar.addfile(info)

    def _add(self, info: tarfile.TarInfo, size: int, content: _Readable) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                f"the session has more than {self._most} bytes, which no server would import",
                hint="Remove what is not needed from its files, or raise ROOST_MAX_FILE_BYTES.",
            )
        info.size, hashed = size, _Hashed(content)
        self._tar.addfile(info, hashed)
        self._members.add(info.name, size, hashed.digest.hexdigest())

    def _add_bytes(self, name: str, data: bytes) -> None:
        self._add(tarfile.TarInfo(name), len(data), io.BytesIO(data))


class _Content(io.RawIOBase):
    """Pieces of a file, and holes in it, as one stream, which gives as much as it is asked for."""

    def __init__(self, pieces: Iterator[bytes | int]) -> None:
        self._pieces = pieces
        self._hole = 0
        self._data = b""

    def read(self, size: int = -1) -> bytes:
        found = bytearray()
        while len(found) < size and self._more():
            left = size - len(found)
            if self._hole:
                taken = min(self._hole, left)
                found += bytes(taken)
                self._hole -= taken
            else:
                found += self._data[:left]
                self._data = self._data[left:]
        return bytes(found)

    def _more(self) -> bool:
        while not self._hole and not self._data:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._hole, self._data = (piece, b"") if isinstance(piece, int) else (0, piece)
        return True


class _Hashed(io.RawIOBase):
    def __init__(self, inner: _Readable) -> None:
        self._inner = inner
        self.digest = sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(size)
        self.digest.update(data)
        return data


class _Unpacker:
    """Takes members as they come: each in a directory that it has made itself, over no link."""

    def __init__(self, tar: tarfile.TarFile, path: Path, staging: Staging) -> None:
        self._tar = tar
        self._path = path
        self._staging = staging
        self._members = _Members()
        self._kinds: dict[str, str] = {FILES: "directory"}
        self._folders: list[snapshot.TreeEntry] = []
        self._card: Card | None = None
        self._listed: list[ArchiveMember] | None = None

    def unpack(self) -> Card:
        for info in self._tar:
            if self._listed is not None:
                raise BadArchive(f"the archive has data after {MANIFEST}")
            self._take(info)
        if self._card is None or self._listed is None or self._listed != self._members.listed:
            raise BadArchive("the archive is incomplete: its contents do not match its manifest")
        for entry in reversed(self._folders):
            self._staging.settle(entry)
        return self._card

    def _take(self, info: tarfile.TarInfo) -> None:
        taken = len(self._members.listed)
        if info.name == CARD and not taken:
            data = self._small(info)
            self._card = card_of(data)
            self._note(info, sha256(data).hexdigest())
        elif info.name == LOG and taken == 1 and info.isreg():
            with (self._path / LOG).open("xb") as out:
                self._copy(info, lambda at, data: out.write(data))
        elif info.name == MANIFEST:
            self._listed = decoded(self._small(info), list[ArchiveMember], MANIFEST)
        else:
            self._take_file(info)

    def _take_file(self, info: tarfile.TarInfo) -> None:
        check_name(info.name)
        parent = info.name.rpartition("/")[0]
        if info.name in self._kinds or self._kinds.get(parent) != "directory":
            raise BadArchive(f"the archive has an unknown member {info.name[:200]!r}")
        if info.isreg():
            self._kinds[info.name] = "file"
            self._write(info, _entry(info, "file", info.mode & 0o777))
        elif info.isdir():
            self._kinds[info.name] = "directory"
            entry = _entry(info, "directory", info.mode & 0o777 | 0o700)
            self._staging.directory(entry)
            self._folders.append(entry)
            self._note(info, "")
        elif info.issym() and 0 < len(info.linkname) <= 4095 and "\0" not in info.linkname:
            self._kinds[info.name] = "symlink"
            entry = _entry(info, "symlink", 0o777)
            self._staging.link(entry)
            self._note(info, sha256(entry.target).hexdigest())
        else:
            raise BadArchive(f"{info.name[:200]!r} is no file, directory or symbolic link")

    def _write(self, info: tarfile.TarInfo, entry: snapshot.TreeEntry) -> None:
        def write(at: int, data: bytes) -> None:
            self._staging.write(entry, at, data, last=at + len(data) == info.size)

        if not info.size:
            write(0, b"")
        self._copy(info, write)

    def _copy(self, info: tarfile.TarInfo, write: Callable[[int, bytes], object]) -> None:
        content, digest, at = self._tar.extractfile(info), sha256(), 0
        if content is None:
            raise BadArchive(f"{info.name[:200]!r} cannot be read")
        while piece := content.read(_PIECE):
            digest.update(piece)
            write(at, piece)
            at += len(piece)
        self._note(info, digest.hexdigest())

    def _small(self, info: tarfile.TarInfo) -> bytes:
        content = self._tar.extractfile(info) if info.isreg() else None
        if content is None or info.size > _MOST_CARD * (16 if info.name == MANIFEST else 1):
            raise BadArchive(f"{info.name}: this is not one")
        return content.read()

    def _note(self, info: tarfile.TarInfo, digest: str) -> None:
        self._members.add(info.name, info.size if info.isreg() else 0, digest)


def _entry(
    info: tarfile.TarInfo, kind: Literal["directory", "file", "symlink"], mode: int
) -> snapshot.TreeEntry:
    return snapshot.TreeEntry(
        kind=kind,
        path=os.fsencode(info.name.removeprefix(f"{FILES}/")),
        mode=mode,
        mtime=_moment(info) * 1_000_000_000,
        size=info.size if kind == "file" else 0,
        target=os.fsencode(info.linkname) if kind == "symlink" else b"",
    )


def _moment(info: tarfile.TarInfo) -> int:
    return min(max(int(info.mtime), 0), 1 << 33)
