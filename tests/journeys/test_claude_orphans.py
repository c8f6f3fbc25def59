"""Agents that outlive their server for a moment, and take its end for an answer to what they have asked."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import pytest
from anyio.from_thread import start_blocking_portal
from tests.harnesses.claude_session import docs_server
from tests.hostile.probed_sandbox import need_bubblewrap
from tests.journeys.chat import Chat, bash, client_of, said, script
from tests.journeys.engines import Docker, Lingering

from roost.serve.http import listening
from roost.testing.live import LiveServer

HOST = "127.0.0.2"  # a loopback address that no program takes for its own machine's
CHOICES = [{"label": "Blue", "description": "b"}, {"label": "Red", "description": "r"}]
QUESTION = {"question": "Which?", "header": "H", "multiSelect": False, "options": CHOICES}
STEPS = [
    bash("echo yes >> allowed.txt"),
    {"tool": "AskUserQuestion", "input": {"questions": [QUESTION]}},
    {"tool": "lookup", "input": {"what": "it"}},
    {"tool": "mcp__docs__find", "input": {"what": "it"}},
]
_ASK = {"enabled": True, "permission_policy": {"type": "always_ask"}}
_LOOKUP = {
    "type": "custom",
    "name": "lookup",
    "description": "Looks something up.",
    "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
}


@pytest.fixture
def mcp_url() -> Iterator[str]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(listening(docs_server, HOST, 0)) as url,
    ):
        yield url


@pytest.fixture(
    params=[
        "bubblewrap",
        pytest.param("docker", marks=[pytest.mark.chaos, pytest.mark.xdist_group("docker")]),
    ]
)
def engine(request: pytest.FixtureRequest) -> Iterator[Lingering | Docker]:
    """Sandboxes that do not end with the server. Input of a command in a container does not, either."""
    if request.param == "docker":
        yield Docker(request.getfixturevalue("docker"))
        return
    need_bubblewrap()
    with tempfile.TemporaryDirectory(prefix="roost-bwrap-") as name:
        Path(name).chmod(0o755)
        yield Lingering(Path(name))


def asking_agent(url: str) -> dict[str, Any]:
    built_in = {"type": "agent_toolset_20260401", "default_config": _ASK}
    mcp = {"type": "mcp_toolset", "mcp_server_name": "docs", "default_config": _ASK}
    servers = [{"type": "url", "name": "docs", "url": f"{url}/mcp"}]
    return {"tools": [built_in, mcp, _LOOKUP], "mcp_servers": servers}


def answer_to(event: Any) -> dict[str, Any]:
    if event.type == "agent.custom_tool_use":
        said = [{"type": "text", "text": "Blue"}]
        named = {"custom_tool_use_id": event.id}
        return {"type": "user.custom_tool_result", **named, "content": said}
    return {"type": "user.tool_confirmation", "tool_use_id": event.id, "result": "allow"}


def until_written(chat: Chat, count: int) -> None:
    """Until the CLI has taken so many calls down, which it does a moment after it asks."""
    files = (chat.home / ".claude/projects/-workspace").glob
    deadline = time.monotonic() + 60
    while True:
        lines = [line for file in files("*.jsonl") for line in file.read_text().splitlines()]
        spoken = [line for line in lines if '"role":"assistant"' in line and '"tool_use"' in line]
        if len(spoken) >= count:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(name: str) -> bool:
    """Whether there is an agent that works on the conversation of that name."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"={name}\0".encode() in process.read_bytes():
                return True
    return False


def until_it_took_that_for_an_answer(chat: Chat, name: str) -> None:
    """Unless it is gone already: whatever server starts next on this machine ends it."""
    files = (chat.home / ".claude/projects/-workspace").glob
    deadline = time.monotonic() + 60
    while not any('"is_error":true' in file.read_text() for file in files("*.jsonl")) and runs(
        name
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("steps", [STEPS[2:3], pytest.param(STEPS, marks=pytest.mark.chaos)])
def test_what_waits_outlives_killed_servers_and_is_answered_once(
    tmp_path: Path, mcp_url: str, engine: Lingering | Docker, steps: list[dict[str, Any]]
):
    port = urlsplit(mcp_url).port
    rules = {"ROOST_EGRESS_NETWORKS": f"{HOST}/32", "ROOST_EGRESS_PORTS": f"80,443,{port}"}
    server = LiveServer(tmp_path / "data", **rules, **engine.environ)
    server.prefix = engine.prefix
    with server:
        reach = {"type": "limited", "allow_mcp_servers": True}
        chat = Chat(server, networking=reach, agent=asking_agent(mcp_url))
        chat.send(script(*steps, {"text": "Done."}))
        for number in range(1, len(steps) + 1):
            chat.wait_for("session.status_idle", number)
            *_, idle = chat.events()
            name = chat.fields()["sdk_session_id"]
            until_written(chat, number)
            server.kill()
            if isinstance(engine, Lingering):
                until_it_took_that_for_an_answer(chat, name)
            server.start()
            somebody = client_of(server)
            events = somebody.beta.sessions.events
            (asked,) = [e for e in chat.events() if e.id in idle.stop_reason.event_ids]
            events.send(chat.session.id, events=[answer_to(asked)])
            with pytest.raises(anthropic.BadRequestError, match="is not waiting"):
                events.send(chat.session.id, events=[answer_to(asked)])
        chat.wait_for("session.status_idle", len(steps) + 1)
        events = chat.events()
        calls = [event.id for event in events if event.type.endswith("tool_use")]
        assert len(calls) == len(set(calls)) == len(steps)
        assert not any(getattr(event, "is_error", False) for event in events)
        if steps == STEPS:
            assert (chat.home / "allowed.txt").read_text() == "yes\n"
            (found,) = [event for event in events if event.type == "agent.mcp_tool_result"]
            assert found.content[0].text == "found"
        assert said(events) == ["Done."]
