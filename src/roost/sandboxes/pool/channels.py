"""What speaks through a link: a command with its pipes, and a connection from inside to one of the server's endpoints."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio

from roost.errors import SandboxFailed
from roost.ports.sandbox_provider import Endpoint
from roost.sandboxes.pool.link import Link

WINDOW: Final = 256 * 1024
"""Bytes of a channel that are on their way, in each direction."""

_TELL: Final = WINDOW // 4
_ERRORS_KEPT: Final = 64 * 1024
_KILLED: Final = 128 + 9
_REST_SECONDS: Final = 1.0


class PoolChannel:
    """Bytes both ways, a bounded number of them."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number
        self._data = bytearray()
        self._ended = False
        self._untold = 0
        self._room = WINDOW
        self._changed = anyio.Event()

    def wake(self) -> None:
        """Something has changed, for whoever waits."""
        self._changed.set()
        self._changed = anyio.Event()

    def frame(self, kind: bytes, data: bytes) -> None:
        """Take a frame of this channel. :raises ValueError: it cannot be one"""
        if kind == b"O":
            self._data += data[
                : 2 * WINDOW - len(self._data)
            ]  # no more than it was allowed to send
        elif kind == b"D":
            self._ended = True
        elif kind == b"T":
            taken = int(data)
            if not 0 <= taken <= WINDOW - self._room:
                raise ValueError("more was taken than was sent")
            self._room += taken
        self.wake()

    async def take(self, limit: int) -> bytes:
        """The next bytes; empty at their end."""
        while not self._data and not self._is_over():
            await self._changed.wait()
        data = bytes(self._data[:limit])
        del self._data[:limit]
        self._untold += len(data)
        if self._untold >= _TELL:
            self._link.put(b"T", self._number, str(self._untold).encode())
            self._untold = 0
        return data

    async def put(self, data: bytes) -> None:
        """Send bytes, as there is room. :raises SandboxFailed: nobody takes them"""
        while data:
            self._check()
            if self._room <= 0:
                await self._changed.wait()
                continue
            part, data = data[: self._room], data[self._room :]
            self._room -= len(part)
            self._link.put(b"I", self._number, part)

    def _is_over(self) -> bool:
        return self._ended or self._link.failure is not None

    def _check(self) -> None:
        if self._link.failure is not None:
            raise SandboxFailed(self._link.failure)


class PoolProcess(PoolChannel):
    """`ports.sandbox.Process`. `touch` is called before it is given something to do."""

    def __init__(self, link: Link, number: int, touch: Callable[[], Awaitable[None]]) -> None:
        super().__init__(link, number)
        self._touch = touch
        self._tail = bytearray()
        self._begun = anyio.Event()
        self._refused: str | None = None
        self._code: int | None = None
        self._is_deaf = False
        self.stopped = False

    @property
    def is_refused(self) -> bool:
        """Whether it could not be started."""
        return self._refused is not None

    @property
    def over(self) -> bool:
        """Whether it is gone, and all of its output received."""
        return self._code is not None and self._ended and not self._data

    def frame(self, kind: bytes, data: bytes) -> None:
        """Take a frame of this channel."""
        if kind == b"B":
            self._begun.set()
        elif kind == b"F":
            self._refused = data.decode(errors="replace")[:2000]
            self._begun.set()
        elif kind == b"R":
            self._tail += data
            del self._tail[:-_ERRORS_KEPT]
        elif kind == b"Z":
            self._code = int(data)
        elif kind == b"G":
            self._is_deaf = True
        super().frame(kind, data)

    async def begin(self) -> None:
        """Wait until it runs. :raises SandboxFailed: it does not come to that"""
        while not self._begun.is_set():
            super()._check()
            await self._changed.wait()
        if self._refused is not None:
            raise SandboxFailed(f"the command could not be started: {self._refused}")

    async def send(self, data: bytes) -> None:
        await self._touch()
        await self.put(data)

    async def close_input(self) -> None:
        self._link.put(b"E", self._number)

    async def receive(self, limit: int = 65536) -> bytes:
        return await self.take(limit)

    def errors(self) -> bytes:
        return bytes(self._tail)

    async def wait(self) -> int:
        while self._code is None:
            if self.stopped:
                return _KILLED
            super()._check()
            await self._changed.wait()
        # What it left running may hold its output open for ever.
        with anyio.move_on_after(_REST_SECONDS):
            while not self._is_over():
                await self._changed.wait()
        return self._code

    def signal(self, number: int) -> None:
        if self._code is None and self._link.failure is None:
            self._link.put(b"K", self._number, str(int(number)).encode())

    def stop(self) -> None:
        """It was ended with all the sandbox."""
        self.stopped = True
        self._ended = True
        self.wake()

    def _check(self) -> None:
        if self._is_deaf or self._code is not None or self.stopped:
            raise SandboxFailed("the command has closed its input, or is gone")
        super()._check()


class PoolConnection(PoolChannel):
    """A connection from inside."""

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self._is_closed = False

    def frame(self, kind: bytes, data: bytes) -> None:
        """Take a frame of this channel."""
        if kind == b"X":
            self._is_closed = self._ended = True
        super().frame(kind, data)

    async def serve(self, endpoint: Endpoint) -> None:
        """Connect it to the endpoint, until both sides have ended."""
        try:
            stream = await _connected(endpoint)
        except OSError:
            self._link.put(b"X", self._number)
            return
        with stream:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._up, stream)
                    await self._down(stream)
            except* (OSError, SandboxFailed, anyio.ClosedResourceError):
                pass  # one of the two has hung up
            finally:
                if not self._is_closed:
                    self._link.put(b"X", self._number)

    async def _up(self, stream: socket.socket) -> None:
        """From inside to the endpoint."""
        while data := await self.take(65536):
            while data:
                try:
                    data = data[stream.send(data) :]
                except BlockingIOError:
                    await anyio.wait_writable(stream)
        if self._is_closed:
            raise ConnectionResetError
        with suppress(OSError):
            stream.shutdown(socket.SHUT_WR)

    async def _down(self, stream: socket.socket) -> None:
        """From the endpoint to the inside."""
        while True:
            try:
                data = stream.recv(65536)
            except BlockingIOError:
                await anyio.wait_readable(stream)
                continue
            if not data:
                break
            await self.put(data)
        self._link.put(b"E", self._number)

    def _check(self) -> None:
        if self._is_closed:
            raise SandboxFailed("the connection is closed")
        super()._check()


async def _connected(endpoint: Endpoint) -> socket.socket:
    """A connection to what the server has there. :raises OSError:"""
    if endpoint.take is not None:
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        try:
            await endpoint.take(far)
        except BaseException:
            near.close()
            raise
        return near
    stream = socket.socket(socket.AF_UNIX)
    stream.setblocking(False)
    try:
        stream.connect(str(endpoint.address.path))
    except BaseException:
        stream.close()
        raise
    return stream
