"""Removing a tree of any depth, without following anything in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: Path) -> None:
    """Remove a directory and all in it; nothing happens if there is none. Nobody else may be in it."""
    try:
        at = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        names: list[str] = []
        while True:
            folder = _empty_but_for_folders(at)
            if folder is not None:
                at = _exchanged(at, folder)
                names.append(folder)
            elif names:
                at = _exchanged(at, "..")
                os.rmdir(names.pop(), dir_fd=at)
            else:
                break
    finally:
        os.close(at)
    path.rmdir()


def _exchanged(at: int, name: str) -> int:
    opened = os.open(name, _DIRECTORY, dir_fd=at)
    os.close(at)
    return opened


def _empty_but_for_folders(at: int) -> str | None:
    """Unlink what is no directory; gives the name of one that is, if there is any."""
    status = os.fstat(at)
    if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(at, 0o700)
    folder = None
    with os.scandir(at) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folder = entry.name
            else:
                os.unlink(entry.name, dir_fd=at)
    return folder
