"""Unix sockets as anyio streams.

anyio has its own, but they are not made for uvloop, which this server runs on: there, a socket may
be announced as ready once more after it was waited for, and anyio's future for it is then resolved
twice. `anyio.wait_readable` and `wait_writable` know about that.
"""

from __future__ import annotations

import socket

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream


class UnixStream(ByteStream):
    """A connected unix socket, or what comes to a port instead of one."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setblocking(False)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Some bytes. :raises anyio.EndOfStream: there will be no more"""
        # A client that always has more must not keep everybody else from running.
        await anyio.lowlevel.checkpoint()
        while (data := self._read(max_bytes)) is None:
            await anyio.wait_readable(self._socket)
        if not data:
            raise anyio.EndOfStream
        return data

    def _read(self, max_bytes: int) -> bytes | None:
        try:
            return self._socket.recv(max_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def send(self, item: bytes) -> None:
        """All of the bytes."""
        await anyio.lowlevel.checkpoint()
        left = memoryview(item)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """No more bytes; the other direction stays open."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Close it, also for whoever waits for it in another task."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()
        await anyio.lowlevel.checkpoint()


async def accept(listening: socket.socket) -> UnixStream:
    """The next connection. :raises OSError: the system cannot give one now"""
    while True:
        try:
            return UnixStream(listening.accept()[0])
        except BlockingIOError:
            await anyio.wait_readable(listening)
