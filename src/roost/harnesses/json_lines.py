"""The pipes of a program that speaks JSON, one object per line, both ways.

Whatever comes out of a sandbox is bounded and is data: a line that is too long, or is no frame of the
program's protocol, is dropped and counted, and the next one is read.
"""

from __future__ import annotations

import json
import logging
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec

from roost.errors import SandboxFailed
from roost.ports.sandbox import Process

Json = dict[str, Any]
_log = logging.getLogger(__name__)
MAX_LINE: Final = 32 * 1024 * 1024
_AHEAD = 256  # frames read before somebody asks for them; beyond that the program has to wait
_LARGE = (
    256 * 1024
)  # bytes of a frame that is not read ahead: 256 of the largest would be gigabytes
_LOOK_AGAIN = 0.02  # seconds between looks at whether all frames were taken
_ENDS_WITHIN = 5.0  # seconds the program has to end by itself


class LineSplitter:
    """Bytes in, whole lines out. A line over the limit is skipped as a whole, and counted."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self.skipped = 0
        self._limit = limit
        self._begun = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete."""
        *ends, rest = data.split(b"\n")
        lines = [line for end in ends if (line := self._ended(end)) is not None]
        self._add(rest)
        return lines

    def _ended(self, end: bytes) -> bytes | None:
        self._add(end)
        line = None if self._skipping else bytes(self._begun)
        self._skipping = False
        self._begun.clear()
        return line

    def _add(self, piece: bytes) -> None:
        if self._skipping:
            return
        self._begun += piece
        if len(self._begun) > self._limit:
            self.skipped += 1
            self._skipping = True
            self._begun.clear()


def decoded(line: bytes) -> Json | None:
    """The object in a line; None if there is none."""
    try:
        frame = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        frame = _mended(line)
    return frame if isinstance(frame, dict) else None


def _mended(line: bytes) -> object:
    """JavaScript cuts strings in the middle of a character, and writes half of it. That half goes."""
    try:
        whole = json.dumps(json.loads(line.decode(errors="replace")), ensure_ascii=False)
        return msgspec.json.decode(whole.encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


class JsonLines:
    """A program that runs. `pump` must run beside whoever uses it. `dropped` counts lines, by reason.

    `is_up` is called when it first says anything, or has ended without a word.
    """

    def __init__(self, process: Process, is_up: Callable[[], None] = lambda: None) -> None:
        self.dropped: Counter[str] = Counter()
        self.spoke = self.ended = False
        self._is_up = is_up
        self._process = process
        self._inbox, self._frames = anyio.create_memory_object_stream[Json](_AHEAD)
        self._writing = anyio.Lock(fast_acquire=True)

    def frame_of(self, line: bytes) -> Json | str:
        """The frame in a line, or why there is none. Programs differ in what a frame is."""
        return decoded(line) or "not a frame"

    async def pump(self) -> None:
        """Read frames until the program ends its output."""
        with self._inbox, suppress(SandboxFailed):
            await self._read()
        self.ended = True
        self._is_up()

    async def _read(self) -> None:
        lines = LineSplitter(MAX_LINE)
        while data := await self._process.receive():
            self.spoke = True
            self._is_up()
            for line in lines.feed(data):
                await self._pass_on(line)
            if lines.skipped > self.dropped["too long"]:
                self.dropped["too long"] = lines.skipped
                _log.error("the agent printed a line of more than %d bytes; skipped", MAX_LINE)

    async def next(self, seconds: float) -> Json:
        """Wait for the next frame.

        :raises TimeoutError: none came for that long
        :raises EndOfStream: there are no more
        """
        with anyio.fail_after(seconds):
            return await self._frames.receive()

    async def send(self, *frames: Json) -> None:
        """Write frames. If the program is gone that is no error here: `next` says so."""
        data = b"".join(msgspec.json.encode(frame) + b"\n" for frame in frames)
        async with self._writing:
            with suppress(SandboxFailed):
                await self._process.send(data)

    async def end(self) -> None:
        """Let it end by itself; make it, if it takes too long."""
        self._frames.close()
        await self._process.close_input()
        with anyio.move_on_after(_ENDS_WITHIN):
            await self._gone()
            return
        await self.kill()

    def stop_listening(self) -> None:
        """Let go of what it prints from now on, so that it can go on printing."""
        self._frames.close()

    async def kill(self) -> None:
        """End it as it stands."""
        self.stop_listening()
        self._process.signal(signal.SIGKILL)
        await self._gone()

    async def exit_status(self) -> tuple[int, str]:
        """The exit code of a program that has ended its output, and the end of what it wrote to stderr."""
        self._frames.close()
        with anyio.move_on_after(_ENDS_WITHIN):
            code = await self._process.wait()
            return code, self._process.errors().decode(errors="replace").strip()[-500:]
        await self.kill()
        return -signal.SIGKILL, "it closed its output and did not end"

    async def _gone(self) -> None:
        with suppress(SandboxFailed):  # then the whole place is gone, and it with it
            await self._process.wait()

    async def _pass_on(self, line: bytes) -> None:
        if not line.strip():
            return
        frame = self.frame_of(line)
        if isinstance(frame, str):
            self._drop(frame, line)
            return
        if len(line) > _LARGE:
            await self._all_taken()
        with suppress(anyio.BrokenResourceError):  # nobody listens; the pipe must not fill up
            await self._inbox.send(frame)

    async def _all_taken(self) -> None:
        def waits() -> bool:
            now = self._inbox.statistics()
            return now.current_buffer_used > 0 and now.open_receive_streams > 0

        while waits():  # noqa: ASYNC110 - the stream tells nobody
            await anyio.sleep(_LOOK_AGAIN)

    def _drop(self, reason: str, line: Sequence[int]) -> None:
        self.dropped[reason] += 1
        _log.debug("dropped a line, %s: %.200r", reason, line)
