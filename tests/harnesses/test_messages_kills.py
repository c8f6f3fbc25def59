"""The messages harness, killed: after each entry of its journal, and in the middle of an answer and of a tool.

Whatever was cut off, a command has run once at most, each call has one result, and a model that takes back only
what it has said accepts all that it is sent.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from tests.faults.cluster import seeded
from tests.harnesses.messages_session import MessagesSession
from tests.harnesses.strict_model import StrictModel

from roost.domain.events import Entry
from roost.ports.harness import Emit
from roost.serve.http import listening
from roost.testing.in_memory_runner import InMemoryRunner, script, with_toolset

APPEND = {"tool": "bash", "input": {"command": "echo ran >>log"}}
READ = {"tool": "read", "input": {"file_path": "log"}}
WRITE = {"tool": "write", "input": {"file_path": "made", "content": "x"}}
PROMPT = script(
    {"thinking": "Hm.", "text": "First.", "tools": [APPEND, READ]},
    {"thinking": "So.", "text": "Then.", "tools": [READ, WRITE, READ]},
    {"text": "Done."},
)


@pytest.fixture
async def model() -> AsyncGenerator[StrictModel, None]:
    model = StrictModel()
    async with listening(model, "127.0.0.1", 0) as model.url:
        yield model


@pytest.fixture
def harness(model: StrictModel, tmp_path: Path) -> MessagesSession:
    return MessagesSession(model.url, tmp_path)


def has_run(harness: MessagesSession) -> int:
    """How often the command has run."""
    log = harness.workspace / "log"
    return log.read_text().count("ran\n") if log.exists() else 0


def check_results(runner: InMemoryRunner) -> Entry:
    """Each call has one result; gives the one of the command."""
    calls = [entry.id for entry in runner.events("agent.tool_use")]
    results = runner.events("agent.tool_result")
    assert Counter(entry.fields["tool_use_id"] for entry in results) == Counter(calls)
    return next(entry for entry in results if entry.fields["tool_use_id"] == calls[0])


async def written(harness: MessagesSession, name: str) -> str:
    """What a tool has written to a file, once it has."""
    while True:
        path = harness.workspace / name  # the session may not have begun yet
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text()
        await anyio.sleep(0.01)


def is_unknown(result: Entry) -> bool:
    return "outcome is unknown" in result.fields["content"][0]["text"]


async def test_killed_after_each_entry_a_command_has_run_once_at_most(
    harness: MessagesSession, model: StrictModel
) -> None:
    whole = InMemoryRunner(harness, with_toolset())
    assert await whole.run(whole.say(PROMPT)) == {"type": "end_turn"}
    emits = [(n, output) for n, output in enumerate(whole.outputs, 1) if isinstance(output, Emit)]
    assert not is_unknown(check_results(whole))
    cuts = [(n, True) for n, _ in emits]
    # What has run, and was not logged; before other entries there is nothing that an earlier cut has not shown.
    cuts += [(n, False) for n, output in emits if output.drafts[0].type == "agent.tool_result"]
    for cut, logged in cuts:
        runner = InMemoryRunner(harness, with_toolset())
        message = runner.say(PROMPT)
        await runner.run(message, cut=cut, logged=logged)
        assert await runner.run(message, again=True) == {"type": "end_turn"}, (cut, logged)
        result = check_results(runner)
        # What it says is true: unknown only if it started, and then it may have run.
        assert has_run(harness) == 1 or (has_run(harness) == 0 and is_unknown(result))
        assert runner.texts() == ["First.", "Then.", "Done."]
        assert model.refusals == [], (cut, logged)


async def test_killed_in_the_middle_of_a_command_it_is_not_run_again(
    harness: MessagesSession, model: StrictModel
) -> None:
    step = {"tool": "bash", "input": {"command": "echo ran >>log; echo on >on; sleep 300"}}
    runner = InMemoryRunner(harness, with_toolset())
    message = runner.say(script({"tools": [step, READ]}, {"text": "Done."}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.run, message)
        await written(harness, "on")
        tasks.cancel_scope.cancel()
    assert await runner.run(message, again=True) == {"type": "end_turn"}
    assert is_unknown(check_results(runner))
    assert (has_run(harness), model.refusals) == (1, [])


@pytest.mark.parametrize("what", ["sandbox", "tools"])
async def test_a_sandbox_that_dies_under_a_command_fails_the_turn_and_not_the_next(
    harness: MessagesSession, model: StrictModel, what: str
) -> None:
    step = {"tool": "bash", "input": {"command": "echo ran >>log; echo $PPID >on; sleep 300"}}
    runner = InMemoryRunner(harness, with_toolset())
    message = runner.say(script(step, {"text": "Done."}))

    async def kill() -> None:
        pid = await written(harness, "on")
        if what == "tools":
            os.kill(int(pid), 9)
        elif harness.sandbox is not None:
            await harness.sandbox.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill)
        with pytest.raises(Exception, match="tools have ended"):
            await runner.run(message)
    assert await runner.run(message, again=True) == {"type": "end_turn"}
    assert is_unknown(check_results(runner))
    assert (has_run(harness), model.refusals) == (1, [])


async def kill_anywhere(
    harness: MessagesSession, model: StrictModel, kills: int, chance: random.Random
) -> None:
    """Sessions that are killed at moments nobody chose, until so many kills have been made."""
    steps = [{"thinking": "Hm.", "text": "Word by word.", "tools": [APPEND, READ]}]
    done = {"text": "Done.", "chunk_delay": 0.01}
    while kills > 0:
        runner = InMemoryRunner(harness, with_toolset())
        message = runner.say(script(*steps, done))
        again, rest = False, None
        while rest is None:
            with anyio.move_on_after(chance.uniform(0.001, 0.3) if kills > 0 else 60):
                rest = await runner.run(message, again=again)
            kills -= rest is None
            again = again or any(not entry.queued for entry in runner.entries)
        result = check_results(runner)
        assert has_run(harness) == 1 or (has_run(harness) == 0 and is_unknown(result))
        assert runner.texts() == ["Word by word.", "Done."]
        assert model.refusals == []


async def test_killed_at_any_moment_nothing_is_lost_or_run_twice(
    harness: MessagesSession, model: StrictModel
) -> None:
    await kill_anywhere(harness, model, 8, seeded())


@pytest.mark.chaos
async def test_a_hundred_kills_lose_nothing_and_run_nothing_twice(
    harness: MessagesSession, model: StrictModel
) -> None:
    await kill_anywhere(harness, model, 100, seeded())
