"""Directories of this machine: removing a tree of any depth, and making names in them durable.

It stands below every other module because servers, stores and sandboxes all remove trees, and none of them
may follow a link or run out of stack while it does.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Level(NamedTuple):
    """A directory on the way down: its name in the one above, its identity, and its own directories."""

    name: str
    identity: tuple[int, int]
    folders: list[str]


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a directory, and those above it that are missing; each is durable in the one above it.

    One that is there already is made durable, too: whoever made it may be a moment behind, or dead.
    """
    if not path.parent.is_dir():
        make_folder(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    with suppress(PermissionError):  # it is somebody else's, who has made it long ago
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a directory durable: a file that was synced may be lost with its name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in the place of the one that is there: durably, and all at once. :raises OSError:"""
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with made.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a directory and all in it; nothing happens if there is none. No link is followed.

    One descriptor and no recursion: the tree may be deeper than any path. Whoever still has a directory of
    it open may move one away meanwhile; then this stops, and never goes on in another tree.

    :raises OSError: it is no directory, or something in it cannot be removed
    """
    try:
        at = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        levels = [_emptied("", at)]
        while True:
            if levels[-1].folders:
                name = levels[-1].folders.pop()
                at = _exchanged(at, name)
                levels.append(_emptied(name, at))
            elif len(levels) > 1:
                name = levels.pop().name
                at = _exchanged(at, "..")
                _expect(at, levels[-1])
                os.rmdir(name, dir_fd=at)
            else:
                break
    finally:
        os.close(at)
    path.rmdir()


def _exchanged(at: int, name: str) -> int:
    try:
        opened = os.open(name, _DIRECTORY, dir_fd=at)
    except PermissionError:  # its owner may still open it to itself
        found = os.open(name, _DIRECTORY | os.O_PATH, dir_fd=at)
        try:
            Path(f"/proc/self/fd/{found}").chmod(0o700)
        finally:
            os.close(found)
        opened = os.open(name, _DIRECTORY, dir_fd=at)
    os.close(at)
    return opened


def _emptied(name: str, at: int) -> _Level:
    """Unlink what is no directory."""
    status = os.fstat(at)
    if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(at, 0o700)
    folders = []
    with os.scandir(at) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=at)
    return _Level(name, (status.st_dev, status.st_ino), folders)


def _expect(at: int, level: _Level) -> None:
    status = os.fstat(at)
    if (status.st_dev, status.st_ino) != level.identity:
        raise OSError(errno.ESTALE, "a directory was moved while it was removed")


def free(path: Path) -> int:
    """How many bytes may still be written where the path is, or is going to be."""
    while not path.exists():
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
