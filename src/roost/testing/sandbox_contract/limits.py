"""Limits, and what is used."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio
import pytest

from roost.errors import SandboxFailed
from roost.ports.sandbox_provider import SandboxLimits, SandboxProvider
from roost.testing.sandbox_contract.kit import MIB, Kit, Plans, run, shell

_TAKE_MEMORY = "b = bytearray(int(__import__('sys').argv[1])); b[::4096] = b'x' * len(b[::4096])"
FORK: Final = """
import os, time
born = 0
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
    except OSError:
        break
    born += 1
print(born, flush=True)
"""
"""A program for Python that starts processes until it may start no more, and says how many it could; 200 at most."""

_FORK: Final = f"{FORK}os.kill(0, 9)"


class LimitContract(Kit):
    """What everything in a sandbox may use together."""

    async def test_memory_over_the_limit_is_not_given(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """The command that wants it fails; the sandbox goes on."""
        limits = SandboxLimits(memory_bytes=128 * MIB)
        async with provider.open(plan(limits=limits)) as sandbox:
            assert (await run(sandbox, "python3", "-c", _TAKE_MEMORY, str(32 * MIB))).code == 0
            assert (await run(sandbox, "python3", "-c", _TAKE_MEMORY, str(512 * MIB))).code != 0
            assert (await run(sandbox, "echo", "alive")).output == b"alive\n"

    async def test_memory_is_counted_over_all_commands(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Several that each stay below it cannot pass it together."""
        limits = SandboxLimits(memory_bytes=128 * MIB)
        hold = f"{_TAKE_MEMORY}; print('held', flush=True); __import__('time').sleep(60)"
        async with provider.open(plan(limits=limits)) as sandbox:
            commands = [
                await sandbox.spawn(["python3", "-c", hold, str(60 * MIB)]) for _ in range(4)
            ]
            for command in commands:  # some are ended for the others' sake
                await command.receive()
            used = (await sandbox.stats()).memory_bytes
            assert used is not None
            assert used <= 130 * MIB

    async def test_processes_over_the_limit_are_not_started(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """A fork bomb stays small."""
        async with provider.open(plan(limits=SandboxLimits(processes=40))) as sandbox:
            result = await run(sandbox, "python3", "-c", _FORK)
            assert 20 <= int(result.output) <= 40

    async def test_processes_of_another_sandbox_do_not_count(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Also where both are the same user of the machine."""
        busy = "i=0; while [ $i -lt 30 ]; do sleep 60 & i=$((i+1)); done; echo ready; wait"
        limits = SandboxLimits(processes=40)
        async with provider.open(plan("sesn_a")) as a, provider.open(plan(limits=limits)) as b:
            crowd = await a.spawn(["sh", "-c", busy])
            assert await crowd.receive() == b"ready\n"
            assert int((await run(b, "python3", "-c", _FORK)).output) >= 20

    async def test_files_over_the_limit_are_not_opened(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """The limit is that of each process."""
        async with provider.open(plan(limits=SandboxLimits(open_files=64))) as sandbox:
            script = (
                "import os\nn = 0\ntry:\n  while 1: os.dup(0); n += 1\nexcept OSError: print(n)"
            )
            assert 32 <= int((await run(sandbox, "python3", "-c", script)).output) <= 64

    async def test_a_file_does_not_grow_over_the_disk_limit(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Whatever writes it. That all files together are over it may be noticed first."""
        given = plan(limits=SandboxLimits(disk_bytes=8 * MIB))
        async with provider.open(given) as sandbox:
            with suppress(SandboxFailed):
                assert (await shell(sandbox, "head -c 20000000 /dev/zero >big")).code != 0
        assert (given.workspace.path / "big").stat().st_size <= 8 * MIB

    async def test_all_files_together_do_not_stay_over_the_disk_limit(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Wherever they are. The sandbox fails, and says why; the session can be opened again, to tidy up."""
        given = plan(limits=SandboxLimits(disk_bytes=16 * MIB))
        async with provider.open(given) as sandbox:
            fill = (
                "for f in f1 /usr/local/f2 /opt/f3 /var/f4; do head -c 8000000 /dev/zero >$f; done"
            )
            script = f"{fill}; sleep 60"
            process = await sandbox.spawn(["sh", "-c", script])
            with anyio.fail_after(60), pytest.raises(SandboxFailed, match="disk"):
                await process.wait()
        async with provider.open(plan(limits=given.limits, generation=2)) as sandbox:
            assert (await shell(sandbox, "rm f*")).code == 0

    async def test_processor_time_over_the_limit_is_not_given(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Several that are busy get no more than one would."""
        async with provider.open(plan(limits=SandboxLimits(cpus=0.1))) as sandbox:
            for _ in range(2):
                await sandbox.spawn(["sh", "-c", "while :; do :; done"])
            before, began = (await sandbox.stats()).cpu_seconds, anyio.current_time()
            await anyio.sleep(1.5)
            after, ended = (await sandbox.stats()).cpu_seconds, anyio.current_time()
            assert before is not None
            assert after is not None
            assert after - before <= 0.1 * (ended - began) + 0.1

    async def test_no_limit_of_ours_means_none(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Zeros are not limits of zero."""
        none = SandboxLimits(
            memory_bytes=0, processes=0, cpus=0, open_files=0, disk_bytes=0, tmp_bytes=0
        )
        async with provider.open(plan(limits=none)) as sandbox:
            assert (await shell(sandbox, "echo a >file; cat file | cat")).output == b"a\n"

    async def test_what_is_used_can_be_asked(self, provider: SandboxProvider, plan: Plans) -> None:
        """As far as the machine can tell."""
        async with provider.open(plan()) as sandbox:
            await sandbox.spawn(["sleep", "60"])
            stats = await sandbox.stats()
            assert stats.processes is None or 1 <= stats.processes <= 10
            assert stats.memory_bytes is None or 0 < stats.memory_bytes < 100 * MIB
            assert stats.cpu_seconds is None or 0 <= stats.cpu_seconds < 10

    async def test_it_is_said_how_each_limit_is_in_force(self, provider: SandboxProvider) -> None:
        """In words, for the operator; and the provider has a name to be chosen by."""
        await provider.check()
        said = await provider.limits_report()
        assert {"memory", "processes", "cpus"} <= said.keys()
        assert all(said.values())
        assert provider.name
