"""The harness for agents that speak the Agent Client Protocol, with two real ones in the default sandbox."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest
from tests.contracts.at_length import only_quick
from tests.egress.both_sides import KEY
from tests.harnesses.acp_agents import AgentsModel, claude_agent_acp, opencode
from tests.harnesses.bubblewrapped_harness import BubblewrappedHarness, bubblewrapped

from roost.harnesses.acp import AcpHarness
from roost.ports.harness import Conversation, Harness
from roost.serve.http import listening
from roost.testing.harness_contract import HarnessContract, proves
from roost.testing.in_memory_runner import InMemoryRunner, script, with_mcp
from roost.testing.scripted_model import ScriptedModel

END = {"type": "end_turn"}


class AcpContract(HarnessContract):
    """The kit, as far as the protocol carries what it asks for."""

    @pytest.fixture
    async def model(self) -> AsyncGenerator[AgentsModel, None]:
        model = AgentsModel(require_key=KEY)
        async with listening(model, "127.0.0.1", 0) as model.url:
            yield model

    @pytest.fixture
    def agent(self) -> AcpHarness:
        raise NotImplementedError

    @pytest.fixture
    async def harness(
        self, agent: AcpHarness, model: AgentsModel
    ) -> AsyncGenerator[BubblewrappedHarness, None]:
        async with bubblewrapped(agent, model.url) as harness:
            yield harness

    async def test_a_passing_failure_is_retried_until_it_has_passed(self, harness: Harness) -> None:
        """The protocol does not tell of failures that the agent gets over by itself."""
        runner = InMemoryRunner(harness)
        step = {"text": "At last.", "error": {"status": 529, "times": 2}}
        assert await runner.run(runner.say(script(step))) == END
        assert runner.troubles() == []
        assert runner.texts() == ["At last."]

    async def test_a_turn_cut_off_anywhere_comes_to_the_same_conversation(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """Nothing is said twice, and no call is made twice. What the agent is told about the cut is heard: its
        answer may be cut short, the result of its call unknown, and it may say more.
        """
        name, given = self.builtin
        step = {"text": "Let me see.", "tool": name, "input": given}
        prompt = script(step, {"text": "All done."}, say="only-once")
        whole = InMemoryRunner(harness)
        await whole.run(whole.say(prompt))
        for cut in range(1, len(whole.outputs) + 1):
            for logged in (True, False):
                runner = InMemoryRunner(harness)
                message = runner.say(prompt)
                assert await runner.run(message, cut=cut, logged=logged) is None
                assert await runner.run(message, again=True) == END, (cut, logged)
                assert len(runner.events("agent.tool_use")) <= 1, (cut, logged)
                calls = [entry.id for entry in runner.events("agent.tool_use")]
                results = [e.fields["tool_use_id"] for e in runner.events("agent.tool_result")]
                assert results == calls, (cut, logged)
                assert len(set(runner.texts())) == len(runner.texts()), (cut, logged)
                assert json.dumps(model.requests[-1].body).count("only-once") == 1, (cut, logged)

    async def test_a_turn_cut_off_twice_comes_to_the_same_conversation(
        self, harness: Harness
    ) -> None:
        """The second life may end as early as the first."""
        name, given = self.builtin
        prompt = script({"tool": name, "input": given}, {"text": "All done."})
        for cut in (2, 4):
            runner = InMemoryRunner(harness)
            message = runner.say(prompt)
            await runner.run(message, cut=cut)
            await runner.run(message, again=True, cut=1)
            assert await runner.run(message, again=True) == END, cut
            calls = [entry.id for entry in runner.events("agent.tool_use")]
            results = [e.fields["tool_use_id"] for e in runner.events("agent.tool_result")]
            assert results == calls, cut

    async def test_a_failure_that_stays_ends_the_turn_and_not_the_session(
        self, harness: Harness
    ) -> None:
        """The next message is answered."""
        runner = InMemoryRunner(harness)
        rest = await runner.run(runner.say(script({"error": {"status": 500}})))
        assert rest == {"type": "retries_exhausted"}
        assert runner.troubles() == ["exhausted"]
        assert runner.texts() == [], "what the agent says of it is not what the model said"
        assert await runner.run(runner.say(script({"text": "Better now."}))) == END
        assert runner.texts() == ["Better now."]

    @proves("mcp")
    async def test_a_tool_of_an_mcp_server_is_called(
        self, harness: Harness, model: ScriptedModel
    ) -> None:
        """Under the policy of its server. In one process: a model without a script would make the call again."""
        runner = InMemoryRunner(harness, with_mcp({"docs": f"{model.url}/mcp"}))
        step = {"tool": self.mcp_tool, "input": {"what": "it"}}
        async with runner.open() as conversation:
            message = runner.say(script(step, {"text": "Done."}))
            rest = await runner.turn(conversation, [message])
            (call,) = runner.events("agent.mcp_tool_use")
            assert (call.fields["mcp_server_name"], call.fields["name"]) == ("docs", "find")
            assert rest == {"type": "requires_action", "event_ids": [call.id]}
            assert await runner.turn(conversation, [runner.confirm(call.id)]) == END
        (result,) = runner.events("agent.mcp_tool_result")
        assert result.fields["content"] == [{"type": "text", "text": "found"}]


@only_quick(
    "test_every_ability_it_declares_is_proved",
    "test_what_it_declares_can_be_relied_on",
    "test_every_model_request_is_a_span_that_ends_once",
    "test_a_conversation_goes_on_after_it_was_opened_again",
    "test_a_tool_runs_only_after_somebody_has_allowed_it",
    "test_what_a_message_carries_is_shown_to_the_model",
    "test_its_program_is_up_before_it_is_told_anything",
    "test_an_interrupt_ends_the_turn_at_once_with_what_was_said",
    "test_a_failure_that_stays_ends_the_turn_and_not_the_session",
    "test_a_tool_of_an_mcp_server_is_called",
)
class TestClaudeAgentAcp(AcpContract):
    @pytest.fixture
    def agent(self) -> AcpHarness:
        return claude_agent_acp()

    async def test_a_refusal_of_the_model_is_the_reason_the_turn_ends(
        self, harness: Harness
    ) -> None:
        """Claude Code tells a model that refused so, and asks it once more."""
        runner = InMemoryRunner(harness)
        step = {"text": "I would rather not.", "stop_reason": "refusal"}
        assert await runner.run(runner.say(script(step, step))) == {"type": "refusal"}

    async def test_an_answer_that_breaks_off_is_not_logged(self, harness: Harness) -> None:
        """Claude Code asks again, and the protocol does not tell half an answer from a whole one."""
        runner = InMemoryRunner(harness)
        rest = await runner.run(runner.say(script({"text": "one two three four", "cut": 2})))
        assert rest == {"type": "retries_exhausted"}
        assert runner.troubles() == ["exhausted"]
        assert set(runner.texts()) <= {"one two "}, "what the agent says of it is not logged"


@only_quick(
    "test_every_ability_it_declares_is_proved",
    "test_what_it_declares_can_be_relied_on",
    "test_a_conversation_goes_on_after_it_was_opened_again",
    "test_a_tool_runs_only_after_somebody_has_allowed_it",
)
class TestOpencode(AcpContract):
    builtin = ("bash", {"command": "echo hello", "description": "Says hello"})
    mcp_tool = "docs_find"

    @pytest.fixture
    def agent(self) -> AcpHarness:
        return opencode()

    async def test_a_failure_that_stays_ends_the_turn_and_not_the_session(
        self, harness: Harness
    ) -> None:
        """opencode tries again for ever, and an interrupt ends that."""
        await self._interrupted(harness, {"error": {"status": 500}})

    async def test_an_answer_that_breaks_off_is_not_logged(self, harness: Harness) -> None:
        """It is asked for again, for ever: each time another message."""
        await self._interrupted(harness, {"text": "one two three four", "cut": 2})

    async def _interrupted(self, harness: Harness, step: dict[str, Any]) -> None:
        runner = InMemoryRunner(harness)
        async with runner.open() as conversation, anyio.create_task_group() as tasks:
            tasks.start_soon(_interrupt_after, 10, conversation)
            assert await runner.turn(conversation, [runner.say(script(step))]) == END
            runner.interrupted()
            message = runner.say(script({"text": "Better now."}))
            assert await runner.turn(conversation, [message]) == END
        assert runner.texts()[-1] == "Better now."


async def _interrupt_after(seconds: float, conversation: Conversation) -> None:
    await anyio.sleep(seconds)
    await conversation.interrupt()
