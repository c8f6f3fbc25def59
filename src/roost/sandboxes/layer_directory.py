"""A directory with a lock for each layer of packages, and with what is being built.

`NAME.lock` is held alone by who builds or removes a layer, together by those who use it, and touched when it is used.
What is in it is how many bytes the layer takes; nothing, if that was not counted yet.
`.new-NAME-…` is what a build needs; of one that was killed, it is left for the next to remove.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from roost import disk
from roost.errors import SandboxUnavailable
from roost.ports.packages import LayersKept

_LOOK_SECONDS: Final = 0.5  # at a layer that another server builds
_SOON_USED: Final = (
    60 * 10**9
)  # nanoseconds in which whoever has asked for a layer has a sandbox with it


class KnownLayer(NamedTuple):
    """A layer, when it was used last (in nanoseconds), and what it takes, if that was counted."""

    name: str
    used: int
    bytes: int | None


class Surplus:
    """The layers that are not kept, those unused for longest first. What cannot be removed counts on: others make room."""

    def __init__(self, layers: Sequence[KnownLayer], kept: LayersKept) -> None:
        self._layers = layers
        self._kept = kept
        self._count = len(layers)
        self.bytes = sum(layer.bytes or 0 for layer in layers)

    def __iter__(self) -> Iterator[KnownLayer]:
        now = time.time_ns()
        for layer in self._layers:
            unused = now - layer.used
            too_many = self._count > self._kept.most or 0 < self._kept.bytes < self.bytes
            if unused > self._kept.days * 86400 * 10**9 or (too_many and unused > _SOON_USED):
                yield layer

    def removed(self, layer: KnownLayer) -> None:
        """It is gone."""
        self._count -= 1
        self.bytes -= layer.bytes or 0


class LayerDirectory:
    """The layers of one data directory, or what is known of them there. All but `alone` blocks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def touch(self, name: str) -> None:
        """Note that it is used. :raises OSError:"""
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._lock(name).touch(mode=0o600)

    @asynccontextmanager
    async def alone(
        self, name: str, is_there: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bool, None]:
        """Wait until the layer is there, or until nobody else builds it; says whether it is there. One that is may be in
        use for days, and so is its lock.

        :raises SandboxUnavailable: there can be no layer here
        """
        found = False
        with ExitStack() as held:
            try:
                # The other server's end is not told to us.
                while not await anyio.to_thread.run_sync(self.try_lock, name, held):
                    if found := await is_there():
                        break
                    await anyio.sleep(_LOOK_SECONDS)
                else:
                    found = await is_there()
            except OSError as error:
                raise SandboxUnavailable(f"cannot make a layer: {error}") from error
            try:
                yield found
            except BaseException:
                if not found:
                    await self._forget_unless(is_there, name)
                raise

    async def _forget_unless(self, is_there: Callable[[], Awaitable[bool]], name: str) -> None:
        """What failed is not counted any more; but if it is there all the same, or nobody can say, it is: only what is
        counted is ever removed.
        """
        with anyio.CancelScope(shield=True), suppress(Exception):
            if not await is_there():
                self.forget(name)

    def try_lock(self, name: str, held: ExitStack) -> bool:
        """Whether nobody else builds or uses it, until `held` ends."""
        try:
            held.enter_context(self.locked(name, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    @contextmanager
    def locked(self, name: str, how: int, make: int = os.O_CREAT) -> Iterator[None]:
        """With its lock, taken `how`. :raises BlockingIOError: somebody else has it"""
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = self._lock(name)
        while True:
            descriptor = os.open(file, os.O_RDWR | make | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, how)
                if _is_the_same(file, descriptor):
                    yield
                    return
            finally:
                os.close(descriptor)

    def new(self, name: str) -> Path:
        """Where to build it, for who holds its lock; nothing is there yet. What a killed build has left is removed.

        :raises OSError:
        """
        for left in self.directory.glob(f".new-{name}-*"):
            disk.remove(left)
        return self.directory / f".new-{name}-{secrets.token_hex(4)}"

    def sweep(self) -> None:
        """Remove what killed builds have left. :raises OSError:"""
        for left in self.directory.glob(".new-*"):
            with ExitStack() as held:
                if self.try_lock(left.name.split("-")[1], held):
                    disk.remove(left)

    def known(self) -> list[KnownLayer]:
        """All that are counted, those unused for longest first."""
        found = filter(None, map(_known, self.directory.glob("*.lock")))
        return sorted(found, key=lambda layer: layer.used)

    def count(self, layer: KnownLayer, taken: int) -> KnownLayer:
        """Note how many bytes it takes; that is no use of it."""
        with suppress(FileNotFoundError):
            with self._lock(layer.name).open("r+") as lock:
                lock.write(f"{taken}\n")
                lock.truncate()
            os.utime(self._lock(layer.name), ns=(layer.used, layer.used))
        return layer._replace(bytes=taken)

    def try_lock_unused(self, layer: KnownLayer, held: ExitStack) -> bool:
        """Whether nobody uses it, nor has used it since it was looked at, until `held` ends."""
        try:
            held.enter_context(self.locked(layer.name, fcntl.LOCK_EX | fcntl.LOCK_NB, make=0))
        except (BlockingIOError, FileNotFoundError):
            return False
        now = _known(self._lock(layer.name))
        return now is not None and now.used == layer.used

    def forget(self, name: str) -> None:
        """There is no such layer any more, says who holds its lock."""
        self._lock(name).unlink(missing_ok=True)

    def _lock(self, name: str) -> Path:
        return self.directory / f"{name}.lock"


def _known(lock: Path) -> KnownLayer | None:
    """None if it was removed just now. A power cut may leave anything in it: then its layer is counted again."""
    try:
        taken = lock.read_bytes().strip()
        return KnownLayer(
            lock.stem, lock.stat().st_mtime_ns, int(taken) if taken.isdigit() else None
        )
    except FileNotFoundError:
        return None


def _is_the_same(file: Path, descriptor: int) -> bool:
    """Whether nobody has removed the file meanwhile."""
    try:
        return file.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
