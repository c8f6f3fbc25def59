"""Commands: their pipes, their ends, their surroundings."""

from __future__ import annotations

import signal

import anyio
import pytest

from roost.errors import SandboxFailed
from roost.ports.sandbox_provider import SandboxProvider
from roost.testing.sandbox_contract.kit import MIB, Kit, Plans, finish, run, shell

_ADDED = {"PWD", "_", "ROOST_PLACE"}  # by shells; by sandboxes that do not isolate


class CommandContract(Kit):
    """What a harness relies on when it starts a command."""

    async def test_a_command_reads_its_input_and_writes_its_output(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """A conversation, both ways."""
        async with provider.open(plan()) as sandbox:
            process = await sandbox.spawn(["cat"])
            await process.send(b"hello ")
            assert await process.receive() == b"hello "
            await process.send(b"again")
            await process.close_input()
            assert await finish(process) == (0, b"again", b"")

    async def test_an_exit_code_is_a_result(self, provider: SandboxProvider, plan: Plans) -> None:
        """And so is what was written before."""
        async with provider.open(plan()) as sandbox:
            assert await shell(sandbox, "echo oh >&2; echo a; exit 3") == (3, b"a\n", b"oh\n")

    async def test_an_unknown_command_exits_with_127(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """It is the command that failed, not the sandbox."""
        async with provider.open(plan()) as sandbox:
            result = await run(sandbox, "no-such-command", "--version")
            assert result.code == 127
            assert b"no-such-command" in result.errors

    async def test_a_signal_that_ends_a_command_shows_in_its_exit_code(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Negative, or above 128."""
        async with provider.open(plan()) as sandbox:
            result = await shell(sandbox, "kill -TERM $$; sleep 5")
            assert result.code in (-signal.SIGTERM, 128 + signal.SIGTERM)

    async def test_a_signal_reaches_the_command_itself(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Not something around it: the command may answer it."""
        async with provider.open(plan()) as sandbox:
            script = "trap 'echo bye; exit 7' INT; echo ready; while :; do sleep 0.02; done"
            process = await sandbox.spawn(["sh", "-c", script])
            assert await process.receive() == b"ready\n"
            process.signal(signal.SIGINT)
            assert await finish(process) == (7, b"bye\n", b"")
            process.signal(signal.SIGINT)  # it is gone: nothing happens

    async def test_sending_to_a_command_that_is_gone_is_an_error(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """It is never silently lost for long."""
        async with provider.open(plan()) as sandbox:
            process = await sandbox.spawn(["true"])
            await process.wait()
            with pytest.raises(SandboxFailed):
                for _ in range(100):
                    await process.send(b"x" * 65536)

    async def test_a_large_output_arrives_whole_and_in_bounded_pieces(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """However long its lines are."""
        async with provider.open(plan()) as sandbox:
            process = await sandbox.spawn(["head", "-c", str(64 * MIB), "/dev/zero"])
            total = 0
            while chunk := await process.receive(10_000):
                assert len(chunk) <= 10_000
                total += len(chunk)
            assert total == 64 * MIB
            assert await process.receive() == b""
            assert await process.wait() == 0

    async def test_only_the_end_of_a_large_error_output_is_kept(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """And it blocks nobody that nobody reads it."""
        async with provider.open(plan()) as sandbox:
            result = await shell(sandbox, f"head -c {32 * MIB} /dev/zero >&2; echo end >&2")
            assert result.code == 0
            assert len(result.errors) <= 64 * 1024
            assert result.errors.endswith(b"\0end\n")

    async def test_output_that_nobody_reads_makes_the_command_wait(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """It is not gathered in the server's memory."""
        async with provider.open(plan()) as sandbox:
            script = "i=0; while :; do head -c 65536 /dev/zero; i=$((i+1)); echo $i >written; done"
            await sandbox.spawn(["sh", "-c", script])
            written = [b"nothing", b""]
            while not written[-1] or written[-1] != written[-2]:
                await anyio.sleep(0.2)
                written.append((await shell(sandbox, "cat written")).output)
                assert int(written[-1] or 0) < 100

    async def test_the_environment_is_what_was_given_and_nothing_else(
        self, provider: SandboxProvider, plan: Plans, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing of the server's: that is where its keys are."""
        monkeypatch.setenv("ROOST_CONTRACT_SECRET", "leaked")
        given = plan(environ={"A": "plan", "B": "plan"})
        async with provider.open(given) as sandbox:
            result = await run(sandbox, "env", "-0", environ={"B": "call", "C": "x\ny=z"})
        pairs = [line.partition("=")[::2] for line in result.output.decode().split("\0") if line]
        environ = {name: value for name, value in pairs if name not in _ADDED}
        assert {"A": "plan", "B": "call", "C": "x\ny=z"}.items() <= environ.items()
        environ.pop(
            "PIP_BREAK_SYSTEM_PACKAGES", None
        )  # where the machine's Python is the sandbox's own
        assert environ.keys() == {"A", "B", "C", "HOME", "PATH"}

    async def test_a_command_starts_where_it_is_told(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """In the workspace, if it is not told."""
        async with provider.open(plan()) as sandbox:
            await shell(sandbox, "mkdir inner; echo here >inner/file; echo top >file")
            assert (await run(sandbox, "cat", "file")).output == b"top\n"
            assert (await run(sandbox, "cat", "file", cwd="/workspace/inner")).output == b"here\n"

    async def test_a_directory_that_is_not_there_is_the_sandbox_s_failure(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """A command that never ran has no exit code."""
        async with provider.open(plan()) as sandbox:
            with pytest.raises(SandboxFailed):
                await sandbox.spawn(["true"], cwd="/workspace/nowhere")

    async def test_commands_run_side_by_side(self, provider: SandboxProvider, plan: Plans) -> None:
        """A long one does not keep a short one waiting."""
        async with provider.open(plan()) as sandbox:
            long = await sandbox.spawn(["cat"])
            assert (await run(sandbox, "echo", "short")).output == b"short\n"
            await long.send(b"still here")
            assert await long.receive() == b"still here"
