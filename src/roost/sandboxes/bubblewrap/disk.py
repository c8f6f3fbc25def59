"""Watching what a sandbox has on disk.

The kernels and file systems at hand rarely have quotas, so this is the fallback everywhere: no single
file can grow over the limit (`RLIMIT_FSIZE`), and what all of them take together is counted now and then.
It is found out late, by as much as can be written between two looks.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from roost.sandboxes.paths import walk_beneath

_LEAST_PER_ENTRY: Final = 4096  # an empty file takes an inode, and millions of them take a disk
_GLANCE_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 10.0
_SHARE_OF_TIME: Final = 0.05
_EVERYTHING: Final = 1 << 62


def used(
    directories: Iterable[Path], enough: int = _EVERYTHING, stop: threading.Event | None = None
) -> int:
    """The bytes that all of it takes on disk, or more than `enough` as soon as that is sure. Blocks."""
    total = 0
    seen: set[tuple[int, int]] = set()
    for directory in set(directories):
        for entry in walk_beneath(directory):
            status = entry.stat
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):  # several names: once
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
            total += max(status.st_blocks * 512, _LEAST_PER_ENTRY)
            if total > enough or (stop is not None and stop.is_set()):
                return total
    return total


class DiskWatch:
    """Calls `over` once when the directories take more than `limit` bytes."""

    def __init__(
        self,
        directories: Iterable[Path],
        limit: int,
        over: Callable[[], Awaitable[None]],
        frozen: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._directories = list(directories)
        self._limit = limit
        self._over = over
        self._frozen = frozen
        self._cost = 0.0
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled, or until the limit is passed and `over` was called."""
        try:
            allowed = await self._allowance()
            total = 0
            while total <= allowed:
                await self._until_worth_a_look(allowed)
                total = await self._count(allowed)
            await self._over()
        finally:
            self._stop.set()

    async def _allowance(self) -> int:
        """A session that is already over its limit must be able to run, or it could never tidy up."""
        return max(self._limit, await self._count(_EVERYTHING) + self._limit // 10)

    async def _count(self, enough: int) -> int:
        began = anyio.current_time()
        meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext
        while True:
            work = partial(self._used, enough, meanwhile)
            try:
                total = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            except (
                OSError
            ):  # things were moved about, perhaps on purpose: once more, with nobody moving
                meanwhile = self._frozen
                await anyio.sleep(_GLANCE_SECONDS)
                continue
            self._cost = anyio.current_time() - began
            return total

    def _used(self, enough: int, meanwhile: Callable[[], AbstractContextManager[None]]) -> int:
        with meanwhile():
            return used(self._directories, enough, self._stop)

    async def _until_worth_a_look(self, allowed: int) -> None:
        """Until some time has passed, or the file system has filled by a part of what is allowed.

        Whoever filled it: so a look that takes long is not had too often all the same.
        """
        before = await anyio.to_thread.run_sync(self._free)
        now = before
        with anyio.move_on_after(max(_LOOK_SECONDS, self._cost / _SHARE_OF_TIME)):
            while before - now < allowed // 20:
                await anyio.sleep(max(_GLANCE_SECONDS, self._cost * 5))
                now = await anyio.to_thread.run_sync(self._free)

    def _free(self) -> int:
        """What is left on the file systems involved, in bytes and in files."""
        total = 0
        for directory in self._directories:
            with suppress(FileNotFoundError):  # an engine has removed it, with the sandbox
                found = os.statvfs(directory)
                total += found.f_bavail * found.f_frsize + found.f_favail * _LEAST_PER_ENTRY
        return total
