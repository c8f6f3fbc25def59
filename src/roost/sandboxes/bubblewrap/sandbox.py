"""One open sandbox.

Each command is a bwrap of its own, with its own namespaces and its own `/tmp`; what the commands of a
sandbox have in common is the mounts, the uid and the control group, and with it the limits. That is the
simplest thing that holds: nothing of ours runs inside, nobody has to be let in later, and a command
takes all it has started with it when it ends.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from roost.errors import SandboxFailed
from roost.ports.sandbox import Stats
from roost.sandboxes import procfs
from roost.sandboxes.bubblewrap import ports, root
from roost.sandboxes.bubblewrap.launch import Launch, Launcher
from roost.sandboxes.children import Child
from roost.sandboxes.open_sandboxes import Ending
from roost.sandboxes.processes import PipedProcess, start

_COMMAND: Final = 2  # its pid inside: 1 is bwrap's, which starts it and reaps
_SECONDS_TO_DIE: Final = 10.0
_GLANCE_SECONDS: Final = 0.001
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class BubblewrapProcess(PipedProcess):
    """A command inside. The child of ours is bwrap, watching from outside."""

    def __init__(self, child: Child, launch: Launch, sandbox: BubblewrapSandbox) -> None:
        super().__init__(child)
        self.launch = launch
        self._info: int | None = os.dup(launch.info)
        self._sandbox = sandbox
        self._first: int | None = None  # the pid of its namespace's first process
        self._listeners: list[socket.socket] = []

    def _met(self) -> int | None:
        """The namespace's first process, once bwrap has told."""
        if self._first is None and self._info is not None:
            with suppress(msgspec.DecodeError):  # nothing yet, or not all of it
                self._first = msgspec.json.decode(os.pread(self._info, 4096, 0))["child-pid"]
        return self._first

    async def limit(self, processes: int) -> None:
        """Let it have so many processes, before anything inside runs. :raises SandboxFailed: that cannot be"""
        while (first := self._met()) is None and not self.finished:  # noqa: ASYNC110 - see `Launch.info`
            await anyio.sleep(_GLANCE_SECONDS)
        if first is None:
            return  # it is gone; why, is said next
        try:
            _, hard = resource.prlimit(first, resource.RLIMIT_NPROC)
            most = processes if hard == resource.RLIM_INFINITY else min(processes, hard)
            if not _is_marked(first, self._sandbox.token):
                return  # it is gone, and perhaps another has its number; it is not let go
            resource.prlimit(first, resource.RLIMIT_NPROC, (most, most))
        except ProcessLookupError:
            return
        except OSError as error:
            raise SandboxFailed(f"its processes cannot be limited: {error}") from error
        self.launch.go()

    async def wait(self) -> int:
        code = await super().wait()
        if self._sandbox.failure is not None:
            raise SandboxFailed(self._sandbox.failure)
        if code < 0 and not self._sandbox.stopped:
            # bwrap itself was killed. A signal that ends the command is told as 128 and more.
            raise SandboxFailed("the sandbox was killed from outside, perhaps for lack of memory")
        return code

    def signal(self, number: int) -> None:
        first = self._met()
        for pid in procfs.children(first) if first else ():
            if procfs.inner_pid(pid) == _COMMAND:
                procfs.send(pid, number, still=lambda pid=pid: self._is_mine(pid))  # type: ignore[misc]

    def _is_mine(self, pid: int) -> bool:
        seen = procfs.look(pid)
        return seen is not None and seen.parent == self._first and not self.finished

    def listen(self, numbers: Iterable[int]) -> list[socket.socket]:
        """Open ports of its own, while it waits to begin. :raises SandboxFailed: they cannot be opened"""
        first = self._met()
        try:
            if first is None:
                raise ProcessLookupError("bwrap has not told of it")
            still = partial(_is_marked, first, self._sandbox.token)
            self._listeners = ports.listen(first, numbers, still)
        except OSError as error:
            raise SandboxFailed(f"its ports cannot be opened: {error}") from error
        return self._listeners

    async def all_gone(self) -> None:
        """bwrap ends before the namespace it has made; the first process in there ends last of all."""
        try:
            first = self._met()
            if first is not None:
                await _ended(first, self._sandbox.token)
            elif (self._child.returncode or 0) < 0:
                await anyio.to_thread.run_sync(_end_abandoned, self._sandbox.token)
        finally:
            info, self._info = self._info, None
            if info is not None:
                os.close(info)
            for listener in self._listeners:
                ports.close(listener)
            self.launch.close()
            self._sandbox.discard(self.launch.root)


async def _ended(pid: int, token: str) -> None:
    """End it, and wait until it has: a bwrap killed in its first moments takes nothing with it."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        line = procfs.command_line(pid)  # one that is just dying has none any more
        if procfs.inner_pid(pid) != 1 or (line and token.encode() not in line):
            return  # gone, and its pid is another's by now
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        await anyio.wait_readable(handle)
        # bwrap has left it to whoever reaps orphans. In a container without an init that is us.
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - no waiting
    finally:
        os.close(handle)


def _end_abandoned(token: str) -> None:
    """End what a bwrap has left that was killed before it could tell of it. Blocks for some milliseconds.

    It waits for ever to be let go, and holds our pipes open meanwhile.
    """
    known = marked(token)
    for pid in known:
        seen = procfs.look(pid)
        if seen is not None and seen.parent not in known and procfs.inner_pid(pid) == 1:
            procfs.send(pid, signal.SIGKILL, still=lambda pid=pid: _is_marked(pid, token))  # type: ignore[misc]


class BubblewrapSandbox:
    """`ports.sandbox.Sandbox`. Made and ended by `provider`."""

    def __init__(self, launcher: Launcher, tasks: TaskGroup) -> None:
        self._launcher = launcher
        self._group = launcher.group
        self._tasks = tasks
        self._processes: list[BubblewrapProcess] = []
        self._first: BubblewrapProcess | None = None
        self._ending = Ending()
        self.failure: str | None = None
        self.token = launcher.token

    @property
    def stopped(self) -> bool:
        """Whether it was asked to end, for whatever reason."""
        return self._ending.begun

    @property
    def has_ports(self) -> bool:
        """Whether this server may open them, and who serves them can take connections over."""
        return self._launcher.takes_all and ports.may_enter()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
    ) -> BubblewrapProcess:
        if self.stopped:
            raise SandboxFailed(self.failure or "the sandbox is stopped")
        await self._forget_finished()
        process, self._first = self._first or await self._begun(), None
        try:
            self._launcher.finish(process.launch, argv, environ, cwd)
            if self.stopped:  # meanwhile; nobody else will kill this one
                await anyio.to_thread.run_sync(kill_marked, self._launcher.token)
            with suppress(SandboxFailed):  # it is gone; why, is said next
                await process.send(b"\n")
            if process.launch.waits:
                await process.limit(self._launcher.processes)
            await process.first_byte(partial(self._open_ports, process))
        except BaseException:
            process.kill()  # its launch is closed when all of it is gone
            raise
        process.launch.close()
        return process

    def _open_ports(self, process: BubblewrapProcess) -> None:
        wanted = self._launcher.ports if self.has_ports else {}
        if wanted:
            for listener, take in zip(process.listen(wanted), wanted.values(), strict=True):
                self._tasks.start_soon(ports.attend, listener, take)

    async def set_out(self) -> None:
        """Begin the first command, whatever it will be."""
        self._first = await self._begun()

    async def _begun(self) -> BubblewrapProcess:
        launch = self._launcher.begin()
        try:
            process = BubblewrapProcess(
                await start(launch.argv, descriptors=launch.descriptors), launch, self
            )
        except BaseException:
            launch.close()
            raise
        self._processes.append(process)
        self._tasks.start_soon(process.mind, process.all_gone)
        return process

    async def _forget_finished(self) -> None:
        over = [process for process in self._processes if process.finished and process.drained]
        self._processes = [process for process in self._processes if process not in over]
        for process in over:
            await process.close()

    def discard(self, written: Path | None) -> None:
        """Remove what a command that is gone has written to its root, in the background."""
        if written is not None and not self.stopped:  # else all of it is removed
            self._tasks.start_soon(anyio.to_thread.run_sync, root.remove, written)

    async def stats(self) -> Stats:
        if self._group is not None:
            return await anyio.to_thread.run_sync(self._group.stats)
        return await anyio.to_thread.run_sync(self._added_up)

    def _added_up(self) -> Stats:
        seen = procfs.descendants([p.pid for p in self._processes if not p.finished])
        return Stats(
            memory_bytes=sum(one.pages for one in seen) * _PAGE,
            processes=len(seen),
            cpu_seconds=sum(one.cpu_ticks for one in seen) / _TICKS,
        )

    async def fail(self, reason: str) -> None:
        """Stop it for a reason of ours, which commands that were running then give as theirs."""
        self.failure = reason
        await self.stop()

    async def stop(self) -> None:
        await self._ending.reach(self._kill)

    async def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        if self._group is not None:
            await anyio.to_thread.run_sync(self._group.destroy)
        else:
            await anyio.to_thread.run_sync(kill_marked, self._launcher.token)
        with anyio.move_on_after(_SECONDS_TO_DIE):
            for process in self._processes:
                await process.wait_finished()
        if not all(process.finished for process in self._processes):
            raise SandboxFailed("processes in the sandbox could not be killed")
        for process in self._processes:
            await process.close()
        self._launcher.held.close()


def kill_marked(token: str, *, seconds: float = _SECONDS_TO_DIE) -> None:
    """Kill all bwrap processes that carry the token, and with them what is inside. Blocks.

    The token is in the command line of a process outside of the sandbox, so nothing inside can take
    it away. One pass is not enough: a bwrap killed in its first moments leaves a child behind that
    does not yet know that it should die too, and that a look at the others may have missed.

    :raises SandboxFailed: one of them does not die
    """
    deadline = time.monotonic() + seconds
    while found := marked(token):
        for pid in found:
            procfs.send(pid, signal.SIGKILL, still=lambda pid=pid: _is_marked(pid, token))  # type: ignore[misc]
        if time.monotonic() > deadline:
            raise SandboxFailed("processes in the sandbox could not be killed")
        time.sleep(0.001)


def marked(token: str) -> list[int]:
    """The processes that carry the token."""
    return [seen.pid for seen in procfs.everything() if _is_marked(seen.pid, token)]


def _is_marked(pid: int, token: str) -> bool:
    return token.encode() in procfs.command_line(pid)
