"""The claude harness with a program in the CLI's place that does what the CLI does not."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import anyio
import pytest
from tests.harnesses.sandboxed_harness import SandboxedHarness

from roost.errors import LeaseLost, RoostError
from roost.harnesses import json_lines
from roost.harnesses.claude import ClaudeHarness, conversation
from roost.ports.harness import Conversation, Output, Trouble
from roost.testing.in_memory_runner import InMemoryRunner, text_of, with_toolset

ANSWERS = """
    for line in sys.stdin:
        frame = json.loads(line)
        if frame["type"] == "user":
            say(type="assistant", message={"id": "msg_1", "content": [{"type": "text", "text": "Yes."}]})
            say(type="result", subtype="success", stop_reason="end_turn")
            say(type="command_lifecycle", command_uuid=frame["uuid"], state="completed")
            say(type="system", subtype="session_state_changed", state="idle")
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_PAUSES", (0.01, 0.01, 0.01))
    monkeypatch.setattr(conversation, "_LOOK_UP", 0.05)
    monkeypatch.setattr(conversation, "_STOPS_WITHIN", 0.3)


def sandboxed(tmp_path: Path, *program: str) -> SandboxedHarness:
    """A harness whose agent is this program, with `say` to print a frame."""
    cli = tmp_path / "cli"
    head = f"#!{sys.executable}\nimport json, sys, time\n"
    say = "def say(**frame):\n    print(json.dumps(frame), flush=True)\n"
    cli.write_text(head + say + "\n".join(map(dedent, program)))
    cli.chmod(0o755)
    return SandboxedHarness(ClaudeHarness(cli, mounted=False), tmp_path / "homes")


async def test_junk_is_dropped_what_is_new_is_shown_and_the_turn_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(json_lines, "MAX_LINE", 10_000)
    junk = """
        print("Segmentation fault (not really)")
        print('{"type": 5}')
        print("[" * 5000)
        print("x" * 20_000)
        say(type="assistant", session_id="another", message={"id": "m", "content": [{"type": "text", "text": "No."}]})
        say(type="rate_limit_event", status="fine")
        say(type="control_request", request_id="1", request={"subtype": "brand_new"})
        say(type="control_request", request="nothing")
        say(type="control_cancel_request")
        say(type="command_lifecycle")
        say(type="system")
        say(type="user", message=None)
    """
    runner = InMemoryRunner(sandboxed(tmp_path, junk, ANSWERS))
    assert await runner.run(runner.say("Hello?")) == {"type": "end_turn"}
    assert runner.texts() == ["Yes."]
    assert "a line of more than" in caplog.text
    kinds = [entry.fields["kind"] for entry in runner.events("roost.agent_frame")]
    assert kinds == ["rate_limit_event", "control_request", "system", "user"]


async def test_a_program_that_keeps_dying_is_given_up_with_its_last_words(tmp_path: Path):
    dies = """
        print("out of cheese", file=sys.stderr)
        sys.exit(3)
    """
    runner = InMemoryRunner(sandboxed(tmp_path, dies))
    assert await runner.run(runner.say("Hello?")) == {"type": "retries_exhausted"}
    assert runner.troubles() == ["retrying", "retrying", "retrying", "exhausted"]
    last = runner.outputs[-2]
    assert isinstance(last, Trouble)
    assert "exit code 3" in last.message
    assert "out of cheese" in last.message


async def test_the_calls_of_a_turn_that_is_given_up_are_settled_with_it(tmp_path: Path):
    dies_at_work = """
        import os
        for line in sys.stdin:
            if json.loads(line)["type"] == "user":
                call = {"type": "tool_use", "id": f"toolu_{os.getpid()}", "name": "Bash"}
                call["input"] = {"command": f"echo {os.getpid()}"}
                say(type="assistant", message={"id": f"msg_{os.getpid()}", "content": [call]})
                sys.exit(3)
    """
    runner = InMemoryRunner(sandboxed(tmp_path, dies_at_work), with_toolset())
    assert await runner.run(runner.say("Hello?")) == {"type": "retries_exhausted"}
    calls, results = runner.events("agent.tool_use"), runner.events("agent.tool_result")
    assert len(calls) == 4
    assert [result.fields["tool_use_id"] for result in results] == [call.id for call in calls]
    assert "outcome is unknown" in text_of(results[-1])


async def test_a_program_that_is_ended_at_work_has_time_to_write_down_what_it_said(tmp_path: Path):
    """Else what it did is in the log and not in its own record, and nobody knows whether it took effect."""
    writes_late = """
        import os, pathlib, uuid
        kept = pathlib.Path(os.environ["HOME"], ".claude/projects/x")
        kept.mkdir(parents=True)
        name, said = str(uuid.uuid4()), {"id": "msg_1", "content": [{"type": "text", "text": "Yes."}]}
        for line in sys.stdin:
            if json.loads(line)["type"] == "user":
                say(type="assistant", uuid=name, message=said)
                time.sleep(0.5)
                kept.joinpath(sys.argv[-1].partition("=")[2] + ".jsonl").write_text(name)
    """
    harness = sandboxed(tmp_path, writes_late)
    runner = InMemoryRunner(harness)
    await runner.run(runner.say("Hello?"), cut=2)
    assert runner.texts() == ["Yes."]
    assert len(harness.transcript.read_text()) == 36


async def test_a_program_that_is_not_there_is_an_error_of_the_harness(tmp_path: Path):
    runner = InMemoryRunner(
        SandboxedHarness(ClaudeHarness(tmp_path / "nothing", mounted=False), tmp_path / "homes")
    )
    with pytest.raises(RoostError, match="cannot be started"):
        await runner.run(runner.say("Hello?"))


async def test_a_program_that_does_not_heed_an_interrupt_is_killed(tmp_path: Path):
    deaf = """
        say(type="system", subtype="status", status="requesting")
        while True:
            time.sleep(1)
    """
    runner = InMemoryRunner(sandboxed(tmp_path, deaf))

    async def interrupt(opened: Conversation, _: Output) -> None:
        await opened.interrupt()

    async with runner.open() as opened:
        with anyio.fail_after(60):
            rest = await runner.turn(opened, [runner.say("Hello?")], watch=interrupt)
    assert rest == {"type": "end_turn"}
    assert runner.troubles() == []
    ends = runner.events("span.model_request_end")
    assert [entry.fields["is_error"] for entry in ends] == [True]


async def test_a_program_that_never_says_anything_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conversation, "_SPEAKS_WITHIN", 2)
    hangs_once = """
        import pathlib
        if not pathlib.Path("hung").exists():
            pathlib.Path("hung").touch()
            time.sleep(600)
    """
    runner = InMemoryRunner(sandboxed(tmp_path, hangs_once, ANSWERS))
    with anyio.fail_after(60):
        assert await runner.run(runner.say("Hello?")) == {"type": "end_turn"}
    assert set(runner.troubles()) == {"retrying"}
    assert runner.texts() == ["Yes."]


async def test_a_conversation_that_the_program_does_not_find_is_begun_anew(tmp_path: Path):
    forgets = """
        if any(argument.startswith("--resume=") for argument in sys.argv):
            say(type="result", subtype="error_during_execution", is_error=True,
                errors=["No conversation found with session ID: x"])
            sys.exit(1)
        import os, pathlib
        kept = pathlib.Path(os.environ["HOME"], ".claude/projects/x")
        kept.mkdir(parents=True, exist_ok=True)
        kept.joinpath(sys.argv[-1].partition("=")[2] + ".jsonl").write_text("x")
    """
    runner = InMemoryRunner(sandboxed(tmp_path, forgets, ANSWERS))
    await runner.run(runner.say("Hello?"))
    assert await runner.run(runner.say("And again?")) == {"type": "end_turn"}
    assert runner.troubles() == [], "that is repaired, and no trouble"
    assert len(runner.events("agent.thread_context_compacted")) == 1


async def test_errors_of_the_caller_come_out_as_they_are(tmp_path: Path):
    runner = InMemoryRunner(sandboxed(tmp_path, ANSWERS))
    with pytest.raises(LeaseLost):
        async with runner.open() as opened:
            await runner.turn(opened, [runner.say("Hello?")])
            raise LeaseLost


async def test_without_a_sandbox_nothing_is_started(tmp_path: Path):
    cli = tmp_path / "cli"
    harness = ClaudeHarness(cli)
    assert [mount.source for mount in harness.mounts] == [cli]
    runner = InMemoryRunner(harness)
    with pytest.raises(RoostError, match="needs a sandbox"):
        async with runner.open():
            pass
