"""One open sandbox: a running container, in which each command is an `exec`.

A command sees the others, and what it leaves running stays until the sandbox is left. The container's first
process does nothing but hold the sandbox open, as long as the server holds its input: see `recipe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.sandbox import Stats
from roost.sandboxes.bubblewrap.identity import SandboxIdentity
from roost.sandboxes.docker import recipe
from roost.sandboxes.docker.engine import Engine
from roost.sandboxes.docker.process import ContainerProcess
from roost.sandboxes.docker.wire import EngineRefused, EngineStream
from roost.sandboxes.open_sandboxes import Ending

_LOOKS: Final = 25  # at a container that says it runs, and starts nothing
_LOOK_SECONDS: Final = 0.2


class RunningContainer(msgspec.Struct, frozen=True):
    """A container of ours. `leash` is its first process's input; `foreign` are its image's variables.

    `processes`: how many the session may have in it; 0: no limit. `written`: where on this machine the engine keeps what
    is written to its root; None: that is read-only.
    """

    id: str
    who: SandboxIdentity
    leash: EngineStream
    environ: Mapping[str, str]
    foreign: Sequence[str]
    processes: int
    written: Path | None


class DockerSandbox:
    """`ports.sandbox.Sandbox`. Made and ended by `provider`."""

    has_ports = False

    def __init__(self, engine: Engine, container: RunningContainer, tasks: TaskGroup) -> None:
        self._engine = engine
        self._container = container
        self._tasks = tasks
        self._processes: list[ContainerProcess] = []
        self._ending = Ending()
        self._failure: str | None = None

    @property
    def container(self) -> str:
        """The engine's id for it."""
        return self._container.id

    @property
    def written(self) -> Path | None:
        """Where what is written to its root lies on this machine."""
        return self._container.written

    @property
    def stopped(self) -> bool:
        """Whether it was asked to end, and not for a failure."""
        return self._ending.begun and self._failure is None

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
    ) -> ContainerProcess:
        if self._ending.begun:
            raise SandboxFailed(self._failure or "the sandbox is stopped")
        self._processes = [process for process in self._processes if not process.over]
        merged = dict(self._container.environ) | dict(environ or {})
        container = self._container
        wanted = recipe.command(
            argv, merged, cwd, container.who, container.foreign, container.processes
        )
        try:
            command = await self._engine.prepare(container.id, wanted)
            stream = await self._engine.converse(command)
        except (
            EngineRefused,
            SandboxUnavailable,
        ) as error:  # it is this sandbox that broke, whatever others do
            raise SandboxFailed(f"the command could not be started: {error}") from error
        return await self._begun(ContainerProcess(self._engine, command, stream, self))

    async def _begun(self, process: ContainerProcess) -> ContainerProcess:
        self._tasks.start_soon(process.pump)
        try:
            await process.begin()
            if self._ending.begun:  # meanwhile; nobody else will let go of this one
                raise SandboxFailed(self._failure or "the sandbox is stopped")
        except BaseException:
            process.abandon()
            raise
        self._processes.append(process)
        self._tasks.start_soon(process.watch)
        return process

    def signal_later(self, pid: int, number: int) -> None:
        """Signal one of its processes, soon: it takes a command inside to do it."""
        self._tasks.start_soon(self._signal, pid, number)

    async def _signal(self, pid: int, number: int) -> None:
        with suppress(EngineRefused, SandboxFailed):  # it is gone, and so is whom it was for
            wanted = recipe.signalling(pid, number)
            await self._engine.run_detached(await self._engine.prepare(self._container.id, wanted))

    async def trouble(self) -> str | None:
        """Why the sandbox does not work; None if it does."""
        if self._failure is not None:
            return self._failure
        try:
            await anyio.sleep(0.1)  # its end is told later than that of what was in it
            for _ in range(_LOOKS):
                if not (await self._engine.inspect(self._container.id))["State"]["Running"]:
                    return "the sandbox was ended from outside"
                # An engine that is busy says "running" for a while after the end, but starts nothing.
                if await self._starts_commands():
                    return None
                await anyio.sleep(_LOOK_SECONDS)
        except (EngineRefused, SandboxFailed) as error:
            return f"the sandbox is gone: {error}"
        return None

    async def _starts_commands(self) -> bool:
        try:
            nothing = await self._engine.prepare(self._container.id, recipe.NOTHING)
            await self._engine.run_detached(nothing)
        except (EngineRefused, SandboxFailed):
            return False
        return True

    async def stats(self) -> Stats:
        try:
            found = await self._engine.usage(self._container.id)
        except (EngineRefused, SandboxUnavailable) as error:
            raise SandboxFailed(f"the sandbox is gone: {error}") from error
        memory, time = (
            found.get("memory_stats", {}),
            found.get("cpu_stats", {}).get("cpu_usage", {}),
        )
        spent = time.get("total_usage")
        return Stats(
            memory_bytes=_taken(memory),
            processes=found.get("pids_stats", {}).get("current"),
            cpu_seconds=None if spent is None else spent / 1e9,
        )

    async def fail(self, reason: str) -> None:
        """Stop it for a reason of ours, which commands that were running then give as theirs."""
        self._failure = reason
        await self.stop()

    async def stop(self) -> None:
        await self._ending.reach(self._kill)

    async def _kill(self) -> None:
        # First of all, as an engine does not remove what still has output that nobody takes.
        for process in self._processes:
            process.abandon()
        try:
            # An engine that is gone itself removes nothing. What it may have left ends with the leash, and
            # is removed before the session's next sandbox is open.
            with suppress(SandboxUnavailable):
                await self._engine.remove(self._container.id)
        finally:
            self._container.leash.close()
        for process in self._processes:
            await process.wait_finished()


def _taken(memory: Mapping[str, Any]) -> int | None:
    """Without what is only kept because nobody else needs the room; its name tells the kernel's version."""
    if "usage" not in memory:
        return None
    parts = memory.get("stats", {})
    kept = parts.get("total_inactive_file", parts.get("inactive_file", 0))
    return max(0, int(memory["usage"]) - int(kept))
