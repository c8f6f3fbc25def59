"""The real claude CLI in the default sandbox, with nothing but a socket that leads to the model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import anyio
import pytest
import uvicorn
from msgspec.structs import replace
from tests.harnesses.claude_session import END, Board, Served, agent, appears, bash, installed_cli
from tests.parts import need

from roost.errors import SandboxUnavailable
from roost.harnesses.claude import ClaudeHarness
from roost.ports.harness import Brief, Conversation
from roost.ports.sandbox_provider import LocalVolume, Mount, Plan
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.sandboxes.state import default_state
from roost.testing.in_memory_runner import script

SOCKET = "/run/roost/model.sock"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Sandboxed:
    """What the runner does: a sandbox, then the harness in it."""

    name = "claude"

    def __init__(self, provider: BubblewrapProvider, harness: ClaudeHarness, root: Path) -> None:
        self.profile = harness.profile
        self.mounts = harness.mounts
        self.check = harness.check
        self.models = harness.models
        self._provider = provider
        self._harness = harness
        self._root = root
        self._generations = count(1)

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        home = self._root / "home"
        home.mkdir(exist_ok=True)
        plan = Plan(
            session_id=brief.session.id,
            generation=next(self._generations),
            home=LocalVolume(home),
            workspace=LocalVolume(home),
            mounts=[*self._harness.mounts, Mount(self._root / "model.sock", SOCKET, writable=True)],
            environ={
                "ANTHROPIC_UNIX_SOCKET": SOCKET,
                "ANTHROPIC_BASE_URL": "http://localhost",
                "ANTHROPIC_API_KEY": "placeholder",
            },
        )
        async with (
            self._provider.open(plan) as sandbox,
            self._harness.open(replace(brief, sandbox=sandbox)) as conversation,
        ):
            yield conversation


@pytest.fixture
async def sandboxed() -> AsyncGenerator[Sandboxed, None]:
    provider = BubblewrapProvider(data=default_state(), path=os.environ.get("PATH"))
    try:
        await provider.check()
    except SandboxUnavailable as error:
        need("bubblewrap", None, error.hint or str(error))
    harness = ClaudeHarness(installed_cli())
    with tempfile.TemporaryDirectory(prefix="roost-claude-") as name:
        root = Path(name)
        socket = root / "model.sock"
        config = uvicorn.Config(Served(), uds=str(socket), lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server._serve)
            await appears(socket)
            socket.chmod(0o666)
            yield Sandboxed(provider, harness, root)
            server.should_exit = True


async def test_an_agent_works_waits_and_goes_on_in_the_default_sandbox(sandboxed: Sandboxed):
    runner = Board(sandboxed, agent())
    looks = bash("pwd; echo $HOME; echo key=$ANTHROPIC_API_KEY; echo kept > kept.txt")
    assert await runner.run(runner.say(script(looks, {"text": "One."}))) == END
    (result,) = runner.events("agent.tool_result")
    assert result.fields["content"][0]["text"].split() == [
        "/workspace",
        "/home/sandbox",
        "key=placeholder",
    ]
    await runner.run(runner.say(script({"tool": "lookup"}, bash("cat kept.txt"), {"text": "Two."})))
    (call,) = runner.events("agent.custom_tool_use")
    assert await runner.run(runner.answer(call.id, "the result")) == END
    assert runner.events("agent.tool_result")[-1].fields["content"][0]["text"] == "kept"
    assert runner.texts() == ["One.", "Two."]
