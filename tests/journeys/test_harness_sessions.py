"""The shipped harnesses behind a real server: the kit that every harness passes, once for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.contracts.at_length import only_quick
from tests.engines import LiveEngine
from tests.harnesses.codex_session import MODEL, run
from tests.journeys.engines import Docker

from roost.testing.harness_contract import BEHIND_A_SERVER, proved_by
from roost.testing.harness_sessions import HarnessSessions


class TestClaudeSessions(HarnessSessions):
    harness = "claude"


class TestMessagesSessions(HarnessSessions):
    harness = "messages"

    def runs(self, command: str) -> dict[str, Any]:
        return {"tool": "bash", "input": {"command": command}}


class TestCodexSessions(HarnessSessions):
    harness = "codex"
    model_id = MODEL

    def runs(self, command: str) -> dict[str, Any]:
        return run(command)


class TestScriptedSessions(HarnessSessions):
    harness = "scripted"


class InContainers(HarnessSessions):
    """The same in containers of a real engine: one conversation in every run, and all of it in `make chaos`."""

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, docker: LiveEngine) -> Mapping[str, str]:
        return Docker(docker).environ


briefly = only_quick("test_a_client_cannot_tell_which_agent_it_is")


@briefly
@pytest.mark.xdist_group("docker")
class TestClaudeSessionsInContainers(InContainers, TestClaudeSessions):
    pass


@briefly
@pytest.mark.xdist_group("docker")
class TestMessagesSessionsInContainers(InContainers, TestMessagesSessions):
    pass


@briefly
@pytest.mark.xdist_group("docker")
class TestCodexSessionsInContainers(InContainers, TestCodexSessions):
    pass


@briefly
@pytest.mark.xdist_group("docker")
class TestScriptedSessionsInContainers(InContainers, TestScriptedSessions):
    pass


def test_the_kit_proves_what_the_other_kit_leaves_to_it() -> None:
    assert proved_by(HarnessSessions) >= BEHIND_A_SERVER
