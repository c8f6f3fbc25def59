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

from roost.testing.desk import script


@pytest.fixture
async def model() -> AsyncGenerator[Served, None]:
    async with serving() as model:
        yield model


@pytest.fixture
def sandboxed(model: Served, tmp_path: Path) -> SandboxedHarness:
    return sandboxed_harness(model, tmp_path)


async def test_auto_lets_the_agent_look_and_asks_before_it_acts(sandboxed: SandboxedHarness):
    desk = Board(sandboxed, agent("auto"))
    looks = {"tool": "Glob", "input": {"pattern": "*"}}
    rest = await desk.run(desk.say(script(looks, bash("echo done"), {"text": "Done."})))
    looked, acted = desk.events("agent.tool_use")
    assert looked.fields["evaluation"] == {
        "type": "auto",
        "evaluated_permission": {"type": "allow"},
    }
    judged = {"type": "ask", "reason_code": "indeterminate"}
    assert acted.fields["evaluation"] == {"type": "auto", "evaluated_permission": judged}
    assert rest == {"type": "requires_action", "event_ids": [acted.id]}
    assert await desk.run(desk.confirm(acted.id)) == END
    assert desk.texts() == ["Done."]


async def test_a_conversation_that_grows_too_long_is_compacted_and_says_so(
    sandboxed: SandboxedHarness,
):
    desk = Board(sandboxed, agent())
    full = {"text": "One.", "usage": {"input_tokens": 990_000}}
    async with desk.open() as opened:
        await desk.turn(opened, [desk.say(script(full))])
        assert await desk.turn(opened, [desk.say(script({"text": "Two."}))]) == END
    assert len(desk.events("agent.thread_context_compacted")) == 1
    assert desk.texts() == ["One.", "Two."]


async def test_what_the_cli_says_and_roost_has_no_word_for_is_passed_on(
    sandboxed: SandboxedHarness,
):
    """It announces that it asks a model once more that has refused."""
    desk = Board(sandboxed, agent())
    step = {"text": "I would rather not.", "stop_reason": "refusal"}
    assert await desk.run(desk.say(script(step, step))) == {"type": "refusal"}
    passed = [entry.fields for entry in desk.events("roost.agent_frame")]
    said = [p["frame"]["content"] for p in passed if p["kind"] == "system informational"]
    assert "safeguards" in said[0]


async def test_an_ordinary_turn_has_nothing_that_is_not_understood(sandboxed: SandboxedHarness):
    desk = Board(sandboxed, agent())
    step = {"thinking": "Hm.", **bash("echo done")}
    assert await desk.run(desk.say(script(step, {"text": "Done."}))) == END
    assert len(desk.events("agent.thinking")) == 1
    assert desk.events("roost.agent_frame") == []
