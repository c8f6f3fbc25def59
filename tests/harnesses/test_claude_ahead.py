"""The CLI started before there is anything to tell it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from tests.harnesses.claude_session import END, sandboxed_harness, serving
from tests.harnesses.sandboxed_harness import SandboxedHarness
from tests.harnesses.test_claude_processes import ANSWERS, sandboxed

from roost.errors import RoostError
from roost.harnesses.claude import ClaudeHarness
from roost.ports.harness import Conversation, TurnEnd
from roost.testing.in_memory_runner import InMemoryRunner

COUNTS = """
    open("started", "a").write("x")
    say(type="control_response", response={"subtype": "success"})
"""
STOPS_WHEN_TOLD = """
    for line in sys.stdin:
        frame = json.loads(line)
        if frame["type"] == "user":
            name = frame["uuid"]
        elif frame["request"]["subtype"] == "interrupt":
            say(type="result", subtype="error_during_execution", terminal_reason="aborted_streaming")
            say(type="command_lifecycle", command_uuid=name, state="completed")
            say(type="system", subtype="session_state_changed", state="idle")
"""


class Eager(InMemoryRunner):
    """A desk whose agent is started as soon as it is opened."""

    def open(self, *, ahead: bool = True) -> AbstractAsyncContextManager[Conversation]:
        return super().open(ahead=ahead)


def lose_transcripts(tmp_path: Path) -> None:
    for transcript in tmp_path.rglob("*.jsonl"):
        transcript.unlink()


def starts(tmp_path: Path) -> int:
    return sum(len(path.read_text()) for path in tmp_path.rglob("started"))


async def test_it_is_up_before_the_first_input_and_is_not_started_again(tmp_path: Path):
    runner = Eager(sandboxed(tmp_path, COUNTS, ANSWERS))
    async with runner.open() as conversation:
        assert await conversation.up()
        assert starts(tmp_path) == 1
        for text in ("Hello?", "Still there?"):
            assert await runner.turn(conversation, [runner.say(text)]) == END
    assert runner.texts() == ["Yes.", "Yes."]
    assert starts(tmp_path) == 1


async def test_one_that_nobody_tells_anything_ends_by_itself(tmp_path: Path):
    runner = Eager(sandboxed(tmp_path, COUNTS, ANSWERS))
    async with runner.open() as conversation:
        assert await conversation.up()


async def test_why_it_cannot_be_started_is_said_when_it_is_needed(tmp_path: Path):
    runner = Eager(
        SandboxedHarness(ClaudeHarness(tmp_path / "nothing", mounted=False), tmp_path / "homes")
    )
    with pytest.raises(RoostError, match="cannot be started"):
        async with runner.open() as conversation:
            assert not await conversation.up()
            await runner.turn(conversation, [runner.say("Hello?")])


async def test_an_interrupt_that_comes_before_it_was_told_anything_counts(tmp_path: Path):
    runner = Eager(sandboxed(tmp_path, STOPS_WHEN_TOLD))
    async with runner.open() as conversation:
        turn = conversation.turn([runner.say("Count to a million.")], again=False)
        await conversation.interrupt()
        assert [output async for output in turn][-1] == TurnEnd(END)


async def test_a_conversation_whose_transcript_is_lost_is_told_anew(tmp_path: Path):
    async with serving() as model:
        runner = Eager(sandboxed_harness(model, tmp_path))
        assert await runner.run(runner.say("My name is Ada.")) == END
        assert await runner.run(runner.say("Still there?")) == END
        assert "2 user messages" in runner.texts()[-1]
        await anyio.to_thread.run_sync(lose_transcripts, tmp_path)
        assert await runner.run(runner.say("What is my name?")) == END
        assert "your own record of it was lost" in model.last_request()
        assert "My name is Ada." in model.last_request()
        assert runner.troubles() == []
