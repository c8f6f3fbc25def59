"""What the tests of the contract share."""

from __future__ import annotations

import pkgutil
import secrets
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import anyio
import pytest

from roost.ports.sandbox import Process, Sandbox
from roost.ports.sandbox_provider import LocalVolume, Plan, SandboxProvider
from roost.testing.cancelling import Work, cancelled_at_each_step

MIB = 1024**2
Plans = Callable[..., Plan]


class CommandResult(NamedTuple):
    """What a command came to: its exit code, and all it wrote."""

    code: int
    output: bytes
    errors: bytes


async def finish(process: Process) -> CommandResult:
    """Read all it writes, and wait."""
    output = bytearray()
    while chunk := await process.receive():
        output += chunk
    return CommandResult(await process.wait(), bytes(output), process.errors())


async def run(sandbox: Sandbox, *argv: str, **options: Any) -> CommandResult:
    """Run a command to its end, without input."""
    process = await sandbox.spawn(argv, **options)
    await process.close_input()
    return await finish(process)


async def shell(sandbox: Sandbox, script: str, **options: Any) -> CommandResult:
    """Run a script to its end."""
    return await run(sandbox, "sh", "-c", script, **options)


def make_provider(factory: str) -> SandboxProvider:
    """The provider that `module:function` makes."""
    made: SandboxProvider = pkgutil.resolve_name(factory)()
    return made


class Kit:
    """Fixtures. `deviations` names tests this provider does not pass, each with the reason. Of the waits at
    which a caller may give up, each `steps_apart`-th is tried, from a random one on.
    """

    factory: ClassVar[str]
    deviations: ClassVar[Mapping[str, str]] = {}
    steps_apart: ClassVar[int] = 1

    @pytest.fixture
    def anyio_backend(self) -> tuple[str, dict[str, bool]]:
        """The event loop the server runs on."""
        return "asyncio", {"use_uvloop": True}

    @pytest.fixture(autouse=True)
    def _known_deviations(self, request: pytest.FixtureRequest) -> None:
        reason = self.deviations.get(request.node.originalname)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    def given_up_at_each_step(self, work: Work) -> AsyncGenerator[int, None]:
        """Some of the waits of `work`, or all of them."""
        first = secrets.randbelow(self.steps_apart) + 1
        return cancelled_at_each_step(work, first=first, apart=self.steps_apart)

    def heart(self, plan: Plan) -> Heart:
        """What a process writes to in this workspace; another one where the files are elsewhere meanwhile."""
        return Heart(plan.workspace.path)

    @pytest.fixture
    def provider(self) -> SandboxProvider:
        """The provider under test, new for each test."""
        return make_provider(self.factory)

    @pytest.fixture
    def plan(self, tmp_path: Path) -> Generator[Plans, None, None]:
        """Plans for sessions with a directory each, which stays the same over several plans."""
        homes = set()

        def build(session: str = "sesn_1", **options: Any) -> Plan:
            home = tmp_path / session
            home.mkdir(exist_ok=True)
            homes.add(home)
            volume = LocalVolume(home)
            given: dict[str, Any] = {
                "generation": 1,
                "home": volume,
                "workspace": volume,
                **options,
            }
            return Plan(session_id=session, **given)

        yield build
        for home in homes:
            (home / Heart.stopper).touch()


class Heart:
    """A file that a process writes to as long as it lives. `script` is that process."""

    stopper = "stop-heartbeat"  # for what a failing provider lets live on
    script = f"while [ ! -e {stopper} ]; do echo x >>heartbeat; sleep 0.02; done"
    # Away from its parent, its session and its pipes, as a daemon does it.
    daemon = f"(setsid sh -c '{script}' >/dev/null 2>&1 </dev/null &)"

    def __init__(self, directory: Path) -> None:
        self._file = directory / "heartbeat"

    async def beats(self) -> bool:
        """Whether it is written to now."""
        before = self._size()
        for _ in range(20):
            await anyio.sleep(0.02)
            if self._size() != before:
                return True
        return False

    async def begins(self) -> None:
        """Wait until it is written to."""
        with anyio.fail_after(60):
            while not self._size():  # noqa: ASYNC110 - it is another process that writes
                await anyio.sleep(0.01)

    async def goes_on(self) -> None:
        """Wait until it is written to once more."""
        before = self._size()
        with anyio.fail_after(60):
            while self._size() == before:  # noqa: ASYNC110 - it is another process that writes
                await anyio.sleep(0.01)

    async def ends(self) -> None:
        """Wait until it is not written to any more."""
        with anyio.fail_after(60):
            while await self.beats():
                pass

    def _size(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0
