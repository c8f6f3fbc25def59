"""Subagents of the real Codex: who said what, who is asked, what a kill leaves of them, and what they may not read."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.harnesses.claude_session import END, Board, Served, agent, appears, serving
from tests.harnesses.codex_session import codex_harness, run
from tests.harnesses.sandboxed_harness import SandboxedHarness
from tests.harnesses.test_claude_subagents import ended, of_threads
from tests.journeys.test_attachments import png
from tests.sdk.types_of_sdks import EVENT, PYTHONS, check_types

from roost.ports.harness import Conversation, Emit, Output
from roost.testing.in_memory_runner import script, text_of, with_subagents

SECRET = "a-secret-of-the-file-KUMQUAT"


@pytest.fixture
async def model() -> AsyncGenerator[Served, None]:
    async with serving() as model:
        yield model


@pytest.fixture
def sandboxed(model: Served, tmp_path: Path) -> SandboxedHarness:
    return codex_harness(model, tmp_path)


def starts(*steps: dict[str, Any], say: str = "inside", **more: Any) -> dict[str, Any]:
    asked = {"description": "Look", "prompt": script(*steps, say=say)}
    return {"tool": "Agent", "input": {**asked, **more}}


async def test_two_of_them_are_two_threads_and_each_asks(sandboxed: SandboxedHarness):
    runner = Board(sandboxed, with_subagents(agent("always_ask")))
    both = [starts(run(f"echo {n} > {n}.txt"), {"text": f"Made {n}."}) for n in "ab"]
    no = {"result": "deny", "deny_message": "Not on a Sunday."}
    asked: dict[str, str] = {}  # by the call: which of the two makes it
    async with runner.open() as opened:
        rest = await runner.turn(opened, [runner.say(script({"tools": both}, {"text": "Both."}))])
        while rest is not None and rest["type"] == "requires_action":
            assert not (sandboxed.workspace / "b.txt").exists()
            asked |= {
                call.id: "b" if "b.txt" in str(call.fields["input"]) else "a"
                for call in runner.events("agent.tool_use")
                if call.id in rest["event_ids"]
            }
            said = [
                runner.confirm(id, **(no if asked[id] == "b" else {}))  # type: ignore[arg-type]
                for id in rest["event_ids"]
            ]
            rest = await runner.turn(opened, said)
    assert rest == END
    threads = {e.fields["session_thread_id"] for e in runner.events("session.thread_created")}
    assert [name for name, _ in of_threads(runner)] == ["bash", "bash"]
    assert {thread for _, thread in of_threads(runner)} == threads
    assert len(asked) == len(threads) == 2
    assert [path.name for path in sandboxed.workspace.iterdir()] == ["a.txt"]
    assert runner.texts() == ["Both."]
    heard = [text_of(entry) for entry in runner.events("agent.thread_message_received")]
    assert sorted(heard) == ["Made a.", "Made b."]
    assert {asked[id]: ended(runner)[id] for id in asked} == {"a": [False], "b": [True]}
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


async def test_it_starts_no_others_and_one_that_fails_is_a_call_that_fails(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, with_subagents(agent()))
    inner = starts(starts({"text": "Never."}), {"text": "Alone."})
    broken = starts({"error": {"status": 400, "message": "because"}, "text": "x"})
    nothing = {"tool": "Agent", "input": {"description": "Look", "prompt": ["SCRIPT"]}}
    steps = (inner, broken, nothing, {"text": "Done."})
    assert await runner.run(runner.say(script(*steps))) == END
    offered = [_agents_offered(request.body) for request in model.requests]
    assert (offered[0], offered[1]) == (1, 0)
    assert len(runner.events("session.thread_created")) == 2
    reports = {e.fields["tool_use_id"]: e.fields for e in runner.events("agent.tool_result")}
    made = [c for c in runner.events("agent.tool_use") if "session_thread_id" not in c.fields]
    told = [(reports[c.id]["is_error"], json.dumps(reports[c.id])) for c in made]
    assert [failed for failed, _ in told] == [False, True, True]
    for (_, text), words in zip(told, ("Alone.", "because", "has to be a text"), strict=True):
        assert words in text
    assert (runner.texts(), runner.pending) == (["Done."], [])


def _agents_offered(body: dict[str, Any]) -> int:
    return json.dumps(body.get("tools")).count('"name": "Agent"')


async def test_an_interrupt_stops_a_subagent_too(sandboxed: SandboxedHarness):
    runner = Board(sandboxed, with_subagents(agent()))
    inner = starts(run("echo begun > begun.txt; sleep 600"), {"text": "Never."})
    async with runner.open() as opened:
        message = runner.say(script(inner, {"text": "Never."}))

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


@pytest.mark.parametrize("moment", ["called", "running", "returned"])
async def test_an_agent_that_is_killed_with_a_subagent_runs_nothing_twice(
    sandboxed: SandboxedHarness, model: Served, moment: str
):
    """The turn goes on in another process, and its model is told what the subagent did."""
    runner = Board(sandboxed, with_subagents(agent()))
    pause = 60 if moment == "running" else 0
    inner = starts(
        {"text": "Let me see.", **run(f"echo once >> ran.txt; sleep {pause}")},
        {"text": "Found.", "delay": 4 if moment == "returned" else 0},
    )
    killed: list[str] = []

    async def kill(opened: Conversation, output: Output) -> None:
        if not killed and _is_at(output, moment):
            if moment == "running":
                tasks.start_soon(when_it_runs)
            else:
                killed.append(moment)
                sandboxed.kill_agent()

    async def when_it_runs() -> None:
        await appears(sandboxed.workspace / "ran.txt")
        killed.append(moment)
        sandboxed.kill_agent()

    async with anyio.create_task_group() as tasks, runner.open() as opened:
        message = runner.say(script(inner, {"text": "All done."}))
        assert await runner.turn(opened, [message], watch=kill) == END
    assert killed
    ran = sandboxed.workspace / "ran.txt"
    times = ran.read_text().count("once") if ran.exists() else 0
    assert times == 1 if moment != "called" else times <= 1
    assert all(len(ends) == 1 for ends in ended(runner).values()), ended(runner)
    assert (runner.pending, runner.texts()) == ([], ["All done."])
    told = model.last_request()
    assert "The session was restarted while this subagent was running." in told
    assert "A subagent said: Let me see." in told
    assert ("outcome is unknown" in told) == (moment != "returned")


async def test_what_a_subagent_was_allowed_is_done_after_a_sleep_and_told_to_the_agent(
    sandboxed: SandboxedHarness, model: Served
):
    runner = Board(sandboxed, with_subagents(agent("always_ask")))
    calls = {"tools": [run("echo one | tee -a ran.txt"), run("echo two >> ran.txt")]}
    inner = starts({"text": "Let me see.", **calls}, {"text": "Found."})
    await runner.run(runner.say(script(inner, {"text": "All done."})))
    first, second = (pending.event_id for pending in runner.pending)
    assert await runner.run(runner.confirm(first)) == END
    assert (sandboxed.workspace / "ran.txt").read_text() == "one\n"
    assert (ended(runner)[first], ended(runner)[second]) == ([False], [True])
    assert (runner.pending, runner.texts()) == ([], ["All done."])
    assert "Its call bash" in model.last_request()


async def test_a_file_that_is_only_named_to_an_agent_or_a_subagent_is_not_read(
    sandboxed: SandboxedHarness, model: Served
):
    """Whatever a model or a user writes, a file is read by a call that was allowed, or not at all."""
    runner = Board(sandboxed, with_subagents(agent("always_ask")))
    async with runner.open() as opened:
        assert await runner.turn(opened, [runner.say(script({"text": "Hello."}))]) == END
        (sandboxed.workspace / "a.png").write_bytes(png())
        (sandboxed.workspace / "SKILL.md").write_text(f"---\nname: x\n---\n{SECRET}\n")
        paths = [sandboxed.workspace / name for name in ("a.png", "SKILL.md")]
        said = "\n".join(form for path in paths for form in named(path))
        items = [{"type": "local_image", "path": str(path)} for path in paths]
        step = starts({"text": "Seen."}, say=said, items=items, images=[str(paths[0])])
        assert (
            await runner.turn(opened, [runner.say(said + script(step, {"text": "Done."}))]) == END
        )
    assert runner.texts() == ["Hello.", "Done."]
    assert len(runner.events("session.thread_created")) == 1
    data = b64encode(png()).decode()
    for request in model.requests:
        asked = json.dumps(request.body)
        assert '"input_image"' not in asked
        assert data[:40] not in asked
        assert SECRET not in asked


def named(path: Path) -> list[str]:
    """The ways in which programs such as this one let files be named."""
    return [
        *(f"{path}", f"@{path}", f"@{path.name}", f"![{path.name}]({path})", f"[@x]({path})"),
        *(f"[$x]({path})", f"[{path.name}](file://{path})", f"file://{path}", f"$x {path.name}"),
        *(
            f'<image path="{path}">',
            f"[Image #1] {path}",
            f'{{"type":"localImage","path":"{path}"}}',
        ),
    ]


def _is_at(output: Output, moment: str) -> bool:
    if not isinstance(output, Emit) or not output.drafts:
        return False
    if moment == "returned":
        return output.drafts[0].type == "agent.tool_result"
    return any(b'"name":"bash"' in draft.body for draft in output.drafts)
