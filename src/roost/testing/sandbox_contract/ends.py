"""Ends: everything inside is dead, whatever it does against it."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process as Child

from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.sandbox_provider import SandboxProvider
from roost.testing.sandbox_contract.kit import Heart, Kit, Plans, make_provider, run, shell


class EndContract(Kit):
    """Stop, context end, another generation, the server's death, a sweep."""

    async def test_what_was_left_running_is_dead_when_the_sandbox_is_left(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Also what has put itself away from its parent, its session and its pipes."""
        given = plan()
        heart = self.heart(given)
        async with provider.open(given) as sandbox:
            await sandbox.spawn(["sh", "-c", f"{Heart.daemon}; sleep 60"])
            await heart.begins()
            await heart.goes_on()
        assert not await heart.beats()

    async def test_stop_kills_what_does_not_want_to_die(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """No signal has to be answered for that."""
        given = plan()
        heart = self.heart(given)
        async with provider.open(given) as sandbox:
            script = f"trap '' TERM INT HUP QUIT; {Heart.script}"
            process = await sandbox.spawn(["sh", "-c", script])
            await heart.begins()
            with anyio.fail_after(60):
                await sandbox.stop()
            assert not await heart.beats()
            assert await process.wait() in (-signal.SIGKILL, 128 + signal.SIGKILL)
            assert await process.receive() == b""
            with pytest.raises(SandboxFailed):
                await sandbox.spawn(["true"])
            await sandbox.stop()  # once more is nothing more

    async def test_a_failure_of_the_body_comes_out_as_it_is(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Not wrapped in anything; and the sandbox is gone."""
        given = plan()
        heart = self.heart(given)
        with pytest.raises(ZeroDivisionError):
            async with provider.open(given) as sandbox:
                await sandbox.spawn(["sh", "-c", Heart.script])
                await heart.begins()
                raise ZeroDivisionError
        assert not await heart.beats()

    async def test_a_sandbox_is_gone_when_its_user_is_cancelled(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """In the middle of waiting for a command."""
        given = plan()
        heart = self.heart(given)
        async with anyio.create_task_group() as tasks:

            async def use() -> None:
                async with provider.open(given) as sandbox:
                    process = await sandbox.spawn(["sh", "-c", Heart.script])
                    await process.wait()

            tasks.start_soon(use)
            await heart.begins()
            tasks.cancel_scope.cancel()
        assert not await heart.beats()

    async def test_a_command_given_up_at_any_wait_is_no_part_of_the_next_one(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Neither in its own sandbox nor in another, which starts commands at the same time."""
        ours, theirs = plan("sesn_a"), plan("sesn_b")
        async with provider.open(ours) as a, provider.open(theirs) as b:
            steps = itertools.count(1)

            async def work() -> None:
                step = next(steps)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(shell, b, f"echo b {step} >>ran; sleep 0.01")
                    await shell(a, f"echo a {step} >>ran; echo {step}; sleep 0.01")

            async for step in self.given_up_at_each_step(work):
                for sandbox, name in ((a, "a"), (b, "b")):
                    said = await shell(sandbox, f"echo {name} next {step}; cat ran 2>/dev/null")
                    lines = said.output.decode().splitlines()
                    assert lines[0] == f"{name} next {step}"
                    assert all(line.startswith(f"{name} ") for line in lines), lines
                    assert len(set(lines)) == len(lines), lines

    async def test_a_sandbox_given_up_at_any_wait_as_it_is_opened_leaves_nothing_to_the_next(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """The next one of the session is its own, and that of another session goes on."""
        async with provider.open(plan("sesn_b")) as beside:
            generations = itertools.count(1)

            async def work() -> None:
                given = plan("sesn_a", generation=next(generations), environ={"OWN": "before"})
                async with provider.open(given) as sandbox:
                    await sandbox.spawn(["sh", "-c", Heart.script])

            async for step in self.given_up_at_each_step(work):
                if (
                    step // self.steps_apart % 5 == 0
                ):  # to see that something does not happen takes time
                    assert not await self.heart(plan("sesn_a")).beats()
                given = plan("sesn_a", generation=next(generations), environ={"OWN": f"{step}"})
                async with provider.open(given) as sandbox:
                    said = await shell(sandbox, "echo $OWN; ls -d /proc/[0-9]* | wc -l")
                    assert said.output.split()[0] == str(step).encode()
                assert (await run(beside, "echo", "beside")).output == b"beside\n"

    async def test_an_older_sandbox_is_gone_before_a_newer_one_is_open(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """And an older or equal one is not opened beside it."""
        given = plan(generation=1)
        heart = self.heart(given)
        async with provider.open(given) as older:
            await older.spawn(["sh", "-c", Heart.script])
            await heart.begins()
            async with provider.open(plan(generation=2)) as newer:
                assert not await heart.beats()
                with pytest.raises(SandboxFailed):
                    await older.spawn(["true"])
                for generation in (1, 2):
                    with pytest.raises(SandboxUnavailable):
                        async with provider.open(plan(generation=generation)):
                            pass
                assert (await run(newer, "echo", "new")).output == b"new\n"

    async def test_a_sandbox_dies_with_the_process_that_holds_it(self, plan: Plans) -> None:
        """However that is killed; perhaps a moment later, because others have to notice."""
        given = plan()
        heart = self.heart(given)
        async with self._held_elsewhere(given.home.path) as holder:
            await heart.begins()
            holder.send_signal(signal.SIGKILL)
            await holder.wait()
            await heart.ends()

    async def test_an_older_sandbox_of_another_process_is_gone_before_a_newer_one_is_open(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """One that hangs, say, and whose session was given to this one."""
        given = plan(generation=2)
        heart = self.heart(given)
        async with self._held_elsewhere(given.home.path):
            await heart.begins()
            async with provider.open(given):
                assert not await heart.beats()

    async def test_a_sweep_ends_what_a_killed_process_has_left(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """At once, and without having been told of it."""
        given = plan()
        heart = self.heart(given)
        async with self._held_elsewhere(given.home.path) as holder:
            await heart.begins()
            holder.send_signal(signal.SIGKILL)
            await holder.wait()
            await provider.sweep()
            assert not await heart.beats()
            await provider.sweep()  # what is gone stays gone

    async def test_a_sweep_leaves_the_sandboxes_of_living_processes_alone(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Its own, and others'."""
        theirs = plan("sesn_theirs")
        heart = self.heart(theirs)
        async with self._held_elsewhere(theirs.home.path), provider.open(plan()) as sandbox:
            await heart.begins()
            await provider.sweep()
            await heart.goes_on()
            assert (await shell(sandbox, "echo alive")).output == b"alive\n"

    @asynccontextmanager
    async def _held_elsewhere(self, directory: Path) -> AsyncGenerator[Child, None]:
        """The process that holds a sandbox of the session named like the directory, with a daemon in it."""
        command = [sys.executable, "-m", "roost.testing.sandbox_contract.holder"]
        holder = await anyio.open_process(
            [*command, self.factory, str(directory), Heart.daemon],
            stderr=None,
            env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]},
        )
        async with holder:
            assert holder.stdout is not None, "started with a pipe"
            assert await holder.stdout.receive() == b"open\n"
            try:
                yield holder
            finally:
                if holder.returncode is None:
                    holder.kill()
                await holder.wait()
                await make_provider(self.factory).sweep()
