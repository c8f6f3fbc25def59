"""The two streams of frames between this server and a container, over a pool that runs code and keeps files.

What goes in is uploaded as numbered files, one at a time. What comes out is asked for by its position, with executions
that wait for it. Both may be tried any number of times: a number is taken once, and a position gives the same bytes.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import anyio

from roost.dynamic_sessions import CodePool, PoolRefused, PoolUnavailable

HEADER: Final = struct.Struct(">cII")
PIECE: Final = struct.Struct(">II")
EXCHANGE: Final = "roost-exchange"
"""The folder of a container's files in which both sides leave what is for the other one."""

NONSENSE: Final = (ValueError, TypeError, KeyError, ArithmeticError, RecursionError)
"""What an answer that is none leads to, such as numbers that have no end, or lists in lists in lists."""

_WAIT: Final = 8.0  # seconds that an execution waits for something to come out
_LARGE: Final = 48 * 1024  # bytes in an answer; what is more comes as a file
_SMALL: Final = 2_000  # the same where answers are cut at 4,096 characters
_MOST_AT_ONCE: Final = 1024 * 1024
_DAMAGED: Final = 5  # answers in a row
_AT_ONCE: Final = 1.0  # seconds: an answer without anything in it should take longer
_LONGEST_PAUSE: Final = 2.0
_LONGEST: Final = 16 * 1024 * 1024  # bytes of a frame, or of a file with frames
_FILES: Final = re.compile(r"out-[0-9]{1,20}|down-[0-9]{1,20}-[0-9]{1,10}")  # that it makes
_ASK: Final = '''\
def _roost_ask(_given):
    import base64, json, socket
    asked = json.loads(base64.b64decode(_given))
    door = socket.socket(socket.AF_UNIX)
    with door:
        try:
            door.connect(asked["door"])
        except OSError:
            return "gone"
        parts = []
        try:
            door.sendall(json.dumps(asked).encode() + b"\\n")
            while part := door.recv(65536):
                parts.append(part)
        except OSError:
            pass
    text = base64.b64encode(b"".join(parts)).decode()
    return str(len(text)) + ":" + text


_roost_ask("'''

Take = Callable[[bytes, int, bytes], None]
"""Takes a frame: its kind, its channel, its bytes."""


def called(code: str, asked: dict[str, Any]) -> str:
    """The code, which ends in the middle of a call, with what it is asked for. That is data, never code."""
    return f'{code}{base64.b64encode(json.dumps(asked).encode()).decode()}")'


class _Gone(Exception):
    """Nobody opens the door: the container was replaced, or what ran in it has ended."""


class Link:
    """Frames to and from one container; `door` is the socket in it that is asked."""

    def __init__(self, pool: CodePool, identifier: str, folder: str, door: str) -> None:
        self._pool = pool
        self._identifier = identifier
        self._folder = folder
        self._door = door
        self._waiting = bytearray()
        self._is_waiting = anyio.Event()
        self._most = _LARGE
        self._scope = anyio.CancelScope(shield=True)
        self.failure: str | None = None
        self.has_failed = False
        self.ended = anyio.Event()

    def put(self, kind: bytes, channel: int, data: bytes = b"") -> None:
        """Send a frame, soon."""
        self._waiting += HEADER.pack(kind, channel, len(data)) + data
        self._is_waiting.set()

    async def run(self, take: Take) -> None:
        """Send and receive until it is closed or fails. Goes on when cancelled: the end of the container needs it."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._send)
                    await self._receive(take)
        except* _Gone:
            self.has_failed = True
            self.failure = self.failure or "the container was replaced, or has ended"
        except* (PoolUnavailable, PoolRefused) as errors:
            self.has_failed = True
            self.failure = self.failure or f"the pool failed: {errors.exceptions[0]}"
        finally:
            self.failure = self.failure or "the sandbox is closed"
            self.ended.set()

    def close(self, failure: str | None = None) -> None:
        """Neither send nor receive any more."""
        self.failure = self.failure or failure
        self._scope.cancel()

    async def put_file(self, name: str, data: bytes) -> None:
        """Leave a file for the other side. :raises PoolUnavailable: :raises PoolRefused:"""
        await self._pool.upload(self._identifier, self._folder, name, data)

    async def file(self, name: str, size: int, check: int) -> bytes:
        """A file that the other side has left, which has to be this one.

        :raises PoolUnavailable: :raises PoolRefused:
        """
        if not _FILES.fullmatch(name):
            raise PoolRefused(f"the container names a file that it does not make: {name[:100]!r}")
        for _ in range(_DAMAGED):
            data = await self._pool.download(self._identifier, self._folder, name, size)
            if (len(data), zlib.crc32(data)) == (size, check):
                return data
        raise PoolRefused(f"the file {name} was damaged on its way")

    async def _send(self) -> None:
        number = 1
        while True:
            await self._is_waiting.wait()
            self._is_waiting = anyio.Event()
            while self._waiting:
                frames = bytes(self._waiting[:_MOST_AT_ONCE])
                del self._waiting[:_MOST_AT_ONCE]
                await self._upload(number, frames)
                number += 1

    async def _upload(self, number: int, part: bytes) -> None:
        data = PIECE.pack(zlib.crc32(part), len(part)) + part
        await self.put_file(f"in-{number:08d}", data)

    async def _receive(self, take: Take) -> None:
        position, held, damaged, pause = 0, bytearray(), 0, 0.0
        while True:
            asked = anyio.current_time()
            data = await self._asked(position)
            # It should have waited for something: it is not asked again and again.
            is_hasty = data == b"" and anyio.current_time() - asked < _AT_ONCE
            pause = min(2 * pause + 0.05, _LONGEST_PAUSE) if is_hasty else 0.0
            await anyio.sleep(pause)
            if data is None:
                damaged += 1
                if damaged > _DAMAGED:
                    raise PoolRefused("answers are damaged on their way")
                continue
            damaged = 0
            position += len(data)
            held += data
            try:
                _frames(held, take)
            except NONSENSE as error:
                raise PoolRefused(f"the container says something else: {error}") from None

    async def _asked(self, position: int) -> bytes | None:
        """What comes after this position, perhaps nothing; None: the answer was damaged."""
        asked = {"door": self._door, "after": position, "most": self._most, "wait": _WAIT}
        answer = await self._pool.text(self._identifier, called(_ASK, asked))
        if answer == "gone":
            raise _Gone
        size, found, text = answer.partition(":")
        if not found or not size.isdigit():
            raise PoolRefused(f"the pool answers with something else: {answer[:200]}")
        if len(text) != int(size):
            self._most = _SMALL
            return None
        try:
            head, _, data = base64.b64decode(text, validate=True).partition(b"\n")
            told = json.loads(head)
            if "file" in told and 0 <= told["size"] <= _LONGEST:
                return await self.file(str(told["file"]), told["size"], told["sum"])
            return data if zlib.crc32(data) == told["sum"] else None
        except NONSENSE:
            return None  # it died while it answered: the next one to ask will know


def _frames(held: bytearray, take: Take) -> None:
    """Take the frames that are whole. :raises ValueError: they are none"""
    at = 0
    while len(held) - at >= HEADER.size:
        kind, channel, size = HEADER.unpack_from(held, at)
        if size > _LONGEST:
            raise ValueError(f"a frame of {size} bytes")
        if len(held) - at - HEADER.size < size:
            break
        at += HEADER.size
        take(kind, channel, bytes(held[at : at + size]))
        at += size
    del held[:at]
