"""Subagents of the real claude CLI: who said what, who is asked, and what a kill leaves of them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.harnesses.claude_session import (
    END,
    Board,
    Served,
    agent,
    appears,
    bash,
    noted,
    sandboxed_harness,
    serving,
)
from tests.harnesses.sandboxed_harness import SandboxedHarness
from tests.sdk.types_of_sdks import EVENT, PYTHONS, check_types

from roost.domain.session import Pending
from roost.harnesses.claude.tools import Toolbox
from roost.ports.harness import Conversation, Emit, Output
from roost.testing.in_memory_runner import script, text_of, with_subagents


@pytest.fixture
async def model() -> AsyncGenerator[Served, None]:
    async with serving() as model:
        yield model


@pytest.fixture
def sandboxed(model: Served, tmp_path: Path) -> SandboxedHarness:
    return sandboxed_harness(model, tmp_path)


def starts(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    asked = {"description": "Look", "prompt": script(*steps, say="inside")}
    return {"tool": "Agent", "input": {**asked, "subagent_type": "general-purpose", **more}}


def ended(runner: Board) -> dict[str, list[bool]]:
    """How often each call has ended, and whether as a failure."""
    found: dict[str, list[bool]] = {entry.id: [] for entry in runner.events("agent.tool_use")}
    for entry in runner.events("agent.tool_result"):
        found[entry.fields["tool_use_id"]].append(entry.fields["is_error"])
    return found


def of_threads(runner: Board) -> list[tuple[str, str]]:
    """What subagents have called: the name of the tool and the thread."""
    calls = runner.events("agent.tool_use")
    found = [(call.fields["name"], call.fields.get("session_thread_id")) for call in calls]
    return [(name, thread) for name, thread in found if thread is not None]


async def test_two_at_once_are_two_threads_and_wait_together(sandboxed: SandboxedHarness):
    runner = Board(sandboxed, with_subagents(agent("always_ask")))
    both = [starts(bash(f"echo {n} > {n}.txt"), {"text": f"Made {n}."}) for n in "ab"]
    async with runner.open() as opened:
        rest = await runner.turn(opened, [runner.say(script({"tools": both}, {"text": "Both."}))])
        waiting = [call for call in runner.events("agent.tool_use") if "evaluation" in call.fields]
        asked = [call.id for call in waiting if call.fields["evaluated_permission"] == "ask"]
        assert rest == {"type": "requires_action", "event_ids": asked}
        assert runner.pending == [Pending(id, "confirmation") for id in asked]
        threads = {
            entry.fields["session_thread_id"] for entry in runner.events("session.thread_created")
        }
        assert {thread for _, thread in of_threads(runner)} == threads
        assert len(asked) == len(threads) == 2
        assert not list(sandboxed.workspace.iterdir())
        first = await runner.turn(opened, [runner.confirm(asked[0])])
        assert first == {"type": "requires_action", "event_ids": [asked[1]]}
        refused = runner.confirm(asked[1], "deny", deny_message="Not on a Sunday.")
        assert await runner.turn(opened, [refused]) == END
    assert len(list(sandboxed.workspace.iterdir())) == 1
    assert runner.texts() == ["Both."]
    said = [text_of(entry) for entry in runner.events("agent.thread_message_received")]
    assert sorted(said) == ["Made a.", "Made b."]
    assert ended(runner)[asked[0]] == [False]
    assert ended(runner)[asked[1]] == [True]
    official = [entry for entry in runner.entries if not entry.type.startswith("roost.")]
    events = [json.loads(entry.json()) for entry in official if not entry.queued]
    for version in PYTHONS:
        check_types(version, [(EVENT, event) for event in events])


async def test_a_client_answers_a_tool_that_a_subagent_calls(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, with_subagents(agent()))
    step = starts({"tool": "lookup", "input": {"what": "weather"}}, {"text": "It rains."})
    async with runner.open() as opened:
        rest = await runner.turn(opened, [runner.say(script(step, {"text": "Take a coat."}))])
        (call,) = runner.events("agent.custom_tool_use")
        (created,) = runner.events("session.thread_created")
        assert call.fields["session_thread_id"] == created.fields["session_thread_id"]
        assert rest == {"type": "requires_action", "event_ids": [call.id]}
        assert await runner.turn(opened, [runner.answer(call.id, "rain, 9 degrees")]) == END
    assert any("rain, 9 degrees" in str(request.body) for request in model.requests)
    assert runner.texts() == ["Take a coat."]


async def test_an_interrupt_stops_a_subagent_too(sandboxed: SandboxedHarness):
    runner = Board(sandboxed, with_subagents(agent()))
    slow = "echo begun > begun.txt; python3 -c 'import time; time.sleep(600)'"

    async with runner.open() as opened:
        message = runner.say(script(starts(bash(slow), {"text": "Never."}), {"text": "Never."}))

        async def soon() -> None:
            await appears(sandboxed.workspace / "begun.txt")
            await opened.interrupt()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(soon)
            assert await runner.turn(opened, [message]) == END
        assert all(len(ends) == 1 for ends in ended(runner).values()), ended(runner)
        runner.interrupted()
        assert await runner.turn(opened, [runner.say(script({"text": "Next."}))]) == END
    assert runner.texts() == ["Next."]


@pytest.mark.parametrize("moment", ["said", "called", "running", "returned"])
async def test_an_agent_that_is_killed_with_a_subagent_runs_nothing_twice(
    sandboxed: SandboxedHarness, model: Served, moment: str
):
    """The turn goes on in another process. Its model is told what the subagent did, and starts another one."""
    runner = Board(sandboxed, with_subagents(agent()))
    pause = 60 if moment == "running" else 0
    first = {"text": "Let me see.", **bash(f"echo once >> ran.txt; sleep {pause}")}
    # It asks for permission for the second call, and gets none while it is looked at here.
    inner = starts(first, bash("true"), {"text": "Found."})
    killed: list[str] = []

    async def kill(opened: Conversation, output: Output) -> None:
        if not killed and _is_at(output, moment):
            # Else the agent would be told of its own call in words, and the model would find a script in them.
            await noted(sandboxed, '"name":"Agent"')
            killed.append(moment)
            sandboxed.kill_agent()

    async with runner.open() as opened:
        message = runner.say(script(inner, {"text": "All done."}))
        async with anyio.create_task_group() as tasks:
            if moment == "running":  # nothing is put out meanwhile
                tasks.start_soon(_kill_when, sandboxed, killed)
            assert await runner.turn(opened, [message], watch=kill) == END
    assert killed
    ran = sandboxed.workspace / "ran.txt"
    times = ran.read_text().count("once") if ran.exists() else 0
    # A call that may have run is not made for the agent, nor for another subagent that asks once.
    assert times == 1 if moment in ("running", "returned") else times <= 1
    assert all(len(ends) == 1 for ends in ended(runner).values()), ended(runner)
    assert runner.pending == []
    assert runner.texts() == ["All done."]
    told = model.last_request()
    if moment in ("running", "returned"):
        assert "subagents of yours were running" in told
        assert "A subagent said: Let me see." in told


async def test_what_a_subagent_was_allowed_is_not_asked_again_after_a_sleep(
    sandboxed: SandboxedHarness,
):
    """The process that asked is gone when the answer comes. Another subagent makes the same call."""
    runner = Board(sandboxed, with_subagents(agent("always_ask")))
    inner = starts({"text": "Let me see.", **bash("echo once >> ran.txt")}, {"text": "Found."})
    rest = await runner.run(runner.say(script(inner, {"text": "All done."})))
    assert rest is not None
    [asked] = rest["event_ids"]
    assert not (sandboxed.workspace / "ran.txt").exists()
    assert await runner.run(runner.confirm(asked)) == END
    assert (sandboxed.workspace / "ran.txt").read_text() == "once\n"
    assert ended(runner)[asked] == [False]
    assert [name for name, _ in of_threads(runner)] == ["bash"]
    assert runner.texts() == ["All done."]


async def test_nobody_is_waited_for_who_is_asked_by_a_subagent_that_is_gone(
    sandboxed: SandboxedHarness,
):
    """A server is killed while somebody is asked: the question goes with the subagent."""
    runner = Board(sandboxed, with_subagents(agent("always_ask")))
    inner = starts(bash("echo once >> ran.txt"), {"text": "Found."})
    message = runner.say(script(inner, {"text": "All done."}))
    await runner.run(message)
    [old] = runner.pending
    rest = await runner.run(message, again=True)
    assert ended(runner)[old.event_id] == [True]
    [new] = runner.pending
    assert rest == {"type": "requires_action", "event_ids": [new.event_id]}
    assert new != old


def test_an_agent_that_no_sandbox_keeps_in_starts_no_subagents():
    allowed = with_subagents(agent())
    assert Toolbox(allowed).has_subagents
    assert not Toolbox(allowed, confined=True).has_subagents
    assert not Toolbox(agent()).has_subagents


async def _kill_when(sandboxed: SandboxedHarness, killed: list[str]) -> None:
    await appears(sandboxed.workspace / "ran.txt", "once")
    await noted(sandboxed, '"name":"Agent"')
    killed.append("running")
    sandboxed.kill_agent()


def _calls(output: Output, name: str) -> bool:
    wanted = f'"name":"{name}"'.encode()
    return isinstance(output, Emit) and any(wanted in draft.body for draft in output.drafts)


def _is_at(output: Output, moment: str) -> bool:
    if not isinstance(output, Emit) or not output.drafts:
        return False
    draft = output.drafts[0]
    match moment:
        case "said":
            return draft.type == "agent.thread_message_received"
        case "called":
            return _calls(output, "bash")
        case "returned":
            return draft.type == "agent.tool_result"
        case _:
            return False
