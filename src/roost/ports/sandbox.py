"""Where an agent's process lives.

Getting a place (`SandboxProvider`) is not using a place (`Sandbox`). A command that fails is a
result; a sandbox that fails is an error (`SandboxFailed`), and must never be shown as the output of a
command. Nothing that comes out of a sandbox is believed: it is bounded, and it is data.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec


class Mount(msgspec.Struct, frozen=True):
    """A file, directory or socket of the host, shown inside at `target`.

    Whoever is inside is nobody in particular on the host: what is shown must be readable for everybody
    (and a socket writable), and is protected by the directory it lies in. `hidden` are paths below a
    directory that is shown: directories that are there, and look empty.
    """

    source: Path
    target: str
    writable: bool = False
    hidden: Sequence[str] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What everything inside may use together. 0: no limit of ours."""

    memory_bytes: int = 4 * 1024**3
    processes: int = 512
    cpus: float = 2.0
    open_files: int = 4096
    disk_bytes: int = 10 * 1024**3
    tmp_bytes: int = 256 * 1024**2


Take = Callable[[socket.socket], Awaitable[None]]
"""Takes over a connection from inside; returns when there is room for the next one. Never fails."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox is to be.

    `home` becomes `/home/sandbox` and `workspace` becomes `/workspace`, both writable; they may be
    the same directory. What the workspace has under the names in `hidden` is an empty directory there, and
    nothing can be put into it; that is for what belongs to the home alone. `mounts` are added to that. A command's environment is `HOME` and `PATH` of the
    place, then `environ`, then what `spawn` is given, and nothing else (shells add `PWD`). There is no network: what a session may reach is
    reached through unix sockets among the mounts. `generation` is the lease's: a place of an older
    generation must be gone before a newer one is open, also if another server on this machine holds it.
    A place without walls adds `ROOST_PLACE`, to find again what was started in it. `ports` of a command's
    own loopback lead to whoever takes their connections, if the place can have them (`has_ports`).
    """

    session_id: str
    generation: int
    home: Path
    workspace: Path
    hidden: Sequence[str] = ()
    mounts: Sequence[Mount] = ()
    environ: Mapping[str, str] = {}
    ports: Mapping[int, Take] = {}
    limits: Limits = Limits()


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

        :raises SandboxFailed: the place has died around it, and was not asked to
        """
        ...

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it is gone."""
        ...


class Sandbox(Protocol):
    """A place that is open."""

    @property
    def has_ports(self) -> bool:
        """Whether the plan's `ports` are open before a command starts; else it has to see to that itself."""
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

        :raises SandboxFailed: the place itself does not work, is stopped, or has no such `cwd`
        """
        ...

    async def stats(self) -> Stats:
        """What it uses now."""
        ...

    async def stop(self) -> None:
        """Kill everything inside, whatever it does against it, and wait until it is gone."""
        ...


class SandboxProvider(Protocol):
    """Gives places of one kind."""

    @property
    def name(self) -> str:
        """The word settings name it by."""
        ...

    async def check(self) -> None:
        """Called before a place is asked for, and by `roost doctor`.

        :raises SandboxUnavailable: this machine cannot give one now; the hint says what to do
        """
        ...

    def open(self, plan: Plan) -> AbstractAsyncContextManager[Sandbox]:
        """A place according to the plan; everything inside is dead when the context ends.

        It dies with this process too, whatever kills it: at once, or when the next server sweeps.

        :raises SandboxUnavailable: it cannot be made
        """
        ...

    async def sweep(self) -> None:
        """End every place on this machine whose server is dead; those of living servers are left alone.

        Called when a server starts. Nothing is given to find them by: servers keep no list of their
        places, because they can die before they have written to it.

        :raises SandboxUnavailable: what holds the places does not answer
        :raises SandboxFailed: something does not die
        """
        ...
