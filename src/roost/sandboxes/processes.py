"""A command with pipes: what any sandbox that starts processes on this machine has in common.

Every command is started through a shell that writes one newline to standard output, waits for one on
standard input, and then becomes the command. Whoever starts it reads that byte first: if it comes,
everything around the command worked, and what follows is the command's own; if the pipe ends without it,
what is on standard error is the reason why the sandbox does not work. The byte that goes back says that the
server still lives: what is around a command takes some milliseconds until it dies with the server, and
nothing of the command has run before. A shell also turns a command that cannot be found into exit code 127.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import anyio

from roost.errors import SandboxFailed
from roost.sandboxes.children import Child

# Shells other than dash put these into the environment of what they become.
BECOME: Final = 'echo; read -r OLDPWD || exit 125; unset OLDPWD SHLVL; exec "$@"'
_ERRORS_KEPT: Final = 64 * 1024
_REASON_KEPT: Final = 2000
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError)


async def start(
    argv: Sequence[str],
    *,
    cwd: str = "/",
    environ: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> Child:
    """Start a program with pipes, and with nothing of our own environment.

    Called on the event loop's own thread, which is not an oversight: a process asked to die with its
    parent dies with the parent's *thread*, and worker threads come and go.

    :raises SandboxFailed: it cannot be started
    """
    if any("\0" in argument for argument in argv):
        raise SandboxFailed("cannot start a command: an argument holds a zero byte")
    try:
        return Child(argv, cwd=cwd, environ=environ or {}, descriptors=descriptors)
    except (OSError, ValueError) as error:
        raise SandboxFailed(f"cannot start a command: {error}") from error


class PipedProcess:
    """`ports.sandbox.Process` over a child of ours. `mind` must run beside it."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._tail = bytearray()
        self._finished = anyio.Event()
        self._drained = False

    @property
    def pid(self) -> int:
        """The child's pid on this machine."""
        return self._child.pid

    @property
    def drained(self) -> bool:
        """Whether all of its output has been received."""
        return self._drained

    @property
    def finished(self) -> bool:
        """Whether the command and all that belongs to it is gone."""
        return self._finished.is_set()

    async def send(self, data: bytes) -> None:
        try:
            await self._child.stdin.send(data)
        except _GONE as error:
            raise SandboxFailed("the command has closed its input, or is gone") from error

    async def close_input(self) -> None:
        self._child.stdin.close()

    async def receive(self, limit: int = 65536) -> bytes:
        try:
            return await self._child.stdout.receive(limit)
        except (anyio.EndOfStream, *_GONE):
            self._drained = True
            return b""

    def errors(self) -> bytes:
        return bytes(self._tail)

    async def wait_finished(self) -> None:
        """Wait until the command and all that belongs to it is gone."""
        await self._finished.wait()

    async def wait(self) -> int:
        await self._finished.wait()
        code = self._child.returncode
        assert code is not None, "finished before it ended"
        return code

    def signal(self, number: int) -> None:
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                self._child.send_signal(signal.Signals(number))

    def kill(self) -> None:
        """Kill it; nothing happens if it is gone."""
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGKILL)

    async def first_byte(self, ready: Callable[[], None] = lambda: None) -> None:
        """Wait until all is `ready` for the command, and let the shell become it.

        :raises SandboxFailed: it does not come to that
        """
        if await self.receive(1):
            ready()
            await self.send(b"\n")
            return
        self.kill()
        await self._finished.wait()
        reason = self.errors()[-_REASON_KEPT:].decode(errors="replace").strip()
        raise SandboxFailed(f"the command could not be started: {reason or 'no reason given'}")

    async def mind(self, after_exit: Callable[[], Awaitable[None]] | None = None) -> None:
        """Keep the end of its standard error; notice when it is gone.

        Goes on when cancelled: what ends it is the end of the process, which its sandbox sees to.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.cancel_scope.shield = True
                tasks.start_soon(self._keep_errors)
                await self._child.wait()
                if after_exit is not None:
                    await after_exit()
                # What it left running may hold the pipe open for ever.
                tasks.cancel_scope.deadline = anyio.current_time() + 1.0
        finally:
            self._finished.set()

    async def _keep_errors(self) -> None:
        with suppress(anyio.EndOfStream, *_GONE):
            while True:
                self._tail += await self._child.stderr.receive()
                del self._tail[:-_ERRORS_KEPT]

    async def close(self) -> None:
        """Let go of the pipes of a process that is gone."""
        self._child.close()
