"""Archives as tar files, put together and taken apart in a directory that nobody else sees."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, BinaryIO, Final
from urllib.parse import quote

import msgspec
import zstandard

from roost.domain.archive import (
    CARD,
    FILES,
    LOG,
    LONGEST_LINE,
    MANIFEST,
    Card,
    Member,
    card_of,
    check_name,
    decoded,
    entry_of,
    line_of,
)
from roost.domain.events import Entry, Micros
from roost.errors import BadArchive, TooLarge
from roost.ports.tree import Tree

_PIECE: Final = 1 << 20
_MOST_CARD: Final = 16 << 20
_MOST_MEMBERS: Final = 1_000_000
_WINDOW: Final = 128 << 20  # of memory, for whatever an archive says it needs


class FolderArchives:
    """`ports.archives.Archives`, in a directory of the server's own. `most`: bytes of an archive's content."""

    def __init__(self, folder: Path, tree_at: Callable[[Path], Tree], *, most: int) -> None:
        self._folder = folder
        self._tree_at = tree_at
        self._most = most
        shutil.rmtree(folder, ignore_errors=True)  # what a server that was killed has left

    @contextmanager
    def bench(self) -> Generator[FolderBench, None, None]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as place:
            path = Path(place)
            (path / FILES).mkdir(mode=0o755)
            yield FolderBench(path, self._tree_at(path / FILES), self._most)


class FolderBench:
    """`ports.archives.Bench`."""

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
            _Packer(tar).pack(self._path, card)
        return made.open("rb")

    def unpack(self, archive: BinaryIO, now: Micros) -> Card:
        self._now = now
        try:
            opener = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
            with opener.stream_reader(archive, closefd=False) as raw:
                bounded = _Bounded(raw, self._most)
                with tarfile.open(fileobj=bounded, mode="r|") as tar:
                    card = _Unpacker(tar, self._path).unpack()
        except (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError, OSError) as error:
            raise BadArchive(f"the archive cannot be read: {error}") from None
        for _ in self.entries():  # each is looked at before any is believed
            pass
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


class _Packer:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._members: list[Member] = []

    def pack(self, path: Path, card: Card) -> None:
        self._add_bytes(CARD, msgspec.json.encode(card))
        self._add_file(LOG, path / LOG)
        for found in _walk(path / FILES):
            self._add_found(f"{FILES}/{found.relative_to(path / FILES)}", found)
        data = msgspec.json.encode(self._members)
        self._add_bytes(MANIFEST, data)

    def _add_found(self, name: str, path: Path) -> None:
        status = path.lstat()
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
        if stat.S_ISREG(status.st_mode):
            self._add_file(name, path, info)
            return
        if stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
            self._note(name, 0, sha256(os.fsencode(info.linkname)).hexdigest())
        else:
            info.type = tarfile.DIRTYPE
            self._note(name, 0, "")
        self._tar.addfile(info)

    def _add_file(self, name: str, path: Path, info: tarfile.TarInfo | None = None) -> None:
        info = info or tarfile.TarInfo(name)
        with path.open("rb") as content:
            info.size = os.fstat(content.fileno()).st_size
            hashed = _Hashed(content)
            self._tar.addfile(info, hashed)
        self._note(name, info.size, hashed.digest.hexdigest())

    def _add_bytes(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))
        self._note(name, len(data), sha256(data).hexdigest())

    def _note(self, name: str, size: int, digest: str) -> None:
        self._members.append(Member(_written(name), size, digest))


class _Hashed(io.RawIOBase):
    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner
        self.digest = sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(size)
        self.digest.update(data)
        return data


class _Unpacker:
    """Takes members as they come: each in a directory that it has made itself, over no link."""

    def __init__(self, tar: tarfile.TarFile, path: Path) -> None:
        self._tar = tar
        self._path = path
        self._members: list[Member] = []
        self._kinds: dict[str, str] = {FILES: "directory"}
        self._times: list[tuple[Path, int, int]] = []
        self._card: Card | None = None
        self._listed: list[Member] | None = None

    def unpack(self) -> Card:
        for number, info in enumerate(self._tar):
            if number > _MOST_MEMBERS:
                raise TooLarge(f"there are more than {_MOST_MEMBERS} members in the archive")
            if self._listed is not None:
                raise BadArchive(f"the archive goes on after {MANIFEST}")
            self._take(info)
        if self._card is None or self._listed is None or self._listed != self._members:
            raise BadArchive("the archive is not whole: what is in it is not what it says is in it")
        for path, mode, mtime in reversed(self._times):
            path.chmod(mode)
            os.utime(path, (mtime, mtime))
        return self._card

    def _take(self, info: tarfile.TarInfo) -> None:
        if info.name == CARD and not self._members:
            data = self._small(info)
            self._card = card_of(data)
            self._note(info, sha256(data).hexdigest())
        elif info.name == LOG and len(self._members) == 1 and info.isreg():
            self._write(info, self._path / LOG)
        elif info.name == MANIFEST:
            self._listed = decoded(self._small(info), list[Member], MANIFEST)
        else:
            self._take_file(info)

    def _take_file(self, info: tarfile.TarInfo) -> None:
        check_name(info.name)
        parent = info.name.rpartition("/")[0]
        if info.name in self._kinds or self._kinds.get(parent) != "directory":
            raise BadArchive(f"the archive has no place for {info.name[:200]!r}")
        path = self._path / info.name
        if info.isreg():
            self._kinds[info.name] = "file"
            self._write(info, path)
            self._settle(info, path)
        elif info.isdir():
            self._kinds[info.name] = "directory"
            path.mkdir(mode=0o700)
            self._times.append((path, info.mode & 0o777 | 0o700, _moment(info)))
            self._note(info, "")
        elif info.issym() and 0 < len(info.linkname) <= 4095 and "\0" not in info.linkname:
            self._kinds[info.name] = "symlink"
            path.symlink_to(info.linkname)
            self._note(info, sha256(os.fsencode(info.linkname)).hexdigest())
        else:
            raise BadArchive(f"{info.name[:200]!r} is no file, directory or symbolic link")

    def _settle(self, info: tarfile.TarInfo, path: Path) -> None:
        path.chmod(info.mode & 0o777)
        os.utime(path, (_moment(info), _moment(info)))

    def _write(self, info: tarfile.TarInfo, path: Path) -> None:
        content, digest = self._tar.extractfile(info), sha256()
        if content is None or info.issparse():
            raise BadArchive(f"{info.name[:200]!r} cannot be read")
        with path.open("xb") as out:
            while piece := content.read(_PIECE):
                digest.update(piece)
                out.write(piece)
        self._note(info, digest.hexdigest())

    def _small(self, info: tarfile.TarInfo) -> bytes:
        content = self._tar.extractfile(info) if info.isreg() else None
        if content is None or info.size > _MOST_CARD * (8 if info.name == MANIFEST else 1):
            raise BadArchive(f"{info.name}: this is not one")
        return content.read()

    def _note(self, info: tarfile.TarInfo, digest: str) -> None:
        size = info.size if info.isreg() else 0
        self._members.append(Member(_written(info.name), size, digest))


def _written(name: str) -> str:
    """A name of any bytes, as text."""
    return quote(os.fsencode(name))


def _moment(info: tarfile.TarInfo) -> int:
    return min(max(int(info.mtime), 0), 1 << 33)


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below a directory that nobody else sees, a directory before what is in it."""
    for path in sorted(folder.iterdir()):
        kind = path.lstat().st_mode
        if stat.S_ISDIR(kind) or stat.S_ISREG(kind) or stat.S_ISLNK(kind):
            yield path
        if stat.S_ISDIR(kind):
            yield from _walk(path)
