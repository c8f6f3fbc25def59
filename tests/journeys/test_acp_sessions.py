"""Agents that speak the Agent Client Protocol behind a real server: the kit that every harness passes, with two real ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import anthropic
import pytest
from tests.contracts.at_length import only_quick
from tests.harnesses.acp_agents import AgentsModel, agents_file, claude_agent_acp, opencode

from roost.harnesses.acp import AcpAgent
from roost.testing.harness_sessions import HarnessSessions, heard
from roost.testing.live import LiveServer
from roost.testing.scripted_model import in_a_thread

TOOLSET: Any = {"type": "agent_toolset_20260401"}
ABSENT = AcpAgent(command=["/opt/absent/agent"])


class AcpSessions(HarnessSessions):
    """The kit. A second agent of the file is not installed."""

    environ: ClassVar[Mapping[str, str]] = {
        "ROOST_TRUST_LEVELS": "sandboxed,full",
        # The scripted model does not make calls again that were allowed while the agent slept, as it is told to.
        "ROOST_SLEEP_AFTER": "5",
    }

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> Iterator[AgentsModel]:
        model = AgentsModel(keep=2000)
        with in_a_thread(model):
            yield model

    def test_an_agent_that_is_not_installed_is_listed_with_the_reason(
        self, server: LiveServer
    ) -> None:
        found = {each["name"]: each for each in self.listed(server)}
        assert (found["absent"]["available"], found["absent"]["default"]) == (False, False)
        assert found["absent"]["unavailable"] == {
            "message": "/opt/absent/agent does not exist",
            "hint": "Install it, or correct the file of ROOST_AGENTS.",
        }

    def test_a_session_on_the_host_is_refused(
        self, server: LiveServer, client: anthropic.Anthropic
    ) -> None:
        agent = client.beta.agents.create(name="a", model=self.model_id, tools=[TOOLSET])
        place = client.beta.environments.create(name=f"on the host {time.time_ns()}")
        with pytest.raises(anthropic.BadRequestError, match="run in a sandbox only") as refused:
            client.beta.sessions.create(
                agent=agent.id, environment_id=place.id, extra_body={"trust_level": "full"}
            )
        assert "harness_cannot" in str(refused.value.body)

    def test_a_turn_whose_server_is_killed_while_the_model_is_asked_is_finished_by_the_next(
        self, server: LiveServer, client: anthropic.Anthropic, model: AgentsModel
    ) -> None:
        """By then the agent has the message in its own record."""
        session, before = self.begin(server, client), len(model.requests)
        self.killed_in_a_turn(session, lambda: len(model.requests) > before)
        assert heard(model, "only-once") == [1]

    def test_what_the_protocol_does_not_carry_is_refused_by_name(
        self, server: LiveServer, client: anthropic.Anthropic
    ) -> None:
        """With the harnesses that can do it."""
        lookup: Any = {"type": "custom", "name": "lookup", "description": "Looks something up."}
        lookup["input_schema"] = {"type": "object", "properties": {}}
        agent = client.beta.agents.create(name="a", model=self.model_id, tools=[TOOLSET, lookup])
        place = client.beta.environments.create(name=f"place {time.time_ns()}")
        with pytest.raises(
            anthropic.BadRequestError, match="cannot call tools that a client carries out"
        ) as refused:
            client.beta.sessions.create(agent=agent.id, environment_id=place.id)
        told = str(refused.value.body)
        assert all(word in told for word in ("harness_cannot", "claude", "codex", "messages"))


@only_quick(
    "test_what_the_protocol_does_not_carry_is_refused_by_name",
    "test_an_agent_that_is_not_installed_is_listed_with_the_reason",
    "test_a_session_on_the_host_is_refused",
    "test_it_goes_on_elsewhere_from_what_was_stored",
)
class TestClaudeAgentAcpSessions(AcpSessions):
    harness = "claude-acp"

    @classmethod
    def settings(cls, folder: Path) -> Mapping[str, str]:
        return agents_file(folder, **{"claude-acp": claude_agent_acp().agent, "absent": ABSENT})


@only_quick()  # it takes five times as long to start
class TestOpencodeSessions(AcpSessions):
    harness = "opencode"

    @classmethod
    def settings(cls, folder: Path) -> Mapping[str, str]:
        return agents_file(folder, opencode=opencode().agent, absent=ABSENT)

    def runs(self, command: str) -> dict[str, Any]:
        return {"tool": "bash", "input": {"command": command, "description": "Runs it"}}
