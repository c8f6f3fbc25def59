"""A command in a container, over the one stream an engine gives for its input and both its outputs."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final, Protocol

import anyio

from roost.errors import SandboxFailed
from roost.sandboxes.docker.engine import Engine
from roost.sandboxes.docker.wire import EngineRefused, EngineStream

_ERRORS_KEPT: Final = 64 * 1024
_REASON_KEPT: Final = 2000
_OUTPUT_KEPT: Final = 256 * 1024
_FRAME: Final = struct.Struct(">BxxxI")
_ERROR_OUTPUT: Final = 2
_LONGEST_PID: Final = 12
_KILLED: Final = 128 + 9
_TORN_OFF: Final = (
    126  # an engine's word for a command whose container has gone; a shell's for others
)
_LOOK_SECONDS: Final = 1.0
_REST_SECONDS: Final = 1.0


class ProcessOwner(Protocol):
    """What a command knows of where it is."""

    @property
    def stopped(self) -> bool:
        """Whether it was asked to end."""
        ...

    async def trouble(self) -> str | None:
        """Why the sandbox does not work; None if it does."""
        ...

    def signal_later(self, pid: int, number: int) -> None:
        """Signal one of its processes, soon."""
        ...


class Pipe:
    """Bytes on their way, a bounded number: whoever puts more waits."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._changed = anyio.Event()
        self._ended = False

    @property
    def drained(self) -> bool:
        """Whether nothing more can come out."""
        return self._ended and not self._data

    async def put(self, data: bytes) -> None:
        """Add bytes; they are dropped if nobody will take any more."""
        while len(self._data) >= _OUTPUT_KEPT and not self._ended:
            await self._changed.wait()
        if not self._ended:
            self._data += data
            self._change()

    async def take(self, limit: int) -> bytes:
        """The next bytes; empty at the end."""
        while not self._data and not self._ended:
            await self._changed.wait()
        taken = bytes(self._data[:limit])
        del self._data[:limit]
        self._change()
        return taken

    def end(self) -> None:
        """Nothing more will be put: whoever takes gets what is left, and then the end."""
        self._ended = True
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class ContainerProcess:
    """`ports.sandbox.Process`. `pump` must run beside it, and `watch` once it has begun."""

    def __init__(
        self, engine: Engine, command: str, stream: EngineStream, sandbox: ProcessOwner
    ) -> None:
        self._engine = engine
        self._command = command
        self._stream = stream
        self._sandbox = sandbox
        self._output = Pipe()
        self._tail = bytearray()
        self._pumped = anyio.Event()
        self._finished = anyio.Event()
        self._code: int | None = None
        self._trouble: str | None = None
        self._pid: int | None = None

    @property
    def over(self) -> bool:
        """Whether it is gone, and all of its output received."""
        return self._finished.is_set() and self._output.drained

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except OSError as error:
            raise SandboxFailed("the command is gone") from error

    async def close_input(self) -> None:
        self._stream.end_output()

    async def receive(self, limit: int = 65536) -> bytes:
        return await self._output.take(limit)

    def errors(self) -> bytes:
        return bytes(self._tail)

    async def wait(self) -> int:
        await self._finished.wait()
        if self._code is None:
            raise SandboxFailed(self._trouble or "the sandbox is gone")
        return self._code

    def signal(self, number: int) -> None:
        if self._pid is not None and not self._finished.is_set() and not self._sandbox.stopped:
            self._sandbox.signal_later(self._pid, number)

    async def begin(self) -> None:
        """Let it become the command, once it is there.

        :raises SandboxFailed: it does not come to that
        """
        told = bytearray()
        while not told.endswith(b"\n") and len(told) < _LONGEST_PID:
            if not (byte := await self.receive(1)):
                break
            told += byte
        if told[:-1].isdigit():
            self._pid = int(told)
            await self.send(b"\n")
            return
        self.abandon()
        await self._pumped.wait()
        reason = (bytes(told) + self.errors())[-_REASON_KEPT:].decode(errors="replace").strip()
        raise SandboxFailed(f"the command could not be started: {reason or 'no reason given'}")

    def abandon(self) -> None:
        """Hang up. What has not begun yet never will."""
        self._stream.close()
        self._output.end()

    async def wait_finished(self) -> None:
        """Wait until it is gone, and what it wrote is here or lost."""
        await self._finished.wait()
        await self._pumped.wait()

    async def pump(self) -> None:
        """Take its outputs apart, until they end."""
        try:
            while header := await self._exactly(_FRAME.size):
                if len(header) < _FRAME.size or header[0] > _ERROR_OUTPUT:
                    # No frame: the engine says in plain words why there is no command.
                    self._keep(header + await self._stream.receive())
                    return
                await self._frame(*_FRAME.unpack(header))
        finally:
            self.abandon()
            self._pumped.set()

    async def _frame(self, kind: int, size: int) -> None:
        while size and (data := await self._stream.receive(min(size, 65536))):
            size -= len(data)
            if kind == _ERROR_OUTPUT:
                self._keep(data)
            else:
                await self._output.put(data)

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (more := await self._stream.receive(size - len(data))):
            data += more
        return data

    def _keep(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-_ERRORS_KEPT]

    async def watch(self) -> None:
        """Find out its exit code once its outputs have ended."""
        try:
            code = await self._ended()
            if code in (None, _KILLED, _TORN_OFF):  # perhaps with all the sandbox
                self._trouble = None if self._sandbox.stopped else await self._sandbox.trouble()
                if self._trouble:
                    code = None
                elif self._sandbox.stopped or code is None:
                    code = _KILLED
            # What it left running may hold its outputs open for ever.
            with anyio.move_on_after(_REST_SECONDS):
                await self._pumped.wait()
            self._code = code
        finally:
            self._finished.set()

    async def _ended(self) -> int | None:
        """Its exit code; None if the engine does not know it any more.

        The end of its outputs is nearly always the end of the command, and if not, a look now and then
        will tell.
        """
        with suppress(EngineRefused, SandboxFailed):
            while (code := await self._engine.exit_code(self._command)) is None:
                with anyio.move_on_after(_LOOK_SECONDS):
                    await self._pumped.wait()
                    await anyio.sleep(0.005)
            return code
        return None
