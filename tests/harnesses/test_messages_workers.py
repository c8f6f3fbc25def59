"""The messages harness of sessions on self-hosted environments: its tools are workers' to run.

Killed after each entry, it asks for each call once, and a model that takes back only what it has said accepts all that
it is sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.harnesses.messages_session import MessagesSession
from tests.harnesses.strict_model import StrictModel

from roost.domain.session import Pending
from roost.domain.work_item import CLOSED
from roost.serve.http import listening
from roost.testing.in_memory_runner import InMemoryRunner, script, with_toolset

END = {"type": "end_turn"}
RUN = {"tool": "bash", "input": {"command": "true"}}
READ = {"tool": "read", "input": {"file_path": "a"}}
PROMPT = script({"thinking": "Hm.", "text": "First.", "tools": [RUN, READ]}, {"text": "Done."})


@pytest.fixture
async def model() -> AsyncGenerator[StrictModel, None]:
    model = StrictModel()
    async with listening(model, "127.0.0.1", 0) as model.url:
        yield model


@pytest.fixture
def harness(model: StrictModel, tmp_path: Path) -> MessagesSession:
    return MessagesSession(model.url, tmp_path)


def calls_of(runner: InMemoryRunner) -> list[str]:
    return [entry.id for entry in runner.events("agent.tool_use")]


def results_in(model: StrictModel) -> list[Any]:
    """What the last request says of the calls before it."""
    blocks = model.requests[-1].body["messages"][-1]["content"]
    return [each["content"][0]["text"] for each in blocks if each["type"] == "tool_result"]


async def test_calls_wait_for_a_worker_and_the_model_is_told_what_it_brings(
    harness: MessagesSession, model: StrictModel
) -> None:
    runner = InMemoryRunner(harness, with_toolset(), self_hosted=True)
    stop = await runner.run(runner.say(PROMPT))
    run, read = calls_of(runner)
    assert stop == {"type": "requires_action", "event_ids": [run, read]}
    assert runner.pending == [Pending(run, "tool"), Pending(read, "tool")]
    # One result alone does not wake the model; another runner goes on with both.
    first = runner.bring(run, "ran")
    assert (await runner.run(first) or {})["type"] == "requires_action"
    assert await runner.run(runner.bring(read, "abc")) == END
    assert results_in(model) == ["ran", "abc"]
    assert runner.texts() == ["First.", "Done."]
    assert harness.opened == 0, "nothing ran here"
    assert model.refusals == []


async def test_a_call_that_is_asked_about_waits_for_both(
    harness: MessagesSession, model: StrictModel
) -> None:
    runner = InMemoryRunner(harness, with_toolset("always_ask"), self_hosted=True)
    await runner.run(runner.say(PROMPT))
    run, read = calls_of(runner)
    assert runner.pending == [Pending(run, "gated_tool"), Pending(read, "gated_tool")]
    allowed, denied = runner.confirm(run), runner.confirm(read, "deny", deny_message="no")
    assert await runner.run(allowed, denied, runner.bring(run, "ran")) == END
    assert results_in(model) == ["ran", "no"]
    assert model.refusals == []


async def test_what_a_worker_was_to_run_is_unknown_after_an_interrupt(
    harness: MessagesSession, model: StrictModel
) -> None:
    runner = InMemoryRunner(harness, with_toolset(), self_hosted=True)
    await runner.run(runner.say(PROMPT))
    runner.interrupted()
    assert await runner.run(runner.say(script({"text": "And now."}))) == END
    assert CLOSED["interrupted"] in str(model.requests[-1].body["messages"])
    assert model.refusals == []


async def test_killed_after_each_entry_it_waits_for_the_same_calls(
    harness: MessagesSession, model: StrictModel
) -> None:
    for cut in range(1, 9):
        for logged in (True, False):
            runner = InMemoryRunner(harness, with_toolset(), self_hosted=True)
            said = runner.say(PROMPT)
            stop = await runner.run(said, cut=cut, logged=logged)
            if stop is None:
                stop = await runner.run(*runner.events("user.message"), again=True)
            run, read = calls_of(runner)
            assert stop == {"type": "requires_action", "event_ids": [run, read]}
            assert [pending.event_id for pending in runner.pending] == [run, read]
            both = runner.bring(run, "ran"), runner.bring(read, "abc")
            assert await runner.run(*both) == END
            assert results_in(model) == ["ran", "abc"]
    assert model.refusals == []
