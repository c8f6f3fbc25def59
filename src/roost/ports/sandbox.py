"""Where an agent's process lives, as whoever uses it sees it.

Opening one is apart from that: see `ports/sandbox_provider`. A command that fails is a
result; a sandbox that fails is an error (`SandboxFailed`), and must never be shown as the output of a
command. Nothing that comes out of a sandbox is believed: it is bounded, and it is data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox uses now; None where the machine cannot tell."""

    memory_bytes: int | None
    processes: int | None
    cpu_seconds: float | None


class Process(Protocol):
    """A command running inside. Its pipes are bytes; each read is bounded by `limit`."""

    async def send(self, data: bytes) -> None:
        """Write to its standard input. :raises SandboxFailed: it has closed its input or is gone"""
        ...

    async def close_input(self) -> None:
        """End of file on its standard input."""
        ...

    async def receive(self, limit: int = 65536) -> bytes:
        """The next bytes of its standard output; empty at its end."""
        ...

    def errors(self) -> bytes:
        """The last part (64 KiB at most) of what it wrote to its standard error."""
        ...

    async def wait(self) -> int:
        """Its exit code; negative or above 128 if a signal ended it.

        :raises SandboxFailed: the sandbox has died around it, and was not asked to
        """
        ...

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it is gone."""
        ...


class Sandbox(Protocol):
    """A sandbox that is open, and starts commands."""

    @property
    def has_ports(self) -> bool:
        """Whether it opens the ports of the plan's endpoints before a command starts.

        If not, `core/sandbox/loopback` starts each command by way of a program that opens them.
        """
        ...

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
    ) -> Process:
        """Start a command inside, with pipes. Called by harnesses.

        A command that cannot be found is a process that exits with 127. What one command leaves
        running may be gone when it ends.

        :raises SandboxFailed: the sandbox itself does not work, is stopped, or has no such `cwd`
        """
        ...

    async def stats(self) -> Stats:
        """What everything inside uses now, together."""
        ...

    async def stop(self) -> None:
        """Kill everything inside, whatever it does against it, and wait until it is gone."""
        ...
