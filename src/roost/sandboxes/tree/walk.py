"""Walking a tree in order, with one descriptor, whatever is in it and whoever changes it meanwhile.

A directory's content is sorted and looked at name by name. On the way back up, `..` must lead to the
directory the walk came from; if somebody has moved it, it is looked up again from the top.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from roost.domain.snapshot import LONGEST_PATH
from roost.errors import WorkspaceTooLarge
from roost.ports.tree import Found, Signature, Skipped, Why
from roost.sandboxes.paths import open_at

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TOO_RECENT: Final = 100_000_000  # ns; the clock that files are stamped with moves in steps
_KINDS: Final[dict[int, Literal["directory", "file", "symlink"]]] = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "symlink",
}
_REFUSED: Final[dict[int, Why]] = {
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "fifo",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
}


class _Level:
    """A directory the walk is in: its path, with a slash behind it, and the names still to be seen."""

    def __init__(self, prefix: bytes, descriptor: int, most: int) -> None:
        self.prefix = prefix
        status = os.fstat(descriptor)
        self.identity = (status.st_dev, status.st_ino)
        with os.scandir(descriptor) as entries:
            names = [os.fsencode(entry.name) for entry in islice(entries, most + 1)]
        if len(names) > most:
            raise WorkspaceTooLarge(f"a directory of the workspace has more than {most} entries")
        names.sort(reverse=True)
        self.names = names


class Walk:
    """One walk through the tree below `root`, which is trusted; nothing below it is.

    A directory that `is_closed` is told of, and not walked into.
    """

    def __init__(
        self, root: Path, most: int, is_closed: Callable[[Found], bool] = lambda found: False
    ) -> None:
        self._root = root
        self._most = most
        self._is_closed = is_closed
        self._at = -1
        self._levels: list[_Level] = []

    def __iter__(self) -> Iterator[Found | Skipped]:
        self._at = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._levels = [_Level(b"", self._at, self._most)]
            while self._levels:
                yield from self._step()
        finally:
            os.close(self._at)

    def _step(self) -> Iterator[Found | Skipped]:
        level = self._levels[-1]
        if not level.names:
            yield from self._leave()
            return
        path = level.prefix + level.names.pop()
        found = look(self._at, path, level.identity[0])
        if isinstance(found, Found) and found.kind == "directory" and not self._is_closed(found):
            found = self._enter(found)
        if found is not None:
            yield found

    def _enter(self, found: Found) -> Found | Skipped | None:
        try:
            inner = os.open(name_of(found.path), _DIRECTORY, dir_fd=self._at)
        except FileNotFoundError:
            return None
        except OSError:
            return Skipped(found.path, "unreadable")
        os.close(self._at)
        self._at = inner
        self._levels.append(_Level(found.path + b"/", inner, self._most))
        return found

    def _leave(self) -> Iterator[Skipped]:
        self._levels.pop()
        while self._levels:
            level = self._levels[-1]
            for way in (self._up, self._from_the_top):
                outer = way(level)
                if outer is not None:
                    os.close(self._at)
                    self._at = outer
                    return
            self._levels.pop()
            yield Skipped(level.prefix[:-1], "moved")

    def _up(self, level: _Level) -> int | None:
        try:
            return _expected(os.open("..", _DIRECTORY, dir_fd=self._at), level)
        except OSError:
            return None

    def _from_the_top(self, level: _Level) -> int | None:
        top = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not level.prefix:
            return _expected(top, level)
        try:
            return _expected(open_at(top, os.fsdecode(level.prefix[:-1]), _DIRECTORY), level)
        except OSError:
            return None
        finally:
            os.close(top)


def look(at: int, path: bytes, device: int) -> Found | Skipped | None:
    """What is at `path`, the last name of which is in the directory `at`; None if nothing is."""
    if len(path) > LONGEST_PATH:
        return Skipped(path, "long_path")
    try:
        status = os.stat(name_of(path), dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError:
        return Skipped(path, "unreadable")
    kind = stat.S_IFMT(status.st_mode)
    if refused := _REFUSED.get(kind):
        return Skipped(path, refused)
    if status.st_dev != device:
        return Skipped(path, "mount")
    return Found(
        kind=_KINDS[kind],
        path=path,
        mode=stat.S_IMODE(status.st_mode),
        mtime=status.st_mtime_ns,
        size=status.st_size,
        owner=(status.st_uid, status.st_gid),
        signature=_signature(status),
        identity=_shared(status),
        handle=at,
    )


def _shared(status: os.stat_result) -> tuple[int, int] | None:
    several = status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)
    return (status.st_dev, status.st_ino) if several else None


def name_of(path: bytes) -> bytes:
    """The last name of a path."""
    return path.rpartition(b"/")[2]


def _signature(status: os.stat_result) -> Signature | None:
    if status.st_ctime_ns > time.time_ns() - _TOO_RECENT:
        return None
    return Signature(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _expected(descriptor: int, level: _Level) -> int | None:
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) == level.identity:
        return descriptor
    os.close(descriptor)
    return None
