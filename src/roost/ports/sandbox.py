"""Where an agent's process lives.

Opening a sandbox (`SandboxProvider`) is apart from using one (`Sandbox`). A command that fails is a
result; a sandbox that fails is an error (`SandboxFailed`), and must never be shown as the output of a
command. Nothing that comes out of a sandbox is believed: it is bounded, and it is data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from roost.ports.sandbox_plan import Plan


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


class SandboxProvider(Protocol):
    """Opens sandboxes of one kind. Each kind is found by name in `roost.sandboxes.SANDBOXES`."""

    @property
    def name(self) -> str:
        """The word settings name it by."""
        ...

    @property
    def isolates(self) -> bool:
        """Whether it keeps what runs inside from the machine, as a sandboxed session is promised.

        If not, only sessions whose trust level asks for no isolation get it.
        """
        ...

    async def check(self) -> None:
        """Called before a sandbox is asked for, and by `roost doctor`.

        :raises SandboxUnavailable: this machine cannot give one now; the hint says what to do
        """
        ...

    def open(self, plan: Plan) -> AbstractAsyncContextManager[Sandbox]:
        """A sandbox according to the plan; everything inside is dead when the context ends.

        It dies with this process too, whatever kills it: at once, or when the next server sweeps.

        :raises SandboxUnavailable: it cannot be made
        """
        ...

    async def sweep(self) -> None:
        """End every sandbox on this machine whose server is dead; those of living servers are left alone.

        Called when a server starts. Nothing is given to find them by: servers keep no list of their
        sandboxes, because they can die before they have written to it.

        :raises SandboxUnavailable: what holds the sandboxes does not answer
        :raises SandboxFailed: something does not die
        """
        ...

    async def limits_report(self) -> Mapping[str, str]:
        """How each limit is in force, in words. Called by `roost doctor`, once `check` has passed.

        :raises SandboxUnavailable: this machine cannot give a sandbox now
        """
        ...
