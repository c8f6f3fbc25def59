"""A session's directory on this machine, for people to look into and to put files in: `ports.folder`."""

from __future__ import annotations

import errno
import heapq
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from roost.disk import free
from roost.errors import Conflict, DiskFull, InvalidRequest, NotFound, RoostError, TooLarge
from roost.ports.folder import Item, Kind, Listing, ListingPosition
from roost.sandboxes.paths import open_at
from roost.sandboxes.tree.incoming import Incoming

_TOP: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY
_KINDS: Final[dict[int, Kind]] = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "symlink",
}


class LocalFolder:
    """`ports.folder.Folder`.

    :param directory: the directory; it need not be there
    :param uids: whom files may belong to, if the server is root
    :param hidden: names at the top that are the agent's own; nobody else sees them
    :param most: how many entries of a directory are looked at
    :param least_free: bytes of the disk below which nothing is put there
    """

    def __init__(
        self,
        directory: Path,
        uids: range,
        hidden: frozenset[str] = frozenset(),
        most: int = 200_000,
        least_free: int = 0,
    ) -> None:
        self._root = directory
        self._uids = uids
        self._hidden = hidden
        self._most = most
        self._least_free = least_free
        self._incoming = Incoming(directory, uids)

    def begin(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)

    def list(self, path: str, after: ListingPosition | None, limit: int) -> Listing:
        try:
            at = self._directory(path)
        except NotFound:
            if path:
                raise
            return Listing(items=[], more=None, cut=False)  # nobody has worked here yet
        try:
            with os.scandir(at) as entries:
                found = islice(entries, self._most)
                hidden = frozenset() if path else self._hidden
                positions = (_position(entry) for entry in found if entry.name not in hidden)
                wanted = (one for one in positions if after is None or _key(one) > _key(after))
                shown = heapq.nsmallest(limit + 1, wanted, key=_key)
                cut = next(entries, None) is not None
            items = [_looked_at(at, each.name, path) for each in shown[:limit]]
        finally:
            os.close(at)
        more = shown[limit - 1] if len(shown) > limit else None
        return Listing(items=[item for item in items if item is not None], more=more, cut=cut)

    def open(self, path: str) -> LocalContent:
        self._check(path)
        with self._top() as top, _in_words(path):
            descriptor = open_at(top, path, os.O_RDONLY)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return LocalContent(descriptor, _item(path.rpartition("/")[2], path, status))
        os.close(descriptor)
        raise InvalidRequest(f"path: {path} is not a file")

    def put(self, path: str, data: BinaryIO, *, overwrite: bool) -> Item:
        self._check(path)
        if free(self._root) < self._least_free:
            raise DiskFull(f"there are fewer than {self._least_free} bytes free for files")
        folder, _, name = path.rpartition("/")
        with self._top() as top, _in_words(path):
            at = self._made(top, folder)
            try:
                self._incoming.put(at, name, data, overwrite=overwrite)
                return _item(name, path, os.stat(name, dir_fd=at, follow_symlinks=False))
            finally:
                os.close(at)

    def make(self, path: str) -> Item:
        self._check(path)
        with self._top() as top, _in_words(path):
            at = self._made(top, path)
            try:
                return _item(path.rpartition("/")[2], path, os.fstat(at))
            finally:
                os.close(at)

    def remove(self, path: str, *, recursive: bool) -> None:
        self._check(path)
        folder, _, name = path.rpartition("/")
        with _in_words(path):
            at = self._directory(folder)
            try:
                status = os.stat(name, dir_fd=at, follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode):
                    os.unlink(name, dir_fd=at)
                elif recursive:
                    self._incoming.discard(at, name)
                else:
                    os.rmdir(name, dir_fd=at)
            finally:
                os.close(at)

    def _check(self, path: str) -> None:
        """That it names something below the directory, in the one way there is to name it."""
        parts = path.split("/")
        if not path or any(part in ("", ".", "..") for part in parts):
            raise InvalidRequest(
                "path: give a relative path such as `folder/file.txt`, without `.` or `..` in it"
            )
        if parts[0] in self._hidden:
            raise NotFound(f"there is nothing at {path[:200]}")

    def _directory(self, path: str) -> int:
        if path:
            self._check(path)
        with self._top() as top, _in_words(path):
            return open_at(top, path, _DIRECTORY) if path else os.dup(top)

    @contextmanager
    def _top(self) -> Iterator[int]:
        try:
            top = os.open(self._root, _TOP)
        except FileNotFoundError:
            raise NotFound("the session has no files here yet") from None
        try:
            yield top
        finally:
            os.close(top)

    def _made(self, top: int, path: str) -> int:
        """A directory that is there, or is made with all on the way to it; open."""
        at = os.dup(top)
        try:
            for name in filter(None, path.split("/")):
                inner = self._entered(at, name)
                os.close(at)
                at = inner
        except BaseException:
            os.close(at)
            raise
        return at

    def _entered(self, at: int, name: str) -> int:
        try:
            return open_at(at, name, _DIRECTORY)
        except FileNotFoundError:
            os.mkdir(name, 0o755, dir_fd=at)
        except NotADirectoryError:
            raise Conflict(f"{name} is there already, and is not a directory") from None
        made = open_at(at, name, _DIRECTORY)
        self._incoming.give(made)
        return made


class LocalContent:
    """`ports.folder.Content`, over an open descriptor."""

    def __init__(self, descriptor: int, item: Item) -> None:
        self._descriptor = descriptor
        self._item = item

    @property
    def item(self) -> Item:
        return self._item

    def read(self, start: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, start)

    def close(self) -> None:
        os.close(self._descriptor)


def _position(entry: os.DirEntry[str]) -> ListingPosition:
    return ListingPosition(not entry.is_dir(follow_symlinks=False), entry.name)


def _key(position: ListingPosition) -> tuple[bool, bytes]:
    return position.is_file, os.fsencode(position.name)


def _looked_at(at: int, name: str, folder: str) -> Item | None:
    try:
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
    except OSError:
        return None  # gone meanwhile
    return _item(name, f"{folder}/{name}" if folder else name, status)


def _item(name: str, path: str, status: os.stat_result) -> Item:
    is_text = not any("\ud800" <= letter <= "\udfff" for letter in path)
    return Item(
        name=os.fsencode(name).decode(errors="replace"),
        path=path if is_text else None,
        kind=_KINDS.get(stat.S_IFMT(status.st_mode), "other"),
        size=status.st_size if stat.S_ISREG(status.st_mode) else 0,
        modified_at=status.st_mtime_ns // 1000,
    )


_THERE = "Choose another name, or send `overwrite` to replace a file."
_FULL = "Send `recursive=true` to remove all of it."
_WORDS: Final[dict[int, tuple[type[RoostError], str, str | None]]] = {
    errno.ENOENT: (NotFound, "there is nothing at {}", None),
    errno.EEXIST: (Conflict, "something is at {} already", _THERE),
    errno.EISDIR: (Conflict, "something is at {} already", _THERE),
    errno.ENOTEMPTY: (Conflict, "{} is not empty", _FULL),
    errno.ENOSPC: (DiskFull, "there is no room for {}", DiskFull.hint),
    errno.EDQUOT: (DiskFull, "there is no room for {}", DiskFull.hint),
    errno.EFBIG: (TooLarge, "there is no room for {}", None),
    errno.ENOTDIR: (InvalidRequest, "path: {} is not a directory, or leads through a file", None),
    errno.ELOOP: (InvalidRequest, "path: {} leads over a link", None),
    errno.EXDEV: (InvalidRequest, "path: {} leads out of the directory", None),
    errno.ENAMETOOLONG: (InvalidRequest, "path: {} is too long", None),
    errno.EINVAL: (InvalidRequest, "path: {} cannot be", None),
    errno.ENXIO: (InvalidRequest, "path: {} is not a file", None),
}


@contextmanager
def _in_words(path: str) -> Iterator[None]:
    """What the system says of a path that a person gave becomes an error in the person's words."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WORDS:
            raise
        kind, message, hint = _WORDS[error.errno]
        raise kind(message.format(path[:200] or "the directory"), hint=hint) from None
