"""What an agent is configured with and what its CLI prints, one by one, with the real CLI."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.harnesses.claude_session import (
    END,
    Board,
    Served,
    agent,
    bash,
    sandboxed_harness,
    serving,
)
from tests.harnesses.sandboxed_harness import SandboxedHarness

from roost.testing.in_memory_runner import script


@pytest.fixture
async def model() -> AsyncGenerator[Served, None]:
    async with serving() as model:
        yield model


@pytest.fixture
def sandboxed(model: Served, tmp_path: Path) -> SandboxedHarness:
    return sandboxed_harness(model, tmp_path)


async def test_auto_lets_the_agent_look_and_asks_before_it_acts(sandboxed: SandboxedHarness):
    runner = Board(sandboxed, agent("auto"))
    looks = {"tool": "Glob", "input": {"pattern": "*"}}
    rest = await runner.run(runner.say(script(looks, bash("echo done"), {"text": "Done."})))
    looked, acted = runner.events("agent.tool_use")
    assert looked.fields["evaluation"] == {
        "type": "auto",
        "evaluated_permission": {"type": "allow"},
    }
    judged = {"type": "ask", "reason_code": "indeterminate"}
    assert acted.fields["evaluation"] == {"type": "auto", "evaluated_permission": judged}
    assert rest == {"type": "requires_action", "event_ids": [acted.id]}
    assert await runner.run(runner.confirm(acted.id)) == END
    assert runner.texts() == ["Done."]


async def test_a_conversation_that_grows_too_long_is_compacted_and_says_so(
    sandboxed: SandboxedHarness,
):
    runner = Board(sandboxed, agent())
    full = {"text": "One.", "usage": {"input_tokens": 990_000}}
    async with runner.open() as opened:
        await runner.turn(opened, [runner.say(script(full))])
        assert await runner.turn(opened, [runner.say(script({"text": "Two."}))]) == END
    assert len(runner.events("agent.thread_context_compacted")) == 1
    assert runner.texts() == ["One.", "Two."]


async def test_what_the_cli_says_and_roost_has_no_word_for_is_passed_on(
    sandboxed: SandboxedHarness,
):
    """It announces that it asks a model once more that has refused."""
    runner = Board(sandboxed, agent())
    step = {"text": "I would rather not.", "stop_reason": "refusal"}
    assert await runner.run(runner.say(script(step, step))) == {"type": "refusal"}
    passed = [entry.fields for entry in runner.events("roost.agent_frame")]
    said = [p["frame"]["content"] for p in passed if p["kind"] == "system informational"]
    assert "safeguards" in said[0]


async def test_an_ordinary_turn_has_nothing_that_is_not_understood(sandboxed: SandboxedHarness):
    runner = Board(sandboxed, agent())
    step = {"thinking": "Hm.", **bash("echo done")}
    assert await runner.run(runner.say(script(step, {"text": "Done."}))) == END
    assert len(runner.events("agent.thinking")) == 1
    assert runner.events("roost.agent_frame") == []
