"""What a sandbox or its server leaves behind when either is killed in its first moments: nothing."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.hostile.probed_sandbox import hostile_sandbox, need_bubblewrap, provider

from roost.errors import SandboxFailed
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes import cgroups, leftovers, procfs, sandbox_names
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.sandboxes.host import HostProvider
from roost.sandboxes.processes import start
from roost.sandboxes.sandbox_names import SandboxName
from roost.testing.live import LiveServer
from roost.testing.sandbox_contract.kit import Heart

ROUNDS = [12, pytest.param(300, marks=[pytest.mark.chaos, pytest.mark.timeout(900)])]
GROUPS = pytest.mark.parametrize(
    "groups", [True, False], ids=["control groups", "no control groups"]
)


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    need_bubblewrap()


@pytest.fixture
def moments() -> random.Random:
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    return random.Random(seed)


def plan_for(home: Path, generation: int = 1) -> Plan:
    home.mkdir(parents=True, exist_ok=True)
    return Plan(
        session_id="sesn_left",
        generation=generation,
        home=LocalVolume(home),
        workspace=LocalVolume(home),
    )


def running(word: str) -> list[int]:
    """Processes with the word in their command line: the command's own, and all that start it."""
    return [
        seen.pid
        for seen in procfs.everything()
        if any(word.encode() in argument for argument in procfs.command_line(seen.pid))
    ]


async def kill_as_soon_as_it_starts(delay: float, before: set[int]) -> None:
    """Kill what this process starts besides what it had before, so long after it is there."""
    while not (found := {*procfs.children(os.getpid())} - before):  # noqa: ASYNC110 - nobody tells
        await anyio.sleep(0.0005)
    await anyio.sleep(delay)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@GROUPS
@pytest.mark.parametrize("rounds", ROUNDS)
async def test_a_bwrap_killed_in_its_first_moments_leaves_nothing(
    tmp_path: Path, moments: random.Random, groups: bool, rounds: int
) -> None:
    sandboxes = provider(use_cgroups=groups)
    for number in range(rounds):
        word = secrets.token_hex(8)
        delay = moments.uniform(0, 0.005)
        async with (
            anyio.create_task_group() as tasks,
            sandboxes.open(plan_for(tmp_path / "home")) as sandbox,
        ):
            before = {*procfs.children(os.getpid())}
            if (
                number % 2
            ):  # the first one has set out with the place; others when they are asked for
                await (await sandbox.spawn(["true"])).wait()
            else:
                before -= {process.pid for process in sandbox._processes}  # type: ignore[attr-defined]
            tasks.start_soon(kill_as_soon_as_it_starts, delay, before)
            with pytest.raises(SandboxFailed):
                process = await sandbox.spawn(["sh", "-c", "sleep 600", word])
                await process.wait()
            assert running(word) == [], f"killed after {delay * 1000:.1f} ms"


def server_in_a_fork(sandboxes: BubblewrapProvider, home: Path, word: str) -> int:
    """The pid of a process that opens a place, and there a command. Quicker than a new Python."""
    if pid := os.fork():
        return pid
    try:
        anyio.run(open_for_ever, sandboxes, home, word)
    finally:
        os._exit(1)


async def open_for_ever(sandboxes: BubblewrapProvider, home: Path, word: str) -> None:
    async with sandboxes.open(plan_for(home)) as sandbox:
        await sandbox.spawn(["sh", "-c", "sleep 600", word])
        await anyio.sleep_forever()


@GROUPS
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_server_killed_while_it_opens_a_sandbox_leaves_nothing_that_a_sweep_does_not_end(
    tmp_path: Path, moments: random.Random, groups: bool, rounds: int
) -> None:
    sandboxes = provider(use_cgroups=groups)
    anyio.run(sandboxes.check)
    for _ in range(rounds):
        word = secrets.token_hex(8)
        server = server_in_a_fork(sandboxes, tmp_path / "home", word)
        while not procfs.children(server):
            time.sleep(0.0005)
        time.sleep(delay := moments.uniform(0, 0.03))
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        anyio.run(sandboxes.sweep)
        # A process that was not bwrap yet when the sweep looked ends by itself, with its input; a
        # command that has begun would not end for minutes.
        deadline = time.monotonic() + 60
        while left := running(word):
            assert time.monotonic() < deadline, f"{left}, killed after {delay * 1000:.1f} ms"
        assert cgroups.detect().named(lambda mark, dead=server: mark.pid == dead) == []  # type: ignore[misc]


async def test_a_command_does_not_begin_for_a_server_that_is_dead(tmp_path: Path) -> None:
    """Between its first byte and its answer: the shell has said that it is there, and waits."""
    async with hostile_sandbox(tmp_path / "home") as sandbox:
        launch = sandbox._launcher.begin()
        child = await start(launch.argv, descriptors=launch.descriptors)
        try:
            sandbox._launcher.finish(launch, ["touch", "begun"], None, "/workspace")
            await child.stdin.send(b"\n")
            launch.go()
            assert await child.stdout.receive(1) == b"\n"
            child.stdin.close()  # as the kernel does for a process that is killed
            assert await child.wait() == 125
        finally:
            launch.close()
            child.close()
    assert not (tmp_path / "home" / "begun").exists()


async def test_what_is_made_up_inside_is_not_believed(tmp_path: Path) -> None:
    """Else a sandbox could keep every server on the machine busy with ends that never end."""
    made_up = "roost-4026531836.4194303.1-0123456789abcdef-1-01234567"
    async with hostile_sandbox(tmp_path / "home") as sandbox:
        word = f"made-up-{os.getpid()}"
        forged = await sandbox.spawn(
            ["python3", "-c", "import time; time.sleep(60)", word, "--unsetenv", made_up, "x"],
            environ={sandbox_names.VARIABLE: made_up},
        )
        found = [mark for pid in running(word) for mark in leftovers.marks_of(pid)]
        assert found
        assert {mark.pid for mark in found} == {os.getpid()}
        forged.signal(signal.SIGKILL)


async def test_names_of_other_pid_namespaces_and_of_the_living_are_not_orphans(
    tmp_path: Path,
) -> None:
    own = sandbox_names.read(sandbox_names.name_of(plan_for(tmp_path)))
    assert own is not None
    assert not own.orphaned
    assert own._replace(start=own.start + 1).orphaned
    assert not own._replace(start=own.start + 1, namespace=1).orphaned
    assert sandbox_names.read("roost-server") is None
    assert sandbox_names.older_than(plan_for(tmp_path, 2))(own)
    assert not sandbox_names.older_than(plan_for(tmp_path, 0))(own)
    # The same session in a copy of the database, which another server may be running.
    assert not sandbox_names.older_than(plan_for(tmp_path / "copy", 2))(own)


@pytest.mark.parametrize("living", [False, True], ids=["killed", "living"])
def test_a_server_that_starts_ends_the_sandboxes_of_killed_servers_and_of_no_others(
    tmp_path: Path, living: bool
) -> None:
    """Without control groups and without walls a killed server leaves the most behind."""
    home = tmp_path / "home"
    holder = subprocess.Popen(
        [
            *(sys.executable, "-m", "roost.testing.sandbox_contract.holder"),
            *("tests.contracts.test_host_sandbox:make_without_groups", str(home), Heart.daemon),
        ],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]},
    )
    home.mkdir()
    heart = Heart(home)
    try:
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"open\n"
            anyio.run(heart.begins)
            if not living:
                holder.kill()
                holder.wait()
            with LiveServer(tmp_path / "data"):
                if living:
                    time.sleep(0.5)
                    assert anyio.run(heart.beats)
                else:
                    anyio.run(heart.ends)
            holder.kill()
    finally:
        anyio.run(HostProvider().sweep)


def test_a_process_that_does_not_die_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as stubborn:
        own = os.pidfd_open(stubborn.pid)
        monkeypatch.setattr(leftovers, "_struck", lambda find, wanted: [os.dup(own)])

        def wanted(mark: SandboxName) -> bool:
            return False

        with pytest.raises(SandboxFailed, match="could not be killed"):
            leftovers.end(cgroups.Cgroups({}), wanted, seconds=0.05)
        os.close(own)
        stubborn.kill()
