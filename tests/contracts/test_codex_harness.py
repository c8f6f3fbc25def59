"""The codex harness, with the real program: the contract, and what is its own."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.contracts.at_length import at_length
from tests.harnesses.claude_session import END, Board, Served, agent, appears, emits, once, serving
from tests.harnesses.codex_session import codex_harness, run
from tests.harnesses.sandboxed_harness import SandboxedHarness

from roost.harnesses.content import as_text
from roost.ports.harness import Conversation, Harness, Output, Trouble
from roost.sandboxes import procfs
from roost.testing.harness_contract import HarnessContract
from roost.testing.in_memory_runner import script


@pytest.fixture
async def model() -> AsyncGenerator[Served, None]:
    async with serving() as model:
        yield model


@pytest.fixture
def sandboxed(model: Served, tmp_path: Path) -> SandboxedHarness:
    return codex_harness(model, tmp_path)


class TestCodexHarness(HarnessContract):
    builtin = ("exec_command", {"cmd": "echo hello"})
    question: tuple[str, dict[str, Any]] = (
        "request_user_input",
        {
            "questions": [
                {
                    "id": "colour",
                    "question": "Which?",
                    "header": "Colour",
                    "options": [
                        {"label": "Red", "description": "r"},
                        {"label": "Blue", "description": "b"},
                    ],
                }
            ]
        },
    )

    # The kit cuts a turn off at every output, which takes the program minutes.
    test_a_turn_cut_off_anywhere_comes_to_the_same_conversation = at_length(
        HarnessContract.test_a_turn_cut_off_anywhere_comes_to_the_same_conversation
    )
    test_a_turn_cut_off_twice_comes_to_the_same_conversation = at_length(
        HarnessContract.test_a_turn_cut_off_twice_comes_to_the_same_conversation
    )
    test_a_result_is_delivered_once_wherever_its_turn_is_cut_off = at_length(
        HarnessContract.test_a_result_is_delivered_once_wherever_its_turn_is_cut_off
    )

    @pytest.fixture
    def harness(self, sandboxed: SandboxedHarness) -> Harness:
        return sandboxed

    @pytest.fixture
    async def model(self) -> AsyncGenerator[Served, None]:
        async with serving() as model:
            yield model


async def test_a_command_runs_in_the_workspace_once_its_call_is_in_the_log(
    sandboxed: SandboxedHarness,
):
    runner = Board(sandboxed, agent())
    seen: list[bool] = []
    watch = once(
        emits("agent.message"), lambda: seen.append((sandboxed.workspace / "new.txt").exists())
    )
    async with runner.open() as opened:
        step = {"text": "I look.", **run("echo hello | tee new.txt; exit 3")}
        message = runner.say(script(step, {"thinking": "Hm.", "text": "Done."}))
        assert await runner.turn(opened, [message], watch=watch) == END
    assert seen == [False], "it ran before its call was logged"
    (call,), (result,) = runner.events("agent.tool_use"), runner.events("agent.tool_result")
    assert call.fields == {
        "name": "bash",
        "input": {"command": "echo hello | tee new.txt; exit 3"},
        "evaluated_permission": "allow",
        "evaluation": {"type": "always_allow"},
    }
    assert result.fields["content"] == [{"type": "text", "text": "Exit code 3\nhello"}]
    assert result.fields["is_error"]
    answer = ["agent.message", "agent.tool_use", "agent.tool_result", "agent.message"]
    assert runner.told() == ["user.message", *answer]
    assert len(runner.events("agent.thinking")) == 1


async def test_the_agent_has_its_prompt_its_effort_and_only_what_it_may_use(
    sandboxed: SandboxedHarness, model: Served
):
    fields = {"model": {"id": "scripted", "effort": {"type": "max"}}}
    runner = Board(sandboxed, agent() | fields | {"tools": agent()["tools"][:1]})
    name, given = TestCodexHarness.question  # it is offered to all, and refused
    assert (
        await runner.run(runner.say(script({"tool": name, "input": given}, {"text": "One."})))
        == END
    )
    assert "has been denied" in json.dumps(runner.events("agent.tool_result")[0].fields)
    body = model.requests[-1].body
    assert [tool.get("name") for tool in body["tools"]] == ["request_user_input", "lookup"]
    assert body["reasoning"]["effort"] == "xhigh"
    assert "You are being tested." in json.dumps(body["input"])


def offered(body: dict[str, Any]) -> list[str]:
    """The names of the tools in a request; those that it knows well, Codex gives a model among the messages."""
    later = [item["tools"] for item in body["input"] if item.get("type") == "additional_tools"]
    tools = [tool for tools in (body.get("tools") or [], *later) for tool in tools]
    inner = [tool.get("tools", [tool]) for tool in tools]
    return [tool.get("name", tool["type"]) for tools in inner for tool in tools]


@pytest.mark.parametrize("known", ["gpt-6.1-sol", "gpt-5.5"])
async def test_a_model_that_codex_knows_has_no_tools_but_those_that_ask_one_by_one(
    sandboxed: SandboxedHarness, model: Served, known: str
):
    """By itself, Codex gives such models a tool that runs programs which call the others, and subagents."""
    own = ["exec_command", "write_stdin", "request_user_input", "apply_patch", "view_image"]
    runner = Board(sandboxed, agent("always_ask") | {"model": {"id": known}})
    async with runner.open() as opened:
        message = runner.say(script(run("echo hello > new.txt"), {"text": "Done."}))
        rest = await runner.turn(opened, [message])
        assert [name for name in offered(model.requests[-1].body) if name not in own] == ["lookup"]
        (call,) = runner.events("agent.tool_use")
        assert rest == {"type": "requires_action", "event_ids": [call.id]}
        assert not (sandboxed.workspace / "new.txt").exists()
        assert await runner.turn(opened, [runner.confirm(call.id)]) == END
    assert (sandboxed.workspace / "new.txt").read_text() == "hello\n"
    assert runner.texts() == ["Done."]


async def test_tools_that_codex_does_not_offer_do_nothing_by_any_name(sandboxed: SandboxedHarness):
    runner = Board(sandboxed, agent("always_ask"))
    names = ["shell", "local_shell", "container.exec", "shell_command", "exec", "js_repl"]
    more = ["spawn_agent", "functions.exec_command", "bash", "multi_tool_use.parallel", "sleep"]
    given = {"cmd": "touch made", "command": ["touch", "made"], "code": "x", "message": "x"}
    calls = [{"tool": name, "input": given} for name in (*names, *more)]
    assert await runner.run(runner.say(script({"tools": calls}, {"text": "Done."}))) == END
    results = runner.events("agent.tool_result")
    assert [entry.fields["is_error"] for entry in results] == [True] * len(calls)
    assert (runner.pending, list(sandboxed.workspace.iterdir())) == ([], [])


async def test_what_is_refused_is_said_to_the_agent_and_its_own_rules_allow_nothing(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent("always_ask"))
    allow = 'prefix_rule(pattern=["echo"], decision="allow")'
    plants = run(f"mkdir -p ~/.codex/rules; echo '{allow}' > ~/.codex/rules/default.rules")
    await runner.run(runner.say(script(plants, run("echo no > b"), {"text": "Done."})))
    (first,) = runner.events("agent.tool_use")
    async with runner.open() as opened:  # another process, which carries out what was allowed
        await runner.turn(opened, [runner.confirm(first.id)])
        second = runner.events("agent.tool_use")[-1]
        assert second.fields["evaluated_permission"] == "ask"
        no = runner.confirm(second.id, "deny", deny_message="Not on a Sunday.")
        assert await runner.turn(opened, [no]) == END
    assert not (sandboxed.workspace / "b").exists()
    assert "Not on a Sunday." in json.dumps(runner.events("agent.tool_result")[-1].fields)
    assert "Not on a Sunday." in model.last_request()


PDF = {"type": "base64", "media_type": "application/pdf", "data": b64encode(b"%PDF-1.4 x").decode()}
DOCUMENT = {"type": "document", "title": "my plan.pdf", "source": PDF}


async def test_a_document_is_a_file_that_a_command_reads_also_in_another_process(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent())
    read = run("cat ~/.codex/documents/*my_plan.pdf")
    plants = run("mkdir -p ~/.codex/rules; touch ~/.codex/rules/a ~/.codex/.b ~/.codex/documents/c")
    again = script(run("ls -A ~/.codex ~/.codex/rules"), read, {"text": "Still there."})
    async with runner.open() as opened:
        message = runner.say(script(read, plants, {"text": "Read."}), DOCUMENT)
        assert await runner.turn(opened, [message]) == END
        message = runner.say(script({"text": "Known."}), {**DOCUMENT, "title": "other"})
        assert await runner.turn(opened, [message]) == END
    (path,) = (sandboxed.home / ".codex" / "documents").glob("*my_plan.pdf")
    assert f"my plan.pdf (application/pdf, 10 bytes): it is in the file {path}]" in str(
        model.requests[-1].body
    )
    path.unlink()  # what the agent does to it lasts as long as its process
    assert await runner.run(runner.say(again)) == END
    printed = [as_text(entry.fields["content"]) for entry in runner.events("agent.tool_result")]
    assert (printed[0], printed[-1]) == ("%PDF-1.4 x", "%PDF-1.4 x")
    assert "rules" not in printed[-2].partition("No such file")[0].split()
    assert ".b" not in printed[-2].split()


async def test_a_document_that_the_agent_has_no_way_to_read_is_said_to_be_one(
    sandboxed: SandboxedHarness, model: Served
):
    away = {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}}
    runner = Board(sandboxed, agent() | {"tools": agent()["tools"][:1]})
    assert await runner.run(runner.say(script({"text": "Seen."}), DOCUMENT, away)) == END
    assert "[document: this agent cannot look at it]" in model.last_request()
    assert "the document is at https://example.org/a.pdf" in model.last_request()
    assert not (sandboxed.home / ".codex" / "documents").exists()


async def test_a_disk_that_takes_no_document_stops_nobody(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent())
    async with runner.open() as opened:
        first = script(run("touch ~/.codex/documents"), {"text": "One."})
        assert await runner.turn(opened, [runner.say(first)]) == END
        assert await runner.turn(opened, [runner.say(script({"text": "Two."}), DOCUMENT)]) == END
    assert "it could not be written to a file" in model.last_request()


async def test_an_interrupt_stops_a_running_command(sandboxed: SandboxedHarness):
    runner = Board(sandboxed, agent())

    async def interrupt(opened: Conversation, output: Output) -> None:
        if emits("agent.tool_use")(output):
            tasks.start_soon(stop, opened)

    async def stop(opened: Conversation) -> None:
        await appears(sandboxed.workspace / "begun.txt")
        await opened.interrupt()

    async with anyio.create_task_group() as tasks, runner.open() as opened:
        with anyio.fail_after(60):
            message = runner.say(script(run("echo x > begun.txt; sleep 61.5"), {"text": "Never."}))
            assert await runner.turn(opened, [message], watch=interrupt) == END
        runner.interrupted()
        assert await runner.turn(opened, [runner.say(script({"text": "Next."}))]) == END
        asleep = [p for p in procfs.everything() if b"61.5" in procfs.command_line(p.pid)]
        assert asleep == []
    assert runner.texts() == ["Next."]
    assert [entry.fields["is_error"] for entry in runner.events("agent.tool_result")] == [True]


@pytest.mark.parametrize(("status", "why"), [(400, "because"), (401, "set OPENAI_API_KEY")])
async def test_a_request_the_model_refuses_ends_the_turn_and_says_why(
    sandboxed: SandboxedHarness, status: int, why: str
):
    runner = Board(sandboxed, agent())
    step = {"error": {"status": status, "message": "because"}, "text": "x"}
    assert await runner.run(runner.say(script(step))) == {"type": "retries_exhausted"}
    (last,) = [output for output in runner.outputs if isinstance(output, Trouble)]
    assert last.error == "model_request_failed_error"
    assert "because" in last.message
    assert why in last.message
    assert last.retry == "exhausted"


async def test_an_agent_killed_while_a_command_runs_is_told_that_its_outcome_is_unknown(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent())
    step = run("echo ran >> count.txt; sleep 0.5")

    async def kill_it() -> None:
        await appears(sandboxed.workspace / "count.txt")
        sandboxed.kill_agent()

    async with anyio.create_task_group() as tasks, runner.open() as opened:
        message = runner.say(script({"text": "Look.", **step}, {"text": "Done."}))
        watch = once(emits("agent.message"), lambda: tasks.start_soon(kill_it))
        assert await runner.turn(opened, [message], watch=watch) == END
    assert (sandboxed.workspace / "count.txt").read_text() == "ran\n"
    (result,) = runner.events("agent.tool_result")
    assert "outcome is unknown" in json.dumps(result.fields)
    assert "outcome is unknown" in model.last_request()
    assert runner.texts() == ["Look.", "Done."]
