"""Putting files into a directory that a sandbox writes in: whole or not at all.

A file is written beside the directory, where no sandbox sees it, and moved in when it is whole. While it
is written it is locked: so what a killed server has left can be told from what is on its way, by any
server, and is removed when the next file comes.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from roost.disk import remove
from roost.errors import Conflict

_PIECE: Final = 1024 * 1024


class Incoming:
    """Writes files into one directory, each whole or not at all."""

    def __init__(self, directory: Path, uids: range) -> None:
        self._directory = directory
        self._uids = uids
        self._beside = directory.with_name(f".{directory.name}.incoming")

    def put(self, at: int, name: str, data: BinaryIO, *, overwrite: bool) -> None:
        """Write a file into the open directory `at`. :raises OSError: :raises Conflict:"""
        path = self._beside / secrets.token_hex(8)
        with self._alone():
            self._sweep()
            file = path.open("xb", buffering=0)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with file:
            try:
                shutil.copyfileobj(data, file, _PIECE)
                self.give(file.fileno())
                os.fsync(file.fileno())
                self._move(path, at, name, overwrite=overwrite)
            finally:
                path.unlink(missing_ok=True)

    def discard(self, at: int, name: str) -> None:
        """Move a directory out of the open directory `at`, and remove it where nobody finds it.

        Whoever is in it may go on making files; what that keeps from being removed is removed later.
        """
        with self._alone():
            path = self._beside / secrets.token_hex(8)
            os.rename(name, path, src_dir_fd=at)
            with suppress(OSError):
                remove(path)

    def give(self, descriptor: int) -> None:
        """Make it the session's, as the directory is; if that is nobody's yet, it stays ours."""
        status = self._directory.stat()
        shared = stat.S_IWGRP & status.st_mode
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        os.fchmod(descriptor, (0o755 if folder else 0o644) | (stat.S_IWGRP if shared else 0))
        if os.geteuid() == 0 and status.st_uid in self._uids and status.st_gid in self._uids:
            os.fchown(descriptor, status.st_uid, status.st_gid)

    def _move(self, path: Path, at: int, name: str, *, overwrite: bool) -> None:
        if overwrite:
            try:
                os.rename(path, name, dst_dir_fd=at)
            except IsADirectoryError:
                raise Conflict(f"{name} is a directory") from None
        else:
            os.link(path, name, dst_dir_fd=at, follow_symlinks=False)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """With nobody else beginning or tidying up."""
        self._beside.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._beside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what nobody is writing any more."""
        for left in self._beside.iterdir():
            with suppress(OSError):
                kind = left.lstat().st_mode
                if stat.S_ISDIR(kind):
                    remove(left)
                elif not stat.S_ISREG(kind) or _is_left(left):
                    left.unlink()


def _is_left(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
