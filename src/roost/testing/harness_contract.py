"""The contract of a harness: subclass, give the two fixtures, inherit the tests.

    class TestScriptedHarness(HarnessContract):
        @pytest.fixture
        async def model(self): ...      # the scripted model, served somewhere, with its `url`
        @pytest.fixture
        def harness(self, model): ...   # a harness that talks to it

The harness must repeat a failed model request at least twice, after pauses of milliseconds.

A test that proves an ability (`@proves`) is skipped for a harness that does not declare it. What takes more than a
harness to prove (`BEHIND_A_SERVER`) is in the other kit, `roost.testing.harness_sessions`, which every harness has
to pass, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import anyio
import pytest
from msgspec.structs import asdict

from roost.domain.session import Pending
from roost.ports.harness import Conversation, Emit, Harness, Output, Show
from roost.testing.in_memory_runner import (
    AGENT,
    InMemoryRunner,
    script,
    text_of,
    with_mcp,
    with_subagents,
    with_toolset,
)
from roost.testing.scripted_model import ScriptedModel

_PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

BEHIND_A_SERVER: Final = frozenset({"skills", "budget", "fork", "rewind"})
"""The abilities that `roost.testing.harness_sessions` proves, because they take a server and a sandbox."""

_Test = TypeVar("_Test", bound=Callable[..., object])


def proves(*abilities: str) -> Callable[[_Test], _Test]:
    """A test that a harness passes which declares these abilities."""

    def mark(test: _Test) -> _Test:
        test.proves = abilities  # type: ignore[attr-defined]
        return test

    return mark


def proved_by(kit: type) -> set[str]:
    """The abilities that the tests of a kit prove."""
    tests = [getattr(kit, name) for name in dir(kit) if name.startswith("test_")]
    return {ability for test in tests for ability in getattr(test, "proves", ())}


def skip_what_is_not_declared(
    request: pytest.FixtureRequest, name: str, abilities: Mapping[str, bool]
) -> None:
    """Skip a test that proves what this harness does not claim."""
    for ability in getattr(request.function, "proves", ()):
        if not abilities[ability]:
            pytest.skip(f"{name} does not declare {ability}")


class HarnessContract:
    """What the core relies on, whichever agent is driven."""

    builtin: tuple[str, dict[str, Any]] = ("Bash", {"command": "echo hello"})
    """A tool of the agent's own, and a harmless input for it."""

    question: tuple[str, dict[str, Any]] = (
        "AskUserQuestion",
        {
            "questions": [
                {
                    "question": "Which?",
                    "header": "Colour",
                    "multiSelect": False,
                    "options": [
                        {"label": "Red", "description": "r"},
                        {"label": "Blue", "description": "b"},
                    ],
                }
            ]
        },
    )
    """The tool by which the agent asks a person, and an input for it."""

    mcp_tool = "mcp__docs__find"
    """What the agent's model calls the tool `find` of the MCP server `docs`."""

    def subagent(self, prompt: str) -> dict[str, Any]:
        """A step of a script in which the agent starts a subagent with this prompt."""
        asked = {"description": "Look", "prompt": prompt, "subagent_type": "general-purpose"}
        return {"tool": "Agent", "input": asked}

    def effort_in(self, request: dict[str, Any]) -> str | None:
        """The effort that a request asks the model for, in the shape of the Messages API or of the Responses API."""
        said = request.get("output_config") or request.get("reasoning") or {}
        effort: str | None = said.get("effort")
        return effort

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop the server runs on."""
        return "asyncio"

    @pytest.fixture
    def model(self) -> ScriptedModel:
        """The scripted model that the harness talks to."""
        raise NotImplementedError

    @pytest.fixture
    def harness(self, model: ScriptedModel) -> Harness:
        """The harness under test."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def only_what_is_declared(self, request: pytest.FixtureRequest, harness: Harness) -> None:
        """Skip the proof of what the harness does not claim."""
        skip_what_is_not_declared(request, harness.name, asdict(harness.profile.abilities))

    async def test_every_ability_it_declares_is_proved(self, harness: Harness) -> None:
        """A yes that nobody proves is worth nothing."""
        declared = asdict(harness.profile.abilities)
        assert {name for name, yes in declared.items() if yes} <= proved_by(
            type(self)
        ) | BEHIND_A_SERVER

    async def test_what_it_declares_can_be_relied_on(self, harness: Harness) -> None:
        """The core puts it to use without looking at it again."""
        profile = harness.profile
        assert profile.upstream
        assert all(name and "/" not in name for name in profile.own_directories)
        assert harness.check()
        assert AGENT["model"]["id"] in harness.models(AGENT)
        pattern = {**AGENT, "model": {"id": "claude-*"}}
        assert not any(name == "claude-*" for name in harness.models(pattern))

    async def test_a_message_is_answered_and_the_turn_ends(self, harness: Harness) -> None:
        """The simplest turn there is."""
        runner = InMemoryRunner(harness)
        rest = await runner.run(runner.say(script({"text": "Good morning."})))
        assert rest == {"type": "end_turn"}
        assert runner.texts() == ["Good morning."]

    @proves("deltas")
    async def test_previews_are_a_contiguous_prefix_of_the_final_text(
        self, harness: Harness
    ) -> None:
        """Announced once, then pieces in order, then the event of the same id."""
        runner = InMemoryRunner(harness)
        await runner.run(runner.say(script({"text": "one two three four"})))
        (message,) = runner.events("agent.message")
        announcement, *pieces = runner.shown()[message.id]
        assert announcement == ""
        assert len(pieces) > 1
        assert text_of(message).startswith("".join(pieces))

    async def test_every_model_request_is_a_span_that_ends_once(self, harness: Harness) -> None:
        """And what it has used is counted."""
        name, given = self.builtin
        runner = InMemoryRunner(harness)
        await runner.run(runner.say(script({"tool": name, "input": given}, {"text": "Done."})))
        assert len(runner.events("span.model_request_start")) == 2
        assert _spans_are_paired(runner)
        used = [entry.fields["model_usage"] for entry in runner.events("span.model_request_end")]
        assert runner.spent.input_tokens == sum(usage["input_tokens"] for usage in used) > 0
        assert runner.spent.output_tokens == sum(usage["output_tokens"] for usage in used) > 0

    async def test_a_conversation_goes_on_in_its_second_turn(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """The same agent, still running."""
        runner = InMemoryRunner(harness)
        async with runner.open() as conversation:
            await runner.turn(
                conversation, [runner.say(script({"text": "I am Ada."}, say="name-1"))]
            )
            await runner.turn(conversation, [runner.say(script({"text": "Ada."}, say="name-2"))])
        assert runner.texts() == ["I am Ada.", "Ada."]
        assert _heard(model, "name-1", "I am Ada.", "name-2") == [1, 2, 1]  # scripted, and said

    async def test_a_conversation_goes_on_after_it_was_opened_again(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """Another process, nothing but the log and the session's home."""
        runner = InMemoryRunner(harness)
        await runner.run(runner.say(script({"text": "I am Ada."}, say="name-1")))
        await runner.run(runner.say(script({"text": "Ada."}, say="name-2")))
        assert runner.texts() == ["I am Ada.", "Ada."]
        assert _heard(model, "name-1", "I am Ada.", "name-2") == [1, 2, 1]  # scripted, and said

    async def test_a_message_that_waits_is_not_heard_before_its_turn(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """It is in the log already, as queued."""
        runner = InMemoryRunner(harness)
        first = runner.say(script({"text": "One."}, say="number-1"))
        second = runner.say(script({"text": "Two."}, say="number-2"))
        await runner.run(first)
        assert _heard(model, "number-1", "number-2") == [1, 0]
        await runner.run(second)
        assert _heard(model, "number-1", "number-2") == [1, 1]
        assert runner.texts() == ["One.", "Two."]

    async def test_a_turn_cut_off_anywhere_comes_to_the_same_conversation(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """Whatever was logged is done, whatever was not is done again, and nothing is said twice."""
        name, given = self.builtin
        prompt = script(
            {"text": "Let me see.", "tool": name, "input": given},
            {"thinking": "Hm.", "text": "Again.", "tool": name, "input": given},
            {"text": "All done."},
            say="only-once",
        )
        whole = InMemoryRunner(harness)
        await whole.run(whole.say(prompt))
        for cut in range(1, len(whole.outputs) + 1):
            for logged in (True, False):
                runner = InMemoryRunner(harness)
                message = runner.say(prompt)
                assert await runner.run(message, cut=cut, logged=logged) is None
                assert await runner.run(message, again=True) == {"type": "end_turn"}, (cut, logged)
                assert runner.conversation == whole.conversation, (cut, logged)
                assert _heard(model, "only-once") == [1], (cut, logged)
                assert _spans_are_paired(runner), (cut, logged)

    async def test_a_turn_cut_off_twice_comes_to_the_same_conversation(
        self, harness: Harness
    ) -> None:
        """The second life may end as early as the first."""
        name, given = self.builtin
        prompt = script({"tool": name, "input": given}, {"text": "All done."})
        whole = InMemoryRunner(harness)
        await whole.run(whole.say(prompt))
        emits = [n for n, output in enumerate(whole.outputs, 1) if isinstance(output, Emit)]
        for first in emits:
            for second in emits:
                runner = InMemoryRunner(harness)
                message = runner.say(prompt)
                await runner.run(message, cut=first)
                await runner.run(message, again=True, cut=second)
                assert await runner.run(message, again=True) == {"type": "end_turn"}
                assert runner.conversation == whole.conversation, (first, second)

    @proves("approvals")
    async def test_a_tool_runs_only_after_somebody_has_allowed_it(self, harness: Harness) -> None:
        """And what is refused is told to the agent, with the reason."""
        name, given = self.builtin
        runner = InMemoryRunner(harness, with_toolset("always_ask"))
        step = {"tool": name, "input": given}
        async with runner.open() as conversation:
            rest = await runner.turn(
                conversation, [runner.say(script(step, step, {"text": "Done."}))]
            )
            (call,) = runner.events("agent.tool_use")
            assert call.fields["evaluated_permission"] == "ask"
            assert runner.events("agent.tool_result") == []
            assert runner.pending == [Pending(call.id, "confirmation")]
            assert rest == {"type": "requires_action", "event_ids": [call.id]}
            await runner.turn(conversation, [runner.confirm(call.id)])
            second = runner.events("agent.tool_use")[-1]
            no = runner.confirm(second.id, "deny", deny_message="Not on a Sunday.")
            assert await runner.turn(conversation, [no]) == {"type": "end_turn"}
        ran, refused = runner.events("agent.tool_result")
        assert not ran.fields["is_error"]
        assert "Not on a Sunday." in json.dumps(refused.fields)

    @proves("questions")
    async def test_a_question_is_answered_by_the_client(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """It is a custom tool call to the client, and what the client answers is heard."""
        name, given = self.question
        runner = InMemoryRunner(harness, with_toolset())
        rest = await runner.run(
            runner.say(script({"tool": name, "input": given}, {"text": "Done."}))
        )
        (call,) = runner.events("agent.custom_tool_use")
        assert rest == {"type": "requires_action", "event_ids": [call.id]}
        assert await runner.run(runner.answer(call.id, "As green as grass")) == {"type": "end_turn"}
        assert _heard(model, "As green as grass") == [1]

    @proves("mcp")
    async def test_a_tool_of_an_mcp_server_is_called(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """Under the policy of its server."""
        runner = InMemoryRunner(harness, with_mcp({"docs": f"{model.url}/mcp"}))
        step = {"tool": self.mcp_tool, "input": {"what": "it"}}
        rest = await runner.run(runner.say(script(step, {"text": "Done."})))
        (call,) = runner.events("agent.mcp_tool_use")
        assert (call.fields["mcp_server_name"], call.fields["name"]) == ("docs", "find")
        assert rest == {"type": "requires_action", "event_ids": [call.id]}
        assert await runner.run(runner.confirm(call.id)) == {"type": "end_turn"}
        (result,) = runner.events("agent.mcp_tool_result")
        assert result.fields["content"] == [{"type": "text", "text": "found"}]

    @proves("files", "images")
    async def test_what_a_message_carries_is_shown_to_the_model(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """A document, and a picture."""
        text = {"type": "text", "media_type": "text/plain", "data": "the-document"}
        picture = {"type": "base64", "media_type": "image/png", "data": _PIXEL}
        blocks = {"type": "document", "source": text}, {"type": "image", "source": picture}
        runner = InMemoryRunner(harness)
        assert await runner.run(runner.say(script({"text": "Seen."}), *blocks)) == {
            "type": "end_turn"
        }
        assert _heard(model, "the-document") == [1]
        shown = _heard(model, '"type": "image"', '"type": "input_image"')  # as the two APIs call it
        assert sorted(shown) == [0, 1]

    @proves("subagents", "approvals")
    async def test_a_subagent_says_who_it_is_and_asks_as_the_agent_does(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """It is a thread: what it says is a message from it, and its calls name it."""
        name, given = self.builtin
        inner = script({"text": "Let me see.", "tool": name, "input": given}, {"text": "Found."})
        runner = InMemoryRunner(harness, with_subagents(with_toolset("always_ask")))
        async with runner.open() as conversation:
            message = runner.say(script(self.subagent(inner), {"text": "Done."}))
            rest = await runner.turn(conversation, [message])
            (created,) = runner.events("session.thread_created")
            thread = created.fields["session_thread_id"]
            begun, call = runner.events("agent.tool_use")
            assert "session_thread_id" not in begun.fields
            assert call.fields["session_thread_id"] == thread
            assert call.fields["evaluated_permission"] == "ask"
            assert rest == {"type": "requires_action", "event_ids": [call.id]}
            assert await runner.turn(conversation, [runner.confirm(call.id)]) == {
                "type": "end_turn"
            }
        said = runner.events("agent.thread_message_received")
        assert [text_of(entry) for entry in said] == ["Let me see.", "Found."]
        assert {entry.fields["from_session_thread_id"] for entry in said} == {thread}
        assert {entry.fields["from_agent_name"] for entry in said} == {created.fields["agent_name"]}
        ran, report = runner.events("agent.tool_result")
        assert (ran.fields["tool_use_id"], report.fields["tool_use_id"]) == (call.id, begun.id)
        assert not ran.fields["is_error"]
        assert "Found." in json.dumps(report.fields)
        assert runner.texts() == ["Done."]
        used = [entry.fields["model_usage"] for entry in runner.events("span.model_request_end")]
        assert runner.spent.input_tokens == sum(usage["input_tokens"] for usage in used)

    @proves("subagents")
    async def test_a_subagent_that_is_cut_off_loses_nothing_and_repeats_nothing(
        self, harness: Harness
    ) -> None:
        """Every call has one result, nobody waits for one, and no tool has run twice."""
        name, given = self.builtin
        inner = script({"text": "Let me see.", "tool": name, "input": given}, {"text": "Found."})
        prompt = script(self.subagent(inner), {"text": "Done."})
        agent = with_subagents(with_toolset())
        whole = InMemoryRunner(harness, agent)
        await whole.run(whole.say(prompt))
        cuts = [n for n, output in enumerate(whole.outputs, 1) if _is_of_subagent(output)]
        assert cuts
        for cut in cuts:
            runner = InMemoryRunner(harness, agent)
            message = runner.say(prompt)
            assert await runner.run(message, cut=cut) is None
            assert await runner.run(message, again=True) == {"type": "end_turn"}, cut
            calls, results = runner.events("agent.tool_use"), runner.events("agent.tool_result")
            made, ended = (
                [entry.id for entry in calls],
                [entry.fields["tool_use_id"] for entry in results],
            )
            assert len(set(made)) == len(made), cut
            assert sorted(made) == sorted(ended), cut
            inside = {entry.id for entry in calls if "session_thread_id" in entry.fields}
            ran = [entry.fields["tool_use_id"] for entry in results if not entry.fields["is_error"]]
            assert len(inside & {*ran}) <= 1, cut
            assert (runner.pending, runner.texts()) == ([], ["Done."]), cut

    @proves("effort")
    async def test_the_effort_of_the_agent_reaches_the_model(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """In the words of the API that the agent speaks."""
        for effort in ("low", "medium"):
            asked = {**AGENT, "model": {"id": AGENT["model"]["id"], "effort": {"type": effort}}}
            runner = InMemoryRunner(harness, asked)
            await runner.run(runner.say(script({"text": "Done."})))
            assert self.effort_in(model.requests[-1].body) == effort

    @proves("prestart")
    async def test_its_program_is_up_before_it_is_told_anything(self, harness: Harness) -> None:
        """New, and when it is resumed."""
        runner = InMemoryRunner(harness)
        for said in ("One.", "Two."):
            async with runner.open(ahead=True) as conversation:
                assert await conversation.up()
                message = runner.say(script({"text": said}))
                assert await runner.turn(conversation, [message]) == {"type": "end_turn"}
        assert runner.texts() == ["One.", "Two."]

    @proves("custom_tools")
    async def test_a_custom_tool_is_answered_by_the_client(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """The turn ends to wait for the result, and the next one goes on with it."""
        runner = InMemoryRunner(harness)
        step = {"tool": "lookup", "input": {"what": "weather"}}
        rest = await runner.run(runner.say(script(step, {"text": "It rains."})))
        (call,) = runner.events("agent.custom_tool_use")
        assert call.fields == {"name": "lookup", "input": {"what": "weather"}}
        assert runner.pending == [Pending(call.id, "custom_tool")]
        assert rest == {"type": "requires_action", "event_ids": [call.id]}
        assert await runner.run(runner.answer(call.id, "rain, 9 degrees")) == {"type": "end_turn"}
        assert runner.texts() == ["It rains."]
        assert _heard(model, "rain, 9 degrees") == [1]

    @proves("custom_tools")
    async def test_the_model_waits_until_every_custom_tool_is_answered(
        self, harness: Harness
    ) -> None:
        """A result that comes early does not start the model."""
        runner = InMemoryRunner(harness)
        calls = {"tools": [{"tool": "lookup"}, {"tool": "lookup", "input": {"what": "b"}}]}
        async with runner.open() as conversation:
            await runner.turn(conversation, [runner.say(script(calls, {"text": "Both."}))])
            first, second = (call.id for call in runner.events("agent.custom_tool_use"))
            rest = await runner.turn(conversation, [runner.answer(second, "b")])
            assert rest == {"type": "requires_action", "event_ids": [first]}
            assert await runner.turn(conversation, [runner.answer(first, "a")]) == {
                "type": "end_turn"
            }
        assert runner.texts() == ["Both."]

    @proves("custom_tools")
    async def test_a_result_is_delivered_once_wherever_its_turn_is_cut_off(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """The same holds for results of custom tools as for messages."""
        prompt = script({"tool": "lookup"}, {"text": "It rains."})
        cut = 0
        while True:
            cut += 1
            runner = InMemoryRunner(harness)
            await runner.run(runner.say(prompt))
            (call,) = runner.events("agent.custom_tool_use")
            result = runner.answer(call.id, "the-result")
            finished = await runner.run(result, cut=cut)
            await runner.run(result, again=True)
            # A harness may tell the agent to go on; then the script is over, for the model.
            (said,) = runner.texts()
            assert said.startswith(("It rains.", "The script is over")), cut
            assert _heard(model, "the-result") == [1], cut
            if finished:
                return

    @proves("custom_tools", "interrupts")
    async def test_calls_nobody_answered_before_an_interrupt_do_not_block_the_next_message(
        self, harness: Harness
    ) -> None:
        """The agent is told that they came to nothing."""
        runner = InMemoryRunner(harness)
        async with runner.open() as conversation:
            await runner.turn(conversation, [runner.say(script({"tool": "lookup"}))])
            runner.interrupted()
            message = runner.say(script({"text": "Onwards."}))
            assert await runner.turn(conversation, [message]) == {"type": "end_turn"}
        assert runner.texts() == ["Onwards."]

    @proves("interrupts")
    async def test_an_interrupt_ends_the_turn_at_once_with_what_was_said(
        self, harness: Harness
    ) -> None:
        """The message is what the previews showed, and the conversation goes on after it."""
        runner = InMemoryRunner(harness)
        long = " ".join(f"word{n}" for n in range(1000))
        async with runner.open() as conversation:
            message = runner.say(script({"text": long, "chunk_delay": 0.02}))
            rest = await runner.turn(conversation, [message], watch=_interrupt_at_the_third_piece)
            assert rest == {"type": "end_turn"}
            (said,) = runner.events("agent.message")
            assert "".join(runner.shown()[said.id]) == text_of(said)
            assert long.startswith(text_of(said))
            assert _spans_are_paired(runner)
            runner.interrupted()
            await runner.turn(conversation, [runner.say(script({"text": "Yes?"}))])
        assert runner.texts()[1:] == ["Yes?"]

    @proves("interrupts")
    async def test_an_interrupt_does_not_wait_for_a_model_that_is_silent(
        self, harness: Harness
    ) -> None:
        """It comes before the first byte of the answer."""
        runner = InMemoryRunner(harness)
        async with runner.open() as conversation:
            message = runner.say(script({"text": "Too late.", "delay": 300}))
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_interrupt_soon, conversation)
                    assert await runner.turn(conversation, [message]) == {"type": "end_turn"}
            assert runner.texts() == []
            assert _spans_are_paired(runner)

    @proves("retries")
    async def test_a_passing_failure_is_retried_until_it_has_passed(self, harness: Harness) -> None:
        """The answer is there once, and each failure was told."""
        runner = InMemoryRunner(harness)
        step = {"text": "At last.", "error": {"status": 529, "times": 2}}
        assert await runner.run(runner.say(script(step))) == {"type": "end_turn"}
        assert runner.troubles() == ["retrying", "retrying"]
        assert runner.texts() == ["At last."]
        assert _spans_are_paired(runner)

    async def test_a_failure_that_stays_ends_the_turn_and_not_the_session(
        self, harness: Harness
    ) -> None:
        """The next message is answered."""
        runner = InMemoryRunner(harness)
        rest = await runner.run(runner.say(script({"error": {"status": 500}})))
        assert rest == {"type": "retries_exhausted"}
        assert runner.troubles()[-1] == "exhausted"
        assert set(runner.troubles()[:-1]) == {"retrying"}
        assert await runner.run(runner.say(script({"text": "Better now."}))) == {"type": "end_turn"}
        assert runner.texts() == ["Better now."]

    async def test_an_answer_that_breaks_off_is_not_logged(self, harness: Harness) -> None:
        """Half a sentence is not what the model said."""
        runner = InMemoryRunner(harness)
        rest = await runner.run(runner.say(script({"text": "one two three four", "cut": 2})))
        assert rest == {"type": "retries_exhausted"}
        assert runner.texts() == []
        assert _spans_are_paired(runner)

    async def test_a_refusal_of_the_model_is_the_reason_the_turn_ends(
        self, harness: Harness
    ) -> None:
        """Clients show it differently."""
        runner = InMemoryRunner(harness)
        step = {"text": "I would rather not.", "stop_reason": "refusal"}
        assert await runner.run(runner.say(script(step))) == {"type": "refusal"}


async def _interrupt_at_the_third_piece(conversation: Conversation, output: Output) -> None:
    if isinstance(output, Show) and output.text.startswith("word2"):
        await conversation.interrupt()


def _is_of_subagent(output: Output) -> bool:
    if not isinstance(output, Emit) or not output.drafts:
        return False
    draft = output.drafts[0]
    return draft.type == "agent.thread_message_received" or b'"session_thread_id"' in draft.body


async def _interrupt_soon(conversation: Conversation) -> None:
    await anyio.sleep(0.3)
    await conversation.interrupt()


def _spans_are_paired(runner: InMemoryRunner) -> bool:
    starts = [entry.id for entry in runner.events("span.model_request_start")]
    ends = [e.fields["model_request_start_id"] for e in runner.events("span.model_request_end")]
    return bool(starts) and starts == ends


def _heard(model: ScriptedModel, *words: str) -> list[int]:
    """How often each of the words is in the newest request to the model."""
    request = json.dumps(model.requests[-1].body)
    return [request.count(word) for word in words]
