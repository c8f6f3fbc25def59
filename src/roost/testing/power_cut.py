"""What a power cut would leave of a directory: what was synced, and of all the rest any part.

Nothing stands between the code under test and the disk. Only `os.fsync` is watched: a file's content is
durable as it was at its last sync, and so is what a directory has in it. When the power is cut, whatever
was changed since is there or is not, each name and each file by itself, and a file may be half there.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar
from unittest.mock import patch

T = TypeVar("T")
Inode = tuple[int, int]


class _Entry(NamedTuple):
    """What a name in a directory stands for. `target` is that of a symbolic link."""

    inode: Inode
    mode: int
    target: str


class PowerCut:
    """One directory, whose content is durable when this is made."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._files: dict[Inode, bytes] = {}
        self._folders: dict[Inode, dict[str, _Entry]] = {}
        self._held: list[int] = []
        for path in (root, *root.rglob("*")):
            if not path.is_symlink():
                self._note(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    @contextmanager
    def watching(self, before: Callable[[], None] = lambda: None) -> Generator[None, None, None]:
        """While the code under test works. `before` is called before each sync, in its thread."""

        def watched(real: Callable[[int], None]) -> Callable[[int], None]:
            def sync(descriptor: int) -> None:
                before()
                real(descriptor)
                with self._lock:
                    self._note(os.dup(descriptor))

            return sync

        with (
            patch.object(os, "fsync", watched(os.fsync)),
            patch.object(os, "fdatasync", watched(os.fdatasync)),
        ):
            try:
                yield
            finally:
                while self._held:
                    os.close(self._held.pop())

    def outcomes(self, folder: Path, *, seed: int = 0, count: int = 5) -> Iterator[Path]:
        """Directories as they may be found when the power is back: first the one with the least in it."""
        for number in range(count):
            left = folder / os.urandom(6).hex()
            left.mkdir(parents=True)
            chance = Random(seed + number) if number else None
            with self._lock:
                outcome = _Left(self._files, self._folders, self._root, chance)
                outcome.fill(left, _entry(self._root).inode)
            yield left

    def _note(self, descriptor: int) -> None:
        """Durable, as it is now. It is kept open, so that nothing else gets its number."""
        self._held.append(descriptor)
        path, status = Path(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
        inode = status.st_dev, status.st_ino
        if stat.S_ISDIR(status.st_mode):
            self._folders[inode] = _names(path)
        else:
            self._files[inode] = path.read_bytes()


class _Left:
    """One outcome; without `chance` nothing is there that was not synced."""

    def __init__(
        self,
        files: dict[Inode, bytes],
        folders: dict[Inode, dict[str, _Entry]],
        root: Path,
        chance: Random | None,
    ) -> None:
        self._files = files
        self._folders = folders
        self._chance = chance
        self._now = {_entry(path).inode: path for path in (root, *root.rglob("*"))}

    def fill(self, target: Path, inode: Inode) -> None:
        """As the directory with this number may be left."""
        durable = self._folders.get(inode, {})
        now = _names(self._now[inode]) if inode in self._now else durable
        for name in sorted(durable.keys() | now.keys()):
            entry = self._either(durable.get(name), now.get(name))
            if entry is None:
                continue
            if stat.S_ISDIR(entry.mode):
                (target / name).mkdir()
                self.fill(target / name, entry.inode)
            elif stat.S_ISLNK(entry.mode):
                (target / name).symlink_to(entry.target)
            else:
                (target / name).write_bytes(self._content(entry.inode))
            if not stat.S_ISLNK(entry.mode):
                (target / name).chmod(stat.S_IMODE(entry.mode))

    def _content(self, inode: Inode) -> bytes:
        durable = self._files.get(inode, b"")
        now = self._now[inode].read_bytes() if inode in self._now else durable
        if now == durable:
            return durable
        return self._either(durable, self._either(now[: len(now) // 2], now))

    def _either(self, durable: T, now: T) -> T:
        return durable if self._chance is None or self._chance.random() < 0.5 else now


def _names(folder: Path) -> dict[str, _Entry]:
    return {name: _entry(folder / name) for name in os.listdir(folder)}  # noqa: PTH208 - names only


def _entry(path: Path) -> _Entry:
    status = path.lstat()
    target = str(path.readlink()) if stat.S_ISLNK(status.st_mode) else ""
    return _Entry((status.st_dev, status.st_ino), status.st_mode, target)
