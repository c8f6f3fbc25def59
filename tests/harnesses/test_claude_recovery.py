"""The real claude CLI, killed, closed, or robbed of its transcript, goes on."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from uuid import uuid4

import anyio
import pytest
from tests.harnesses.claude_session import (
    END,
    Board,
    Served,
    agent,
    appears,
    bash,
    docs_server,
    emits,
    noted,
    sandboxed_harness,
    serving,
    spans_are_paired,
    with_servers,
)
from tests.harnesses.sandboxed_harness import SandboxedHarness

from roost.domain.session import Pending
from roost.harnesses.claude import transcript
from roost.harnesses.claude.conversation import ClaudeConversation
from roost.harnesses.claude.transcript import TranscriptFile
from roost.harnesses.json_lines import Json
from roost.harnesses.logged_past import CALLS
from roost.ports.harness import Conversation
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes.host import HostProvider
from roost.serve.http import listening
from roost.testing.in_memory_runner import script


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def model() -> AsyncGenerator[Served, None]:
    async with serving() as model:
        yield model


@pytest.fixture
def sandboxed(model: Served, tmp_path: Path) -> SandboxedHarness:
    return sandboxed_harness(model, tmp_path)


@pytest.mark.parametrize("moment", ["before the answer", "in a tool", "after a tool"])
async def test_a_killed_agent_goes_on_and_does_nothing_twice(
    sandboxed: SandboxedHarness, model: Served, moment: str
):
    slow = "echo ran >> ran.txt; python3 -c 'import time; time.sleep(30)'"
    steps, written = {
        "before the answer": (({"text": "Here.", "delay": 2},), "only-once"),
        "in a tool": ((bash(slow), {"text": "Here."}), '"tool_use"'),
        "after a tool": (
            (bash("echo ran >> ran.txt"), {"text": "Here.", "delay": 2}),
            "toolUseResult",
        ),
    }[moment]
    runner = Board(sandboxed, agent())
    async with runner.open() as opened, anyio.create_task_group() as tasks:

        async def kill() -> None:
            await noted(sandboxed, written)
            if moment == "in a tool":
                await appears(sandboxed.workspace / "ran.txt", "ran")
            sandboxed.kill_agent()

        tasks.start_soon(kill)
        rest = await runner.turn(opened, [runner.say(script(*steps, say="only-once"))])
    assert rest == END
    assert runner.troubles() == ["retrying"]
    assert runner.texts() == ["Here."]
    assert model.last_request().count("only-once") == 1
    assert spans_are_paired(runner)
    if moment != "before the answer":
        assert (sandboxed.workspace / "ran.txt").read_text() == "ran\n"
        (call,), (result,) = runner.events("agent.tool_use"), runner.events("agent.tool_result")
        assert result.fields["tool_use_id"] == call.id
        unknown = "outcome is unknown" in json.dumps(result.fields["content"])
        assert unknown is ("outcome is unknown" in model.last_request()) is (moment == "in a tool")


@pytest.mark.parametrize("result", ["allow", "deny"])
async def test_permission_is_given_to_an_agent_that_is_no_longer_there(
    sandboxed: SandboxedHarness, model: Served, result: str
):
    runner = Board(sandboxed, agent("always_ask"))
    await runner.run(runner.say(script(bash("echo ran >> ran.txt"), {"text": "Done."})))
    (call,) = runner.events("agent.tool_use")
    assert await runner.run(runner.confirm(call.id, result)) == END
    assert runner.events("agent.tool_use") == [call], "nobody is asked twice"
    (answer,) = runner.events("agent.tool_result")
    assert answer.fields["tool_use_id"] == call.id
    assert answer.fields["is_error"] is (result == "deny")
    assert (sandboxed.workspace / "ran.txt").exists() is (result == "allow")
    assert runner.texts() == ["Done."]


async def test_permission_for_several_calls_outlives_the_agent(sandboxed: SandboxedHarness):
    """The CLI keeps only the first of them; the others are recognised when they are made again."""
    runner = Board(sandboxed, agent("always_ask"))
    calls = [bash("echo 1 >> ran.txt"), bash("echo 2 >> ran.txt")]
    await runner.run(runner.say(script({"tools": calls}, calls[1], {"text": "Done."})))
    first, second = runner.events("agent.tool_use")
    assert runner.pending == [Pending(first.id, "confirmation"), Pending(second.id, "confirmation")]
    assert await runner.run(runner.confirm(first.id), runner.confirm(second.id)) == END
    assert (sandboxed.workspace / "ran.txt").read_text() == "1\n2\n"
    assert [entry.id for entry in runner.events("agent.tool_use")] == [first.id, second.id]
    results = [entry.fields["tool_use_id"] for entry in runner.events("agent.tool_result")]
    assert results == [first.id, second.id]


async def test_permission_outlives_an_agent_that_had_no_time_to_write(sandboxed: SandboxedHarness):
    """Killed at the moment it asks, it has not even taken the message down."""
    runner = Board(sandboxed, agent("always_ask"))
    async with runner.open() as opened:
        await runner.turn(
            opened, [runner.say(script(bash("echo ran >> ran.txt"), {"text": "Done."}))]
        )
        sandboxed.kill_agent()
        while await opened.up():  # noqa: ASYNC110 - an answer that it may have got is not given twice
            await anyio.sleep(0.01)
        (call,) = runner.events("agent.tool_use")
        assert await runner.turn(opened, [runner.confirm(call.id)]) == END
    assert runner.events("agent.tool_use") == [call]
    assert (sandboxed.workspace / "ran.txt").read_text() == "ran\n"
    assert runner.texts() == ["Done."]


async def server_gone(opened: Conversation) -> None:
    """As a killed server does to its agent, which goes on until somebody kills it, or it is done."""
    assert isinstance(opened, ClaudeConversation)
    assert opened._process is not None
    process = opened._process.pipe._process
    await process.close_input()
    await process.wait()


async def test_what_waits_outlives_an_agent_that_took_the_servers_end_for_an_answer(
    model: Served, tmp_path: Path
):
    """Its input ends with the server, and it may live on for a moment: long enough to write down that each
    call has failed, and to go on without the answers.
    """
    choices = [{"label": "Blue", "description": "b"}, {"label": "Red", "description": "r"}]
    question = {"question": "Which?", "header": "H", "multiSelect": False, "options": choices}
    steps = [
        bash("echo ran >> ran.txt"),
        {"tool": "AskUserQuestion", "input": {"questions": [question]}},
        {"tool": "lookup", "input": {"what": "it"}},
        {"tool": "mcp__docs__find", "input": {"what": "it"}},
    ]
    async with listening(docs_server, "127.0.0.1", 0) as url:
        sandboxed, served = sandboxed_harness(model, tmp_path), with_servers({"docs": f"{url}/mcp"})
        tools = [*agent("always_ask")["tools"], *served["tools"]]
        runner = Board(sandboxed, {**served, "tools": tools})
        given = runner.say(script(*steps, {"text": "Done."}))
        for _ in steps:
            async with runner.open() as opened:
                await runner.turn(opened, [given])
                await server_gone(opened)
            (waits,) = runner.pending
            asks = waits.kind == "confirmation"
            given = (
                runner.confirm(waits.event_id) if asks else runner.answer(waits.event_id, "Blue")
            )
        assert await runner.run(given) == END
    calls = [entry.id for entry in runner.entries if entry.type in CALLS]
    assert len(calls) == len(steps), "nobody is asked twice"
    assert (sandboxed.workspace / "ran.txt").read_text() == "ran\n"
    heard = model.last_request()
    assert heard.count("Blue") == 4, (
        "in the script, the question, its answer, and the tool's result"
    )
    assert '"found"' in heard
    assert "stream closed" not in heard
    assert "call was interrupted" not in heard
    assert not any(entry.fields.get("is_error") for entry in runner.entries)
    assert runner.texts() == ["Done."]


async def test_only_what_followed_the_servers_end_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also of a transcript that is too long to be read whole. An MCP server that went away in the middle of
    a call did so, whatever became of the server.
    """
    gone = "The tool call was interrupted before a result was received. It may"

    def call(name: str) -> list[Json]:
        use = {"type": "tool_use", "id": f"t-{name}", "name": name, "input": {}}
        result = {
            "type": "tool_result",
            "tool_use_id": f"t-{name}",
            "content": gone,
            "is_error": True,
        }
        return [
            {"type": "assistant", "uuid": f"1-{name}", "message": {"content": [use]}},
            {"type": "user", "uuid": f"2-{name}", "message": {"content": [result]}},
        ]

    prompt = {"type": "user", "uuid": "p", "message": {"content": "Do."}}
    frames = [prompt, *call("mcp__docs__find"), *call("lookup"), {**prompt, "type": "assistant"}]
    lines = [f"{json.dumps(frame)}\n" for frame in frames]
    before = '{"type":"junk"}\n' * 1000
    kept = tmp_path / ".claude" / "projects" / "here" / "c.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text(before + "".join(lines))
    monkeypatch.setattr(transcript, "_MOST", len("".join(lines)) + 50)
    plan = Plan(
        session_id="s", generation=1, home=LocalVolume(tmp_path), workspace=LocalVolume(tmp_path)
    )
    async with HostProvider(use_cgroups=False).open(plan) as sandbox:
        found = await TranscriptFile(sandbox, "c", {}, lambda name: name == "lookup").read()
    assert found is not None
    assert [line.uuid for line in found.lines][-1] == "1-lookup"
    assert kept.read_text() == before + "".join(lines[:4])


@pytest.mark.chaos
async def test_an_agent_that_lost_the_model_with_its_server_goes_on(
    sandboxed: SandboxedHarness, model: Served
):
    """It asks again until it has had enough, and writes down that the turn has failed."""
    runner = Board(sandboxed, agent())
    down = {"status": 529, "times": 3}
    message = runner.say(script(bash("echo ran >> ran.txt"), {"text": "Done.", "error": down}))
    async with runner.open() as opened, anyio.create_task_group() as tasks:
        tasks.start_soon(runner.turn, opened, [message])
        while "retrying" not in runner.troubles():  # noqa: ASYNC110 - the runner does not notify
            await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await server_gone(opened)
    assert "API Error" in sandboxed.transcript.read_text()
    assert await runner.run(message, again=True) == END
    assert runner.texts() == ["Done."]
    assert spans_are_paired(runner)
    assert (sandboxed.workspace / "ran.txt").read_text() == "ran\n"


async def test_an_allowed_call_is_not_run_again_when_its_turn_was_cut_off(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent("always_ask"))
    slow = "echo ran >> ran.txt; python3 -c 'import time; time.sleep(20)'"
    await runner.run(runner.say(script(bash(slow), {"text": "Done."})))
    (call,) = runner.events("agent.tool_use")
    yes = runner.confirm(call.id)
    async with runner.open() as opened, anyio.create_task_group() as tasks:
        tasks.start_soon(runner.turn, opened, [yes])
        await appears(sandboxed.workspace / "ran.txt")
        tasks.cancel_scope.cancel()  # as if the server went away while the command runs
    assert await runner.run(yes, again=True) == END
    assert (sandboxed.workspace / "ran.txt").read_text() == "ran\n"
    assert "outcome is unknown" in model.last_request()
    (result,) = runner.events("agent.tool_result")
    assert result.fields["tool_use_id"] == call.id
    assert result.fields["is_error"] is True
    assert runner.texts() == ["Done."]


@pytest.mark.parametrize("logged", [True, False])
async def test_a_call_that_was_cut_off_right_after_it_was_made_runs_at_most_once(
    sandboxed: SandboxedHarness, logged: bool
):
    runner = Board(sandboxed, agent())
    message = runner.say(script(bash("echo ran >> ran.txt"), {"text": "Done."}))
    await runner.run(message, cut=2, logged=logged)
    assert emits("agent.tool_use")(runner.outputs[-1])
    assert await runner.run(message, again=True) == END
    # If the CLI had no time to note the call down, the model makes it again; then it may run.
    made = runner.told()[1:-1]
    assert made in (calls := ["agent.tool_use", "agent.tool_result"], calls * 2)
    assert runner.told()[0 :: len(made) + 1] == ["user.message", "agent.message"]
    ran = sandboxed.workspace / "ran.txt"
    assert not ran.exists() or ran.read_text() == "ran\n"


async def test_a_lost_transcript_is_replaced_by_an_account_of_the_log(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent())
    await runner.run(runner.say(script({"text": "I am Ada."}, say="name-1")))
    sandboxed.transcript.unlink()
    assert await runner.run(runner.say(script({"text": "Ada."}, say="name-2"))) == END
    assert len(runner.events("agent.thread_context_compacted")) == 1
    assert model.last_request().count("I am Ada.") == 2  # in the old script, and as what was said
    assert await runner.run(runner.say(script({"text": "Still Ada."}, say="name-3"))) == END
    assert len(runner.events("agent.thread_context_compacted")) == 1, "once is enough"
    assert runner.texts() == ["I am Ada.", "Ada.", "Still Ada."]


async def test_a_torn_transcript_does_not_stop_the_session(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent())
    await runner.run(runner.say(script({"text": "I am Ada."}, say="name-1")))
    sandboxed.transcript.write_bytes(sandboxed.transcript.read_bytes()[:-40])
    assert await runner.run(runner.say(script({"text": "Ada."}, say="name-2"))) == END
    assert runner.texts() == ["I am Ada.", "Ada."]
    assert "name-1" in model.last_request()


async def test_an_agent_killed_twice_before_the_model_answers_goes_on_all_the_same(
    sandboxed: SandboxedHarness,
):
    """Resumed, the CLI notes down that it goes on. Killed right then, it takes the note for the end."""
    runner = Board(sandboxed, agent())
    slow = {"text": "It takes its time.", "chunk_delay": 60}
    message = runner.say(script(bash("echo ran >> ran.txt"), slow))
    async with runner.open() as opened, anyio.create_task_group() as tasks:
        tasks.start_soon(runner.turn, opened, [message])
        await noted(sandboxed, "toolUseResult")
        tasks.cancel_scope.cancel()
    lines = [json.loads(line) for line in sandboxed.transcript.read_text().splitlines()]
    at = next(n for n, line in enumerate(lines) if "toolUseResult" in line)
    note = {**lines[at], "isMeta": True, "parentUuid": lines[at]["uuid"], "uuid": str(uuid4())}
    note["message"] = {"role": "user", "content": "Continue from where you left off."}
    del note["toolUseResult"]
    kept = [*lines[: at + 1], note]
    sandboxed.transcript.write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert await runner.run(message, again=True) == END
    assert len(runner.texts()) == 1
    assert await runner.run(runner.say(script({"text": "Still here."}, say="more"))) == END
    assert runner.texts()[1:] == ["Still here."]
    assert (sandboxed.workspace / "ran.txt").read_text() == "ran\n"


async def test_an_agent_that_died_while_idle_costs_the_next_turn_none_of_its_starts(
    sandboxed: SandboxedHarness, monkeypatch: pytest.MonkeyPatch
):
    """Killed in the same instant as the next turn begins, so that nobody can have noticed. The last turn
    loses the process that it finds, and three of the four that it starts.
    """
    monkeypatch.setattr("roost.harnesses.claude.conversation._PAUSES", (0.01, 0.01, 0.01))
    runner = Board(sandboxed, agent())
    async with runner.open() as opened:
        for number in range(2):
            message = runner.say(script({"text": f"Turn {number}."}, say=f"say-{number}"))
            sandboxed.kill_agent()
            assert await runner.turn(opened, [message]) == END
        waits = "python3 -c 'import time; time.sleep(30)'"
        steps = [bash(f"echo {n} >> ran.txt; {waits}") for n in range(3)]
        last = runner.say(script(*steps, {"text": "Survived."}, say="last"))
        async with anyio.create_task_group() as tasks:

            async def kill_three_times() -> None:
                for n in range(3):
                    await appears(sandboxed.workspace / "ran.txt", f"{n}")
                    sandboxed.kill_agent()

            tasks.start_soon(kill_three_times)
            with anyio.fail_after(120):
                sandboxed.kill_agent()
                assert await runner.turn(opened, [last]) == END
    assert runner.texts()[-1] == "Survived."
    assert set(runner.troubles()) == {"retrying"}
    assert len(runner.troubles()) == 4, "the process it found, and three that it had started"


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
async def test_whenever_the_agent_is_killed_no_command_runs_twice(
    sandboxed: SandboxedHarness, seed: int
):
    """What it says may come twice: a scripted model pays no heed to what it is told about that."""
    chance = random.Random(seed)
    steps = [{"text": f"Step {n}.", **bash(f"echo {n} >> ran.txt; sleep 0.05")} for n in range(3)]
    runner = Board(sandboxed, agent())

    async def kill_now_and_then() -> None:
        for _ in range(2):
            await anyio.sleep(chance.uniform(0.3, 1.2))
            sandboxed.kill_agent()

    async with runner.open() as opened, anyio.create_task_group() as tasks:
        tasks.start_soon(kill_now_and_then)
        assert await runner.turn(opened, [runner.say(script(*steps, {"text": "Done."}))]) == END
        tasks.cancel_scope.cancel()
    ran = (sandboxed.workspace / "ran.txt").read_text().split()
    assert sorted(ran) == sorted(set(ran))
    calls = [entry.id for entry in runner.events("agent.tool_use")]
    results = [entry.fields["tool_use_id"] for entry in runner.events("agent.tool_result")]
    assert sorted(calls) == sorted(results)
    assert spans_are_paired(runner)
    assert runner.texts()[-1] == "Done."


async def test_an_account_of_the_log_does_not_tell_what_was_withdrawn(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, agent())
    await runner.run(runner.say(script({"text": "I am Ada."}, say="name-1")))
    runner.withdraw(runner.say("withdrawn word"))
    sandboxed.transcript.unlink()
    assert await runner.run(runner.say(script({"text": "Ada."}, say="name-2"))) == END
    assert len(runner.events("agent.thread_context_compacted")) == 1
    assert "I am Ada." in model.last_request()
    assert "withdrawn word" not in model.last_request()
