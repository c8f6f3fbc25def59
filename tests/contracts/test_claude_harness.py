"""The claude harness, with the real CLI: the contract, and what is its own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from tests.contracts.at_length import at_length
from tests.harnesses.claude_session import (
    END,
    Board,
    Served,
    agent,
    bash,
    config,
    docs_server,
    emits,
    once,
    sandboxed_harness,
    serving,
    with_servers,
)
from tests.harnesses.sandboxed_harness import SandboxedHarness

from roost.domain.session import Pending
from roost.ports.harness import Conversation, Harness, Output, Trouble
from roost.serve.http import listening
from roost.testing.harness_contract import HarnessContract
from roost.testing.in_memory_runner import InMemoryRunner, script


@pytest.fixture
async def model() -> AsyncGenerator[Served, None]:
    async with serving() as model:
        yield model


@pytest.fixture
def sandboxed(model: Served, tmp_path: Path) -> SandboxedHarness:
    return sandboxed_harness(model, tmp_path)


class TestClaudeHarness(HarnessContract):
    @pytest.fixture
    def harness(self, sandboxed: SandboxedHarness) -> Harness:
        return sandboxed

    @pytest.fixture
    async def model(self) -> AsyncGenerator[Served, None]:
        async with serving() as model:
            yield model

    # The kit cuts a turn off at every output, which takes the CLI minutes.
    test_a_turn_cut_off_anywhere_comes_to_the_same_conversation = at_length(
        HarnessContract.test_a_turn_cut_off_anywhere_comes_to_the_same_conversation
    )
    test_a_turn_cut_off_twice_comes_to_the_same_conversation = at_length(
        HarnessContract.test_a_turn_cut_off_twice_comes_to_the_same_conversation
    )
    test_a_result_is_delivered_once_wherever_its_turn_is_cut_off = at_length(
        HarnessContract.test_a_result_is_delivered_once_wherever_its_turn_is_cut_off
    )

    async def test_a_refusal_of_the_model_is_the_reason_the_turn_ends(
        self, harness: Harness
    ) -> None:
        """The CLI tells a model that refused so, and asks it once more."""
        runner = InMemoryRunner(harness)
        step = {"text": "I would rather not.", "stop_reason": "refusal"}
        assert await runner.run(runner.say(script(step, step))) == {"type": "refusal"}


async def test_a_tool_runs_in_the_workspace_once_its_call_is_in_the_log(
    sandboxed: SandboxedHarness,
):
    runner = Board(sandboxed, agent())
    seen: list[bool] = []
    watch = once(
        emits("agent.tool_use"), lambda: seen.append((sandboxed.workspace / "new.txt").exists())
    )
    async with runner.open() as opened:
        message = runner.say(script(bash("echo hello | tee new.txt"), {"text": "Done."}))
        assert await runner.turn(opened, [message], watch=watch) == END
    assert seen == [False], "it ran before its call was logged"
    assert (sandboxed.workspace / "new.txt").read_text() == "hello\n"
    (call,), (result,) = runner.events("agent.tool_use"), runner.events("agent.tool_result")
    assert call.fields == {
        "name": "bash",
        "input": {"command": "echo hello | tee new.txt"},
        "evaluated_permission": "allow",
        "evaluation": {"type": "always_allow"},
    }
    assert result.fields["tool_use_id"] == call.id
    assert result.fields["content"] == [{"type": "text", "text": "hello"}]
    assert runner.told() == ["user.message", "agent.tool_use", "agent.tool_result", "agent.message"]


async def test_the_agent_is_offered_what_it_may_use_and_told_who_it_is(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent("always_allow", config("bash", enabled=False)))
    calls = {"tools": [bash("echo no"), {"tool": "Glob", "input": {"pattern": "*"}}]}
    await runner.run(runner.say(script(calls, {"text": "Done."})))
    body = model.requests[-1].body
    assert {tool["name"] for tool in body["tools"]} == {
        *("Read", "Write", "Edit", "Glob", "Grep", "WebFetch", "WebSearch"),
        *("AskUserQuestion", "lookup"),
    }
    assert body["model"] == "scripted"
    assert "You are being tested." in json.dumps(body["system"])
    refused, found = runner.events("agent.tool_use")
    assert refused.fields["evaluated_permission"] == "deny"
    assert "evaluation" not in refused.fields
    assert found.fields["evaluated_permission"] == "allow"
    assert [entry.fields["is_error"] for entry in runner.events("agent.tool_result")] == [
        True,
        False,
    ]


async def test_permission_is_asked_for_given_and_refused(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent("always_ask"))
    async with runner.open() as opened:
        message = runner.say(script(bash("echo yes > a"), bash("echo no > b"), {"text": "Done."}))
        rest = await runner.turn(opened, [message])
        (first,) = runner.events("agent.tool_use")
        assert first.fields["evaluated_permission"] == "ask"
        assert runner.pending == [Pending(first.id, "confirmation")]
        assert rest == {"type": "requires_action", "event_ids": [first.id]}
        rest = await runner.turn(opened, [runner.confirm(first.id)])
        second = runner.events("agent.tool_use")[-1]
        assert rest == {"type": "requires_action", "event_ids": [second.id]}
        no = runner.confirm(second.id, "deny", deny_message="Not on a Sunday.")
        assert await runner.turn(opened, [no]) == END
    assert sorted(path.name for path in sandboxed.workspace.iterdir()) == ["a"]
    assert "Not on a Sunday." in json.dumps(runner.events("agent.tool_result")[-1].fields)
    assert "Not on a Sunday." in model.last_request()


async def test_a_question_is_put_to_the_client_and_its_answer_to_the_agent(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent())
    options = [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}]
    question = {"question": "Which?", "header": "Colour", "multiSelect": False, "options": options}
    step = {"tool": "AskUserQuestion", "input": {"questions": [question]}}
    async with runner.open() as opened:
        await runner.turn(opened, [runner.say(script(step, step, {"text": "Done."}))])
        (first,) = runner.events("agent.custom_tool_use")
        assert first.fields["name"] == "AskUserQuestion"
        assert first.fields["input"]["questions"][0]["question"] == "Which?"
        await runner.turn(opened, [runner.answer(first.id, '{"Which?": "Blue"}')])
    assert '\\"Which?\\"=\\"Blue\\"' in model.last_request()
    second = runner.events("agent.custom_tool_use")[-1]
    assert await runner.run(runner.answer(second.id, "Something else")) == END
    assert '\\"Which?\\"=\\"Something else\\"' in model.last_request()
    assert runner.texts() == ["Done."]


async def test_a_call_that_its_tool_cannot_take_waits_for_nobody(sandboxed: SandboxedHarness):
    """The CLI refuses such an input by itself, and never asks whether the call may be made."""
    runner = Board(sandboxed, agent("always_ask"))
    question = {"question": "Which?", "options": [{"label": "Red"}]}
    asks = {"tool": "AskUserQuestion", "input": {"questions": [question]}}
    wrong = {"tool": "Bash", "input": {"cmd": "ls"}}
    assert await runner.run(runner.say(script(asks, wrong, {"text": "Done."}))) == END
    assert runner.pending == []
    calls = [*runner.events("agent.custom_tool_use"), *runner.events("agent.tool_use")]
    results = runner.events("agent.tool_result")
    assert [result.fields["tool_use_id"] for result in results] == [call.id for call in calls]
    assert all(result.fields["is_error"] for result in results)
    assert runner.texts() == ["Done."]


async def test_an_interrupt_stops_a_running_tool(sandboxed: SandboxedHarness):
    runner = Board(sandboxed, agent())
    slow = "echo begun > begun.txt; python3 -c 'import time; time.sleep(600)'"

    async def interrupt(opened: Conversation, output: Output) -> None:
        if emits("span.model_request_end")(output):
            while not (sandboxed.workspace / "begun.txt").exists():  # noqa: ASYNC110 - a tool's doing
                await anyio.sleep(0.02)
            await opened.interrupt()

    async with runner.open() as opened:
        with anyio.fail_after(60):
            message = runner.say(script(bash(slow), {"text": "Never."}))
            assert await runner.turn(opened, [message], watch=interrupt) == END
        runner.interrupted()
        assert await runner.turn(opened, [runner.say(script({"text": "Next."}))]) == END
    assert runner.texts() == ["Next."]
    assert [entry.fields["is_error"] for entry in runner.events("agent.tool_result")] == [True]


@pytest.mark.parametrize(("status", "why"), [(400, "because"), (401, "set ANTHROPIC_API_KEY")])
async def test_a_request_the_model_refuses_ends_the_turn_and_says_why(
    sandboxed: SandboxedHarness, status: int, why: str
):
    runner = Board(sandboxed, agent())
    step = {"error": {"status": status, "message": "because"}, "text": "x"}
    assert await runner.run(runner.say(script(step))) == {"type": "retries_exhausted"}
    (last,) = [output for output in runner.outputs if isinstance(output, Trouble)]
    assert last.error == "model_request_failed_error"
    assert why in last.message
    assert last.retry == "exhausted"
    assert runner.texts() == [], "the CLI's own words about it are not the agent's"


async def test_messages_come_to_the_agent_as_they_are(sandboxed: SandboxedHarness, model: Served):
    """No file is read and no command is run because of what a message says."""
    runner = Board(sandboxed, agent())
    note = runner.say("Be brief.", type="system.message")
    assert await runner.run(runner.say("/compact @/etc/hostname"), note) == END
    assert "/compact @/etc/hostname" in model.last_request()
    assert "<system-reminder>\\nBe brief." in model.last_request()
    assert len(runner.texts()) == 1
    assert runner.events("agent.thread_context_compacted") == []


async def test_an_agent_whose_prompt_was_changed_goes_on_with_the_new_one(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent())
    await runner.run(runner.say(script({"text": "One."})))
    runner.change_agent(agent() | {"system": "You are somebody else."})
    await runner.run(runner.say(script({"text": "Two."})))
    system = json.dumps(model.requests[-1].body["system"])
    assert "You are somebody else." in system
    assert "You are being tested." not in system


async def test_tools_of_an_mcp_server_ask_first_and_one_that_is_away_stops_nobody(
    sandboxed: SandboxedHarness,
):
    servers = {"docs": "", "away": "http://127.0.0.1:9/mcp"}
    async with listening(docs_server, "127.0.0.1", 0) as url:
        servers["docs"] = f"{url}/mcp"
        runner = Board(sandboxed, with_servers(servers))
        step = {"tool": "mcp__docs__find", "input": {"what": "it"}}
        rest = await runner.run(runner.say(script(step, {"text": "Done."})))
        (call,) = runner.events("agent.mcp_tool_use")
        assert rest == {"type": "requires_action", "event_ids": [call.id]}
        assert (call.fields["mcp_server_name"], call.fields["name"]) == ("docs", "find")
        assert await runner.run(runner.confirm(call.id)) == END
    (result,) = runner.events("agent.mcp_tool_result")
    assert result.fields["mcp_tool_use_id"] == call.id
    assert result.fields["content"] == [{"type": "text", "text": "found"}]
    error = runner.events("session.error")[0].fields["error"]
    assert (error["type"], error["mcp_server_name"]) == ("mcp_connection_failed_error", "away")
