"""The kit of harnesses where their agents live: in bubblewrap and in containers, behind the real egress.

Elsewhere it is run with plain processes, which is quicker. Every run has a turn of each harness in each kind of
sandbox, and a tool that somebody allows; `make chaos` has the whole kit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.contracts import test_acp_harness as acp
from tests.contracts import test_claude_harness as claude
from tests.contracts import test_codex_harness as codex
from tests.contracts import test_messages_harness as messages
from tests.contracts.at_length import only_quick
from tests.engines import IMAGE, LiveEngine
from tests.harnesses.acp_agents import AgentsModel, claude_agent_acp
from tests.harnesses.claude_session import installed_cli
from tests.harnesses.codex_session import installed_codex
from tests.harnesses.served_harness import KEY, ServedHarness
from tests.hostile.probed_sandbox import need_bubblewrap

from roost.config import Settings
from roost.harnesses.acp import AcpHarness
from roost.harnesses.claude import ClaudeHarness
from roost.harnesses.codex import CodexHarness
from roost.harnesses.messages import MessagesHarness
from roost.ports.harness import Harness
from roost.serve.http import listening
from roost.testing.harness_contract import HarnessContract
from roost.testing.scripted_model import ScriptedModel

briefly = only_quick(
    "test_a_message_is_answered_and_the_turn_ends",
    "test_a_tool_runs_only_after_somebody_has_allowed_it",
)


@pytest.fixture(scope="module")
def bubblewrap() -> None:
    """It has to be tried outside of any event loop."""
    need_bubblewrap()


class InBubblewrap:
    @pytest.fixture
    def settings(self, bubblewrap: None) -> Settings:
        return Settings(sandbox="bubblewrap")


class InContainers:
    @pytest.fixture
    def settings(self, docker: LiveEngine) -> Settings:
        return Settings(sandbox="docker", docker_socket=docker.socket, docker_image=IMAGE)


class Served(HarnessContract):
    def agent(self, data: Path) -> Harness:
        """The harness as a server makes it that has this directory, but for its pauses."""
        raise NotImplementedError

    @pytest.fixture
    def harness(
        self,
        model: ScriptedModel,
        tmp_path: Path,
        tmp_path_factory: pytest.TempPathFactory,
        settings: Settings,
    ) -> ServedHarness:
        lasting = tmp_path_factory.getbasetemp()
        return ServedHarness(self.agent(lasting), model.url, tmp_path, settings)


class Claude(Served, claude.TestClaudeHarness):
    def agent(self, data: Path) -> Harness:
        return ClaudeHarness(installed_cli(), retries=2)


class Codex(Served, codex.TestCodexHarness):
    def agent(self, data: Path) -> Harness:
        return CodexHarness(installed_codex(), seeds=data / "codex", retries=2)


class Messages(Served, messages.TestMessagesHarness):
    def agent(self, data: Path) -> Harness:
        return MessagesHarness(retries=3, retry_seconds=0.001)


class Acp(acp.AcpContract):
    """Their own kit is run in bubblewrap already."""

    @pytest.fixture
    async def model(self) -> AsyncGenerator[AgentsModel, None]:
        model = AgentsModel(require_key=KEY)
        async with listening(model, "127.0.0.1", 0) as model.url:
            yield model

    @pytest.fixture
    def harness(
        self, agent: AcpHarness, model: AgentsModel, tmp_path: Path, settings: Settings
    ) -> ServedHarness:
        return ServedHarness(agent, model.url, tmp_path, settings)


@briefly
class TestClaudeInBubblewrap(InBubblewrap, Claude):
    pass


@briefly
class TestCodexInBubblewrap(InBubblewrap, Codex):
    pass


@briefly
class TestMessagesInBubblewrap(InBubblewrap, Messages):
    pass


@briefly
@pytest.mark.xdist_group("docker")
class TestClaudeInContainers(InContainers, Claude):
    pass


@briefly
@pytest.mark.xdist_group("docker")
class TestCodexInContainers(InContainers, Codex):
    pass


@briefly
@pytest.mark.xdist_group("docker")
class TestMessagesInContainers(InContainers, Messages):
    pass


@only_quick()
@pytest.mark.xdist_group("docker")
class TestClaudeAgentAcpInContainers(InContainers, Acp, acp.TestClaudeAgentAcp):
    @pytest.fixture
    def agent(self) -> AcpHarness:
        """Node needs libraries that the image does not have."""
        found = claude_agent_acp()
        libraries = [
            path
            for name in ("libstdc++.so.6", "libgcc_s.so.1")
            for path in sorted(Path("/usr/lib").glob(f"*-linux-gnu/{name}"))
        ]
        mounts = [f"{path.resolve()}:/opt/lib/{path.name}" for path in libraries]
        own = found.agent
        environ = {**own.environ, "LD_LIBRARY_PATH": "/opt/lib"}
        return AcpHarness(found.name, replace(own, mounts=[*own.mounts, *mounts], environ=environ))


@only_quick()
@pytest.mark.xdist_group("docker")
class TestOpencodeInContainers(InContainers, Acp, acp.TestOpencode):
    pass
