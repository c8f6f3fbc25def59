"""A worker of our own: it serves sessions of another server's self-hosted environment, each in a sandbox here."""

from __future__ import annotations

import logging
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import anyio
import httpx2
from anyio import to_thread

from roost.client.work import Json, WorkClient, WorkRefused
from roost.client.worker import ToolRunner, Worker
from roost.config import Settings
from roost.core.sandbox.loopback import FORWARDER, with_ports
from roost.domain.skill import SkillFile, bundled
from roost.egress.host import HostEgress, serving
from roost.egress.options import EgressOptions
from roost.errors import SandboxFailed, StartupError
from roost.guest import forward
from roost.harnesses.messages.guest import MOUNTS, GuestTools
from roost.harnesses.messages.request import WORKERS_SKILLS
from roost.harnesses.messages.tools import WORKERS
from roost.ids import mint
from roost.ports.egress import Account, Grant, Networking, OpenGrant, RefusalReport
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import LocalVolume, Mount, Plan, SandboxLimits, SandboxProvider
from roost.sandboxes.choice import chosen

_log = logging.getLogger(__name__)
_SECONDS: Final = 60.0  # that the server has to answer
_SKILLS: Final = "/run/roost/skills"
"""Where a sandbox shows the skills that were fetched; they are copied from there."""


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker is started with. `directory` has a directory for each session. `network`: what runs in its
    sandboxes may reach public addresses.
    """

    url: str
    environment_id: str
    key: str
    directory: Path
    most: int
    max_idle: float
    network: bool


class GuestRunner:
    """`client.worker.ToolRunner`: runs a session's calls in its sandbox."""

    names = WORKERS

    def __init__(self, guest: GuestTools) -> None:
        self._guest = guest

    async def run(self, call_id: str, name: str, given: Json) -> tuple[list[Json], bool]:
        """A sandbox that fails in the middle of a call leaves its outcome unknown."""
        try:
            await self._guest.start()
            answer = await self._guest.run(call_id, name, given)
        except SandboxFailed as failed:  # the next call starts it again
            text = f"{failed.message}. Its outcome is unknown: find out before you repeat it."
            return [{"type": "text", "text": text}], True
        return answer.content, answer.is_error

    async def cancel(self, call_id: str) -> None:
        """What the call has started is killed."""
        await self._guest.cancel([call_id])


class SandboxedSessions:
    """Opens the sandboxes of sessions: their directory, their skills, and what they may reach."""

    def __init__(
        self,
        options: WorkerOptions,
        settings: Settings,
        provider: SandboxProvider,
        egress: HostEgress,
    ) -> None:
        self._options = options
        self._limits = SandboxLimits(
            memory_bytes=settings.sandbox_memory * 1024**2,
            processes=settings.sandbox_processes,
            cpus=settings.sandbox_cpus,
            disk_bytes=settings.sandbox_disk * 1024**2,
        )
        self._provider = provider
        self._egress = egress

    @asynccontextmanager
    async def open(
        self, session: Json, skill: Callable[[str, str], Awaitable[bytes]]
    ) -> AsyncGenerator[ToolRunner, None]:
        """What runs the calls of a session. :raises RoostError: there is no sandbox to be had"""
        home = self._options.directory / session["id"]
        await to_thread.run_sync(lambda: home.mkdir(parents=True, exist_ok=True))
        async with AsyncExitStack() as stack:
            skills = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roost-skills-")))
            await to_thread.run_sync(skills.chmod, 0o755)  # the sandbox's user reads them
            for each in session["agent"].get("skills") or ():
                packed = await skill(each["skill_id"], each["version"])
                await to_thread.run_sync(_unpack, packed, skills)
            granted = await stack.enter_async_context(self._egress.open(self._grant(session["id"])))
            sandbox = await stack.enter_async_context(
                self._provider.open(self._plan(session["id"], home, skills, granted))
            )
            await _stage(sandbox)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            inside = with_ports(sandbox, granted.endpoints)
            yield GuestRunner(GuestTools(session["id"], inside, tasks, None))
            tasks.cancel_scope.cancel()

    def _grant(self, session_id: str) -> Grant:
        kind: Literal["unrestricted", "none"] = "unrestricted" if self._options.network else "none"
        return Grant(
            session_id=session_id,
            generation=1,
            account=_no_account,
            refused=_refused,
            api="",
            networking=Networking(kind=kind),
        )

    def _plan(self, session_id: str, home: Path, skills: Path, granted: OpenGrant) -> Plan:
        shown = [Mount(skills, _SKILLS), Mount(Path(forward.__file__), FORWARDER)]
        return Plan(
            session_id=session_id,
            generation=1,
            home=LocalVolume(home),
            workspace=LocalVolume(home),
            mounts=[*MOUNTS, *shown, *granted.mounts],
            certificates=granted.certificates,
            authority=granted.authority,
            endpoints=granted.endpoints,
            environ=granted.environ,
            limits=self._limits,
        )


def _unpack(packed: bytes, into: Path) -> None:
    """A skill in a directory of its name. Blocks. :raises InvalidRequest: it is not safe to unpack"""
    bundle = bundled([SkillFile("skill.zip", packed)])
    for file in bundle.files:
        target = into / bundle.name / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        target.chmod(0o755 if file.executable else 0o644)


async def _stage(sandbox: Sandbox) -> None:
    """Copy the skills to where the session works. It is done inside: what lies there is the session's, and a link
    there would lead whoever else does it out.
    """
    copy = 'rm -rf "$1" && cp -r "$0" "$1"'
    process = await sandbox.spawn(["/bin/sh", "-c", copy, _SKILLS, WORKERS_SKILLS])
    if await process.wait() != 0:
        raise SandboxFailed("the session's skills cannot be put into its directory")


async def _no_account(account: Account) -> None:
    """No model is asked from here."""


async def _refused(report: RefusalReport) -> None:
    _log.warning("%s may not reach %s:%d", report.session_id, report.host, report.port)


def work(options: WorkerOptions, settings: Settings) -> None:
    """Serve sessions until told to stop. :raises RoostError: it cannot be started, or is not let in"""
    try:
        anyio.run(_work, options, settings)
    except BaseExceptionGroup as group:
        if (refused := _first(group, WorkRefused)) is not None:
            raise StartupError(
                f"the server does not give work to this worker: {refused}",
                hint="Is the key one of this environment? `roost environments keys create`.",
            ) from None
        raise


async def _work(options: WorkerOptions, settings: Settings) -> None:
    provider = chosen(settings)
    await provider.check()
    await provider.sweep()
    worker_id = f"{socket.gethostname()}-{mint('w')}"
    with tempfile.TemporaryDirectory(prefix="roost-worker-") as folder:
        async with (
            serving(EgressOptions(directory=Path(folder) / "egress")) as egress,
            httpx2.AsyncClient(base_url=options.url, timeout=_SECONDS) as http,
            anyio.create_task_group() as tasks,
        ):
            sessions = SandboxedSessions(options, settings, provider, egress)
            client = WorkClient(http, options.environment_id, options.key, worker_id)
            worker = Worker(client, sessions.open, most=options.most, max_idle=options.max_idle)
            tasks.start_soon(_end_at_signals, tasks.cancel_scope)
            _log.info("polls %s for %s", options.url, options.environment_id)
            await worker.run()


def _first(group: BaseExceptionGroup[BaseException], kind: type[Exception]) -> Exception | None:
    """The first error of a kind in a group, however deep. Tasks within tasks make groups of groups."""
    for error in group.exceptions:
        found = _first(error, kind) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, kind):
            return found
    return None


async def _end_at_signals(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async for _ in received:
            scope.cancel()
