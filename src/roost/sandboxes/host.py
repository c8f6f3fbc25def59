"""No confinement at all: the agent runs as the server does, for sessions whose trust level says so.

Paths are the machine's own: a command's `HOME` is the plan's home unless the plan says otherwise, and mounts
are not made. A working directory, a variable or a program that is named as a sandbox would show it
(`/workspace`, `/home/sandbox`, the target of a mount) is the machine's file behind that. Limits hold if the
machine lets us make control groups, else only that of open files.

What can get away when a sandbox is stopped: with control groups nothing, unless the server is root and the
command moves itself out of its group. Without them, whatever has made itself a session of its own, lost
its parent before that, and emptied its environment, where the sandbox has its name. And when the server
itself is killed, only the commands it started die with it; what those had started runs on until the next
server starts, and sweeps.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskGroup

from roost.config import Settings
from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.sandbox import Sandbox, Stats
from roost.ports.sandbox_provider import Plan, SandboxLimits
from roost.sandboxes import cgroups, leftovers, procfs, sandbox_names
from roost.sandboxes.cgroups import Cgroups, Group
from roost.sandboxes.open_sandboxes import Ending, OpenSandboxes
from roost.sandboxes.processes import BECOME, PipedProcess, start

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECONDS_TO_DIE: Final = 10.0
_LONGEST_SOCKET: Final = 100  # bytes; the system takes 107
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def make(settings: Settings) -> HostProvider:
    """Make the provider from the settings; `SANDBOXES` names this function."""
    return HostProvider()


class HostProvider:
    """`ports.sandbox.SandboxProvider`.

    :param use_cgroups: False to do without, as a machine that has none for us
    """

    def __init__(self, *, use_cgroups: bool = True) -> None:
        self._use_cgroups = use_cgroups
        self._groups: Cgroups | None = None
        self._open: OpenSandboxes[HostSandbox] = OpenSandboxes()

    @property
    def name(self) -> str:
        return "host"

    @property
    def isolates(self) -> bool:
        return False

    async def check(self) -> None:
        if shutil.which("setpriv", path=_PATH) is None:
            raise SandboxUnavailable("the program setpriv is missing", hint="Install util-linux.")

    def open(self, plan: Plan) -> AbstractAsyncContextManager[Sandbox]:
        return self._opened(plan)

    @asynccontextmanager
    async def _opened(self, plan: Plan) -> AsyncGenerator[Sandbox, None]:
        try:
            async with self._open.slot(plan) as slot, anyio.create_task_group() as tasks:
                group = await anyio.to_thread.run_sync(self._prepare, plan)
                with _found(plan) as names:
                    sandbox = HostSandbox(plan, group, tasks, names)
                    slot.take(sandbox)
                    try:
                        yield sandbox
                    finally:
                        await sandbox.stop()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the body's own

    def _prepare(self, plan: Plan) -> Group | None:
        groups = self._find_groups()
        try:
            leftovers.end(groups, sandbox_names.older_or_orphaned(plan))
            return groups.create(sandbox_names.name_of(plan), plan.limits)
        except (OSError, SandboxFailed) as error:
            raise SandboxUnavailable(f"cannot prepare the sandbox: {error}") from error

    def _find_groups(self) -> Cgroups:
        if self._groups is None:
            self._groups = cgroups.detect() if self._use_cgroups else Cgroups({})
        return self._groups

    async def sweep(self) -> None:
        groups = await anyio.to_thread.run_sync(self._find_groups)
        await anyio.to_thread.run_sync(leftovers.end, groups, sandbox_names.orphaned)

    async def limits_report(self) -> dict[str, str]:
        groups = await anyio.to_thread.run_sync(self._find_groups)
        none = "not limited"
        return {
            "memory": groups.says("memory") or none,
            "processes": groups.says("pids") or none,
            "cpus": groups.says("cpu") or none,
            "open files": "each process by itself (rlimit)",
            "uid": "the server's own, for all sessions",
        }


class HostProcess(PipedProcess):
    """A command. `left` is what remains in its session once it has ended."""

    left: Sequence[procfs.ProcessInfo] = ()

    async def look_back(self) -> None:
        """Called as soon as it has ended: later, its pid and its session may be another's."""
        self.left = await anyio.to_thread.run_sync(_in_session, self.pid)


class HostSandbox:
    """`ports.sandbox.Sandbox`, whose commands are plain processes of the machine."""

    has_ports = False

    def __init__(
        self, plan: Plan, group: Group | None, tasks: TaskGroup, names: Mapping[str, str]
    ) -> None:
        self._plan = plan
        self._names = names
        self._group = group
        self._tasks = tasks
        self._processes: list[HostProcess] = []
        self._name = sandbox_names.name_of(plan)
        self._before = _before(plan.limits, group)
        self._ending = Ending()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
    ) -> HostProcess:
        if self._ending.begun:
            raise SandboxFailed("the sandbox is stopped")
        base = {
            "HOME": str(self._plan.home.path),
            "PATH": _PATH,
            sandbox_names.VARIABLE: self._name,
        }
        given = dict(self._plan.environ) | dict(environ or {})
        merged = base | {name: self._on_host(value) for name, value in given.items()}
        command = [*self._before, *map(self._on_host, argv[:1]), *argv[1:]]
        process = HostProcess(await start(command, cwd=self._on_host(cwd), environ=merged))
        self._processes.append(process)
        # A control group knows by itself what is left.
        self._tasks.start_soon(process.mind, process.look_back if self._group is None else None)
        try:
            await process.first_byte()
        except BaseException:
            process.kill()
            raise
        return process

    def _on_host(self, path: str) -> str:
        for inside, outside in self._names.items():
            if path == inside or path.startswith(f"{inside}/"):
                return outside + path.removeprefix(inside)
        return path

    async def stats(self) -> Stats:
        if self._group is not None:
            return await anyio.to_thread.run_sync(self._group.stats)
        seen = await anyio.to_thread.run_sync(_family, self._roots())
        return Stats(
            memory_bytes=sum(one.pages for one in seen) * _PAGE,
            processes=len(seen),
            cpu_seconds=sum(one.cpu_ticks for one in seen) / _TICKS,
        )

    async def stop(self) -> None:
        await self._ending.reach(self._kill)

    async def _kill(self) -> None:
        if self._group is not None:
            await anyio.to_thread.run_sync(self._group.destroy)
        else:
            await anyio.to_thread.run_sync(_kill_family, self._roots())
            ours = sandbox_names.read(self._name)
            await anyio.to_thread.run_sync(leftovers.end, Cgroups({}), lambda mark: mark == ours)
        for process in self._processes:
            process.kill()
            await process.wait_finished()
            await process.close()

    def _roots(self) -> list[procfs.ProcessInfo]:
        """Where to begin to look for all that belongs to this sandbox."""
        roots: list[procfs.ProcessInfo] = []
        for process in self._processes:
            seen = None if process.finished else procfs.look(process.pid)
            roots += process.left if seen is None else [seen]
        return roots


@contextmanager
def _found(plan: Plan) -> Generator[dict[str, str], None, None]:
    """Where what a sandbox would show is on this machine.

    A socket whose path is too long to be connected to has a shorter name while the body runs.
    """
    names = {"/workspace": str(plan.workspace.path), "/home/sandbox": str(plan.home.path)}
    with ExitStack() as held:
        for mount in plan.shown:
            source = str(mount.source)
            if len(os.fsencode(source)) > _LONGEST_SOCKET and mount.source.is_socket():
                folder = held.enter_context(tempfile.TemporaryDirectory(prefix="roost-"))
                Path(folder, "s").symlink_to(source)
                source = f"{folder}/s"
            names[mount.target] = source
        yield names


def _before(limits: SandboxLimits, group: Group | None) -> list[str]:
    """A shell that joins the group, then programs that become the command."""
    files = group.joins() if group is not None else []
    lines = [f"echo 0 >{shlex.quote(str(file))} || exit 125" for file in files]
    if limits.open_files:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lines.append(f"ulimit -n {min(limits.open_files, hard)} || exit 125")
    # It dies with us, whatever kills us; what it starts does not.
    setpriv = shutil.which("setpriv", path=_PATH) or "setpriv"
    lines.append(f'exec {setpriv} --pdeathsig KILL -- /bin/sh -c "$0" sh "$@"')
    return ["/bin/sh", "-c", "\n".join(lines), BECOME]


def _in_session(session: int) -> list[procfs.ProcessInfo]:
    return [seen for seen in procfs.everything() if seen.session == session]


def _is_same(seen: procfs.ProcessInfo) -> bool:
    now = procfs.look(seen.pid)
    return now is not None and now.start == seen.start


def _family(roots: Sequence[procfs.ProcessInfo]) -> list[procfs.ProcessInfo]:
    """The roots, what came from them, and what is in their sessions."""
    living = [seen for seen in roots if _is_same(seen)]
    sessions = {seen.session for seen in living}
    found = {seen.pid: seen for seen in procfs.descendants([seen.pid for seen in living])}
    found |= {seen.pid: seen for seen in procfs.everything() if seen.session in sessions}
    return list(found.values())


def _kill_family(roots: Sequence[procfs.ProcessInfo]) -> None:
    deadline = time.monotonic() + _SECONDS_TO_DIE
    known: dict[int, procfs.ProcessInfo] = {seen.pid: seen for seen in roots}
    while family := _family(list(known.values())):
        known |= {seen.pid: seen for seen in family}
        # Stopped before they are killed: else one could fork while its parent is being counted.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for seen in family:
                procfs.send(seen.pid, number, still=lambda seen=seen: _is_same(seen))  # type: ignore[misc]
        if time.monotonic() > deadline:
            raise SandboxFailed("processes could not be killed")
        time.sleep(0.002)
