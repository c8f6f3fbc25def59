"""Opening and walking files that something inside a sandbox may have planted or may be changing.

Never `open()` a path below a workspace: a symbolic link leads a server that runs as root to any
file of the machine, a FIFO makes it wait for ever, a directory exchanged for a link in between does
both. Here every step is taken from an open directory, and no link is followed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_OPENAT2: Final = 437  # the same number on every architecture
_BENEATH_AND_NO_LINKS: Final = 0x08 | 0x04 | 0x02  # RESOLVE_BENEATH, _NO_SYMLINKS, _NO_MAGICLINKS
_ALWAYS: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class PathEntry(NamedTuple):
    """Something found in a walk: open it by `name` in `directory`, and only until the next one."""

    directory: int
    name: str
    stat: os.stat_result


def open_at(top: int, path: str, flags: int, mode: int = 0o600) -> int:
    """A descriptor of whatever is at `path` below an open directory; over no link, and not outside.

    :raises OSError: it is not there, or leads over a link or out of the directory
    """
    return _open_by_kernel(top, path, flags | _ALWAYS, mode)


def _open_by_kernel(top: int, path: str, flags: int, mode: int) -> int:
    how = struct.pack("=QQQ", flags, mode if flags & os.O_CREAT else 0, _BENEATH_AND_NO_LINKS)
    opened = _libc.syscall(_OPENAT2, top, os.fsencode(path), how, len(how))
    if opened >= 0:
        return int(opened)
    error = ctypes.get_errno()
    if error in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a container's filter
        return open_by_steps(top, path, flags, mode)
    raise OSError(error, os.strerror(error), path)


def open_by_steps(top: int, path: str, flags: int, mode: int = 0o600) -> int:
    """As the kernel's own way, one component at a time."""
    *folders, name = _components(path)
    at = os.dup(top)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_PATH | _DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(name, flags | _ALWAYS, mode, dir_fd=at)
    finally:
        os.close(at)


def _components(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or not parts:
        raise OSError(errno.EXDEV, "leads out of the directory", path)
    return parts


def walk_beneath(root: Path) -> Iterator[PathEntry]:
    """Everything below `root` on its file system, each directory before what is in it.

    Holds one descriptor however deep the tree is: a hostile one is deeper than any recursion or
    descriptor limit. What vanishes meanwhile is left out.

    :raises OSError: `root` cannot be read, or a directory was moved while it was being walked
    """
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        levels = [_Level(at, (yield from _listed(at)))]
        while levels:
            if levels[-1].folders:
                inner = _entered(at, levels)
                if inner is None:
                    continue
                os.close(at)
                at = inner
                levels.append(_Level(at, (yield from _listed(at))))
                continue
            levels.pop()
            if levels:
                outer = os.open("..", _DIRECTORY, dir_fd=at)
                os.close(at)
                at = outer
                levels[-1].expect(at)
    finally:
        os.close(at)


class _Level:
    """A directory the walk is in, by identity, and those of its folders still to be walked."""

    def __init__(self, descriptor: int, folders: list[str]) -> None:
        self.folders = folders
        status = os.fstat(descriptor)
        self.device = status.st_dev
        self._identity = (status.st_dev, status.st_ino)

    def expect(self, descriptor: int) -> None:
        """Stop if `..` has led elsewhere: somebody moved the directory the walk was in."""
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != self._identity:
            raise OSError(errno.ESTALE, "a directory was moved while it was walked")


def _entered(at: int, levels: list[_Level]) -> int | None:
    level = levels[-1]
    try:
        inner = os.open(level.folders.pop(), _DIRECTORY, dir_fd=at)
    except OSError:
        return None
    if os.fstat(inner).st_dev == level.device:
        return inner
    os.close(inner)
    return None


def _listed(at: int) -> Generator[PathEntry, None, list[str]]:
    folders = []
    with os.scandir(at) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield PathEntry(at, entry.name, status)
            if stat.S_ISDIR(status.st_mode):
                folders.append(entry.name)
    return folders
