"""A hostile program inside that takes all it can get gets its share, and nobody else notices."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.hostile.probed_sandbox import MIB, hostile_plan, hostile_sandbox
from tests.parts import need

from roost.errors import SandboxFailed
from roost.ports.sandbox import Sandbox
from roost.ports.sandbox_provider import SandboxLimits
from roost.sandboxes import cgroups
from roost.sandboxes.docker.sandbox import DockerSandbox
from roost.sandboxes.paths import walk_beneath
from roost.testing.sandbox_contract.kit import CommandResult, finish, make_provider, run

BOUNDED = SandboxLimits(
    memory_bytes=256 * MIB,
    processes=64,
    open_files=256,
    disk_bytes=80 * MIB,
    tmp_bytes=32 * MIB,
)

HOLD_WATCHES = """
import ctypes
for _ in range(1000): ctypes.CDLL(None).inotify_init()
print("held", flush=True)
input()
"""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def home(tmp_path: Path) -> Generator[Path, None, None]:
    """Removed by a program that no depth of directories stops, unlike pytest's own."""
    yield tmp_path / "home"
    subprocess.run(["rm", "-rf", "--one-file-system", tmp_path / "home"], check=True)


@pytest.fixture
def outsider() -> Generator[subprocess.Popen[bytes], None, None]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


OpenSandbox = Callable[..., AbstractAsyncContextManager[Sandbox]]


def _in(kind: str, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(kind, marks=[pytest.mark.xdist_group(kind), *marks])


# Containers are tried in the long form.
ENGINES = [_in("docker", pytest.mark.chaos), _in("podman", pytest.mark.chaos)]


@pytest.fixture(params=["control groups", "no control groups", *ENGINES])
def open_each(request: pytest.FixtureRequest) -> OpenSandbox:
    """Opens a sandbox of each kind."""
    if "groups" in request.param:
        return partial(hostile_sandbox, use_cgroups=request.param == "control groups")
    return _container_of(request)


@pytest.fixture(params=["bubblewrap", *ENGINES])
def open_best(request: pytest.FixtureRequest) -> OpenSandbox:
    """The same, but bubblewrap as it is on this machine."""
    return hostile_sandbox if request.param == "bubblewrap" else _container_of(request)


def _container_of(request: pytest.FixtureRequest) -> OpenSandbox:
    provider = make_provider(request.getfixturevalue(request.param).factory)
    return lambda *plan, **more: provider.open(hostile_plan(*plan, **more))


async def explode(sandbox: Sandbox, bomb: str) -> CommandResult:
    return await run(sandbox, "python3", "-m", "roost.testing.probes.bombs", bomb)


@pytest.mark.parametrize(
    ("bomb", "least", "most"),
    [
        ("fork", 20, 64),
        ("threads", 20, 64),
        ("descriptors", 200, 256),
        ("temporary", 31, 32),
        ("shared_memory", 63, 64),
    ],
)
async def test_a_bomb_stays_within_its_limit(
    home: Path, open_each: OpenSandbox, bomb: str, least: int, most: int
) -> None:
    async with open_each(home, BOUNDED) as sandbox:
        result = await explode(sandbox, bomb)
        assert least <= int(result.output) <= most, result
        assert (await run(sandbox, "echo", "alive")).output == b"alive\n"


async def test_one_file_stays_within_the_disk_limit(home: Path, open_each: OpenSandbox) -> None:
    async with open_each(home, BOUNDED) as sandbox:
        with suppress(SandboxFailed):  # with its directory it is over the limit
            await explode(sandbox, "one_file")
    assert 79 * MIB <= (home / "bomb").stat().st_size <= 80 * MIB


async def test_a_memory_bomb_ends_itself_only(home: Path, open_each: OpenSandbox) -> None:
    async with open_each(home, BOUNDED) as sandbox:
        bystander = await sandbox.spawn(["cat"])
        assert (await explode(sandbox, "memory")).code != 0
        await bystander.send(b"alive")
        assert await bystander.receive() == b"alive"


async def test_what_lies_in_memory_files_counts_as_memory(
    home: Path, open_best: OpenSandbox
) -> None:
    need("control groups", cgroups.detect().controllers, "running as root, or with Delegate=yes")
    limits = SandboxLimits(memory_bytes=64 * MIB, tmp_bytes=512 * MIB)
    async with open_best(home, limits) as sandbox:
        result = await explode(sandbox, "temporary")
        assert result.code != 0 or int(result.output) < 64


async def test_empty_files_fill_the_disk_too(home: Path, open_best: OpenSandbox) -> None:
    async with open_best(home, BOUNDED) as sandbox:
        with pytest.raises(SandboxFailed, match="disk"):
            await explode(sandbox, "many_files")
        with pytest.raises(SandboxFailed, match="disk"):
            await run(sandbox, "true")


async def test_a_line_of_a_gigabyte_passes_through_without_being_held(
    home: Path, open_best: OpenSandbox
) -> None:
    async with open_best(home) as sandbox:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        process = await sandbox.spawn(["python3", "-m", "roost.testing.probes.bombs", "line"])
        total = 0
        while chunk := await process.receive():
            total += len(chunk)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert total == 1024 * MIB + len("1024\n")
        assert grown < 32 * 1024  # KiB


async def test_killing_everybody_kills_nobody_else(
    home: Path, open_best: OpenSandbox, tmp_path: Path, outsider: subprocess.Popen[bytes]
) -> None:
    async with (
        open_best(tmp_path / "other", session="sesn_other") as other,
        open_best(home) as sandbox,
    ):
        # Commands of one container do see each other.
        bystanders = [await other.spawn(["cat"])]
        if not isinstance(sandbox, DockerSandbox):
            bystanders.append(await sandbox.spawn(["cat"]))
        with anyio.fail_after(60):
            await explode(sandbox, "everybody")
        for bystander in bystanders:
            await bystander.send(b"alive")
            assert await bystander.receive() == b"alive"
        assert (await run(sandbox, "echo", "alive")).output == b"alive\n"
    assert outsider.poll() is None


async def test_one_session_cannot_take_what_is_counted_per_user(
    home: Path, open_best: OpenSandbox, tmp_path: Path
) -> None:
    need("root", os.geteuid() == 0, "running as root: else all sessions have the server's uid")
    async with (
        open_best(home, SandboxLimits(open_files=2048)) as greedy,
        open_best(tmp_path / "other", session="sesn_other") as other,
    ):
        holding = await greedy.spawn(["python3", "-c", HOLD_WATCHES])
        assert await holding.receive() == b"held\n"
        assert int((await explode(other, "watches")).output) > 10


async def test_a_tree_deeper_than_any_path_is_walked_and_handed_over(
    home: Path, open_best: OpenSandbox
) -> None:
    async with open_best(home) as sandbox:
        assert int((await explode(sandbox, "deep")).output) == 1500
    assert sum(1 for _ in walk_beneath(home)) >= 1500
    async with open_best(home, session="sesn_next") as sandbox:
        assert (await run(sandbox, "true")).code == 0


async def test_an_error_output_without_end_is_cut(home: Path, open_best: OpenSandbox) -> None:
    async with open_best(home) as sandbox:
        process = await sandbox.spawn(["sh", "-c", "yes >&2"])
        await anyio.sleep(0.3)
        assert len(process.errors()) <= 64 * 1024
        await sandbox.stop()
        assert (await finish(process)).code in (-signal.SIGKILL, 128 + signal.SIGKILL)
