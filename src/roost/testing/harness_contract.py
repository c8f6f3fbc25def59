"""The contract of a harness: subclass, give the two fixtures, inherit the tests.

    class TestScriptedHarness(HarnessContract):
        @pytest.fixture
        async def model(self): ...      # the scripted model, served somewhere
        @pytest.fixture
        def harness(self, model): ...   # a harness that talks to it

The harness must repeat a failed model request at least twice, after pauses of milliseconds.
"""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from roost.domain.session import Pending
from roost.ports.harness import Conversation, Emit, Harness, Output, Show
from roost.testing.desk import Desk, script, text_of
from roost.testing.scripted_model import ScriptedModel


class HarnessContract:
    """What the core relies on, whichever agent is driven."""

    builtin: tuple[str, dict[str, Any]] = ("Bash", {"command": "echo hello"})
    """A tool of the agent's own, and a harmless input for it."""

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

    async def test_a_message_is_answered_and_the_turn_ends(self, harness: Harness) -> None:
        """The simplest turn."""
        desk = Desk(harness)
        rest = await desk.run(desk.say(script({"text": "Good morning."})))
        assert rest == {"type": "end_turn"}
        assert desk.texts() == ["Good morning."]

    async def test_previews_are_a_contiguous_prefix_of_the_final_text(
        self, harness: Harness
    ) -> None:
        """Announced once, then pieces in order, then the event of the same id."""
        desk = Desk(harness)
        await desk.run(desk.say(script({"text": "one two three four"})))
        (message,) = desk.events("agent.message")
        announcement, *pieces = desk.shown()[message.id]
        assert announcement == ""
        assert len(pieces) > 1
        assert text_of(message).startswith("".join(pieces))

    async def test_every_model_request_is_a_span_that_ends_once(self, harness: Harness) -> None:
        """And what it has used is counted."""
        name, given = self.builtin
        desk = Desk(harness)
        await desk.run(desk.say(script({"tool": name, "input": given}, {"text": "Done."})))
        assert len(desk.events("span.model_request_start")) == 2
        assert _spans_are_paired(desk)
        used = [entry.fields["model_usage"] for entry in desk.events("span.model_request_end")]
        assert desk.spent.input_tokens == sum(usage["input_tokens"] for usage in used) > 0
        assert desk.spent.output_tokens == sum(usage["output_tokens"] for usage in used) > 0

    async def test_a_conversation_goes_on_in_its_second_turn(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """The same agent, still running."""
        desk = Desk(harness)
        async with desk.open() as conversation:
            await desk.turn(conversation, [desk.say(script({"text": "I am Ada."}, say="name-1"))])
            await desk.turn(conversation, [desk.say(script({"text": "Ada."}, say="name-2"))])
        assert desk.texts() == ["I am Ada.", "Ada."]
        assert _heard(model, "name-1", "I am Ada.", "name-2") == [1, 2, 1]  # scripted, and said

    async def test_a_conversation_goes_on_after_it_was_opened_again(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """Another process, nothing but the log and the session's home."""
        desk = Desk(harness)
        await desk.run(desk.say(script({"text": "I am Ada."}, say="name-1")))
        await desk.run(desk.say(script({"text": "Ada."}, say="name-2")))
        assert desk.texts() == ["I am Ada.", "Ada."]
        assert _heard(model, "name-1", "I am Ada.", "name-2") == [1, 2, 1]  # scripted, and said

    async def test_a_message_that_waits_is_not_heard_before_its_turn(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """It is in the log already, as queued."""
        desk = Desk(harness)
        first = desk.say(script({"text": "One."}, say="number-1"))
        second = desk.say(script({"text": "Two."}, say="number-2"))
        await desk.run(first)
        assert _heard(model, "number-1", "number-2") == [1, 0]
        await desk.run(second)
        assert _heard(model, "number-1", "number-2") == [1, 1]
        assert desk.texts() == ["One.", "Two."]

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
        whole = Desk(harness)
        await whole.run(whole.say(prompt))
        for cut in range(1, len(whole.outputs) + 1):
            for logged in (True, False):
                desk = Desk(harness)
                message = desk.say(prompt)
                assert await desk.run(message, cut=cut, logged=logged) is None
                assert await desk.run(message, again=True) == {"type": "end_turn"}, (cut, logged)
                assert desk.conversation == whole.conversation, (cut, logged)
                assert _heard(model, "only-once") == [1], (cut, logged)
                assert _spans_are_paired(desk), (cut, logged)

    async def test_a_turn_cut_off_twice_comes_to_the_same_conversation(
        self, harness: Harness
    ) -> None:
        """The second life may end as early as the first."""
        name, given = self.builtin
        prompt = script({"tool": name, "input": given}, {"text": "All done."})
        whole = Desk(harness)
        await whole.run(whole.say(prompt))
        emits = [n for n, output in enumerate(whole.outputs, 1) if isinstance(output, Emit)]
        for first in emits:
            for second in emits:
                desk = Desk(harness)
                message = desk.say(prompt)
                await desk.run(message, cut=first)
                await desk.run(message, again=True, cut=second)
                assert await desk.run(message, again=True) == {"type": "end_turn"}
                assert desk.conversation == whole.conversation, (first, second)

    async def test_a_custom_tool_is_answered_by_the_client(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """The turn ends to wait for the result, and the next one goes on with it."""
        desk = Desk(harness)
        step = {"tool": "lookup", "input": {"what": "weather"}}
        rest = await desk.run(desk.say(script(step, {"text": "It rains."})))
        (call,) = desk.events("agent.custom_tool_use")
        assert call.fields == {"name": "lookup", "input": {"what": "weather"}}
        assert desk.pending == [Pending(call.id, "custom_tool")]
        assert rest == {"type": "requires_action", "event_ids": [call.id]}
        assert await desk.run(desk.answer(call.id, "rain, 9 degrees")) == {"type": "end_turn"}
        assert desk.texts() == ["It rains."]
        assert _heard(model, "rain, 9 degrees") == [1]

    async def test_the_model_waits_until_every_custom_tool_is_answered(
        self, harness: Harness
    ) -> None:
        """A result that comes early does not start the model."""
        desk = Desk(harness)
        calls = {"tools": [{"tool": "lookup"}, {"tool": "lookup", "input": {"what": "b"}}]}
        async with desk.open() as conversation:
            await desk.turn(conversation, [desk.say(script(calls, {"text": "Both."}))])
            first, second = (call.id for call in desk.events("agent.custom_tool_use"))
            rest = await desk.turn(conversation, [desk.answer(second, "b")])
            assert rest == {"type": "requires_action", "event_ids": [first]}
            assert await desk.turn(conversation, [desk.answer(first, "a")]) == {"type": "end_turn"}
        assert desk.texts() == ["Both."]

    async def test_a_result_is_delivered_once_wherever_its_turn_is_cut_off(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """As for messages."""
        prompt = script({"tool": "lookup"}, {"text": "It rains."})
        cut = 0
        while True:
            cut += 1
            desk = Desk(harness)
            await desk.run(desk.say(prompt))
            (call,) = desk.events("agent.custom_tool_use")
            result = desk.answer(call.id, "the-result")
            finished = await desk.run(result, cut=cut)
            await desk.run(result, again=True)
            # A harness may tell the agent to go on; then the script is over, for the model.
            (said,) = desk.texts()
            assert said.startswith(("It rains.", "The script is over")), cut
            assert _heard(model, "the-result") == [1], cut
            if finished:
                return

    async def test_calls_nobody_answered_before_an_interrupt_do_not_block_the_next_message(
        self, harness: Harness
    ) -> None:
        """The agent is told that they came to nothing."""
        desk = Desk(harness)
        async with desk.open() as conversation:
            await desk.turn(conversation, [desk.say(script({"tool": "lookup"}))])
            desk.interrupted()
            message = desk.say(script({"text": "Onwards."}))
            assert await desk.turn(conversation, [message]) == {"type": "end_turn"}
        assert desk.texts() == ["Onwards."]

    async def test_an_interrupt_ends_the_turn_at_once_with_what_was_said(
        self, harness: Harness
    ) -> None:
        """The message is what the previews showed, and the conversation goes on after it."""
        desk = Desk(harness)
        long = " ".join(f"word{n}" for n in range(1000))
        async with desk.open() as conversation:
            message = desk.say(script({"text": long, "chunk_delay": 0.02}))
            rest = await desk.turn(conversation, [message], watch=_interrupt_at_the_third_piece)
            assert rest == {"type": "end_turn"}
            (said,) = desk.events("agent.message")
            assert "".join(desk.shown()[said.id]) == text_of(said)
            assert long.startswith(text_of(said))
            assert _spans_are_paired(desk)
            desk.interrupted()
            await desk.turn(conversation, [desk.say(script({"text": "Yes?"}))])
        assert desk.texts()[1:] == ["Yes?"]

    async def test_an_interrupt_does_not_wait_for_a_model_that_is_silent(
        self, harness: Harness
    ) -> None:
        """It comes before the first byte of the answer."""
        desk = Desk(harness)
        async with desk.open() as conversation:
            message = desk.say(script({"text": "Too late.", "delay": 300}))
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_interrupt_soon, conversation)
                    assert await desk.turn(conversation, [message]) == {"type": "end_turn"}
            assert desk.texts() == []
            assert _spans_are_paired(desk)

    async def test_a_passing_failure_is_retried_until_it_has_passed(self, harness: Harness) -> None:
        """The answer is there once, and each failure was told."""
        desk = Desk(harness)
        step = {"text": "At last.", "error": {"status": 529, "times": 2}}
        assert await desk.run(desk.say(script(step))) == {"type": "end_turn"}
        assert desk.troubles() == ["retrying", "retrying"]
        assert desk.texts() == ["At last."]
        assert _spans_are_paired(desk)

    async def test_a_failure_that_stays_ends_the_turn_and_not_the_session(
        self, harness: Harness
    ) -> None:
        """The next message is answered."""
        desk = Desk(harness)
        rest = await desk.run(desk.say(script({"error": {"status": 500}})))
        assert rest == {"type": "retries_exhausted"}
        assert desk.troubles()[-1] == "exhausted"
        assert set(desk.troubles()[:-1]) == {"retrying"}
        assert await desk.run(desk.say(script({"text": "Better now."}))) == {"type": "end_turn"}
        assert desk.texts() == ["Better now."]

    async def test_an_answer_that_breaks_off_is_not_logged(self, harness: Harness) -> None:
        """Half a sentence is not what the model said."""
        desk = Desk(harness)
        rest = await desk.run(desk.say(script({"text": "one two three four", "cut": 2})))
        assert rest == {"type": "retries_exhausted"}
        assert desk.texts() == []
        assert _spans_are_paired(desk)

    async def test_a_refusal_of_the_model_is_the_reason_the_turn_ends(
        self, harness: Harness
    ) -> None:
        """Clients show it differently."""
        desk = Desk(harness)
        step = {"text": "I would rather not.", "stop_reason": "refusal"}
        assert await desk.run(desk.say(script(step))) == {"type": "refusal"}


async def _interrupt_at_the_third_piece(conversation: Conversation, output: Output) -> None:
    if isinstance(output, Show) and output.text.startswith("word2"):
        await conversation.interrupt()


async def _interrupt_soon(conversation: Conversation) -> None:
    await anyio.sleep(0.3)
    await conversation.interrupt()


def _spans_are_paired(desk: Desk) -> bool:
    starts = [entry.id for entry in desk.events("span.model_request_start")]
    ends = [e.fields["model_request_start_id"] for e in desk.events("span.model_request_end")]
    return bool(starts) and starts == ends


def _heard(model: ScriptedModel, *words: str) -> list[int]:
    """How often each of the words is in the newest request to the model."""
    request = json.dumps(model.requests[-1].body)
    return [request.count(word) for word in words]
