"""Bytes, both ways, until both sides are done."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from anyio.abc import ByteStream

Pieces = AsyncGenerator[bytes, None]

_CHUNK = 65536
_NOTICED = 1.0
"""Seconds within which traffic need not push the idle deadline again: it costs more than a read."""


class Pace:
    """Bandwidth that a session's connections share, with a second's worth to spare."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._paid_until = 0.0

    async def spend(self, size: int) -> None:
        """Account for bytes about to be passed on; waits while that is too many too soon."""
        now = anyio.current_time()
        self._paid_until = max(self._paid_until, now - 1) + size / self._per_second
        if self._paid_until > now:
            await anyio.sleep(self._paid_until - now)


async def pieces_of(stream: ByteStream, early: bytes = b"") -> Pieces:
    """What one side says, until it has no more to say. `early` is what was heard of it before."""
    if early:
        yield early
    while True:
        try:
            data = await stream.receive(_CHUNK)
        except anyio.EndOfStream:
            return
        yield data


class Tunnel:
    """Two streams tied together, for as long as something passes."""

    def __init__(self, near: ByteStream, far: ByteStream, pace: Pace, idle_seconds: float) -> None:
        self._near = near
        self._far = far
        self._pace = pace
        self._idle_seconds = idle_seconds
        self._scope = anyio.CancelScope()

    async def run(self, outgoing: Pieces, incoming: Pieces) -> None:
        """Carry on until both sides have ended, one is broken, or nothing has passed for long.

        :raises Refusal: one of the two is not to be carried on with
        """
        try:
            with self._scope:
                self._scope.deadline = anyio.current_time() + self._idle_seconds
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._pipe, outgoing, self._far)
                    tasks.start_soon(self._pipe, incoming, self._near)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _pipe(self, pieces: Pieces, sink: ByteStream) -> None:
        try:
            async with aclosing(pieces):
                async for data in pieces:
                    await self._pace.spend(len(data))
                    self._noticed()
                    await sink.send(data)
            # One side has no more to say; the other may: pass on the end, and keep listening to it.
            await self._end(sink)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._scope.cancel()

    async def _end(self, sink: ByteStream) -> None:
        try:
            await sink.send_eof()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._scope.cancel()

    def _noticed(self) -> None:
        deadline = anyio.current_time() + self._idle_seconds
        if deadline - self._scope.deadline > min(_NOTICED, self._idle_seconds / 10):
            self._scope.deadline = deadline
