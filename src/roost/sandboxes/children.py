"""Children of this process, with pipes.

The event loop has a way to start them too, but it forks: the kernel copies what it knows of the server's
memory, and for these milliseconds, more with every session, nobody is served. The standard library
lends the child our memory until it becomes the program, which takes a fraction of one.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio
from anyio.lowlevel import checkpoint


class Output:
    """The end of a pipe that a child writes to."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor

    async def receive(self, limit: int = 65536) -> bytes:
        """Wait for the next bytes.

        :raises EndOfStream:
        :raises ClosedResourceError: closed on our side
        """
        await checkpoint()
        while self._descriptor is not None:
            try:
                data = os.read(self._descriptor, limit)
            except BlockingIOError:
                await anyio.wait_readable(self._descriptor)
                continue
            if not data:
                raise anyio.EndOfStream
            return data
        raise anyio.ClosedResourceError

    def close(self) -> None:
        """Let go of it; whoever waits for it learns so."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            anyio.notify_closing(descriptor)
            os.close(descriptor)


class Input:
    """The end of a pipe that a child reads from."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor

    async def send(self, data: bytes) -> None:
        """Write all of it. :raises BrokenResourceError: nobody reads it any more"""
        left = memoryview(data)
        while left:
            if self._descriptor is None:
                raise anyio.ClosedResourceError
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._descriptor)
            except BrokenPipeError:
                raise anyio.BrokenResourceError from None
        await checkpoint()  # after it, not before: whoever reads it can begin

    def close(self) -> None:
        """Close the pipe, so that the child reads the end of its input."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            anyio.notify_closing(descriptor)
            os.close(descriptor)


class Child:
    """A program that was started by us."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        environ: Mapping[str, str],
        descriptors: Sequence[int],
    ) -> None:
        """Blocks, until it has become the program. :raises OSError: it cannot be started"""
        self._process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=descriptors,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._handle = os.pidfd_open(self.pid)
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self.stdin = Input(os.dup(self._process.stdin.fileno()))
        self.stdout = Output(os.dup(self._process.stdout.fileno()))
        self.stderr = Output(os.dup(self._process.stderr.fileno()))
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            pipe.close()

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative if a signal ended it; None while it runs, or nobody has waited."""
        return self._process.returncode

    async def wait(self) -> int:
        """Its exit code, when it has one. One at a time may wait."""
        while (code := self._process.poll()) is None:
            await anyio.wait_readable(self._handle)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send the process a signal. :raises ProcessLookupError: it is gone"""
        self._process.send_signal(number)

    def close(self) -> None:
        """Let go of what is left of one that is gone."""
        for end in (self.stdin, self.stdout, self.stderr):
            end.close()
        with suppress(OSError):
            os.close(self._handle)
