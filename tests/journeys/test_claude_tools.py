"""MCP servers and skills of a real agent in a real sandbox, through the real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from anyio.from_thread import start_blocking_portal
from tests.harnesses.claude_session import docs_server
from tests.journeys.chat import Chat, bash, client_of, printed, said, script

from roost.serve.http import listening
from roost.testing.live import LiveServer

HOST = "127.0.0.2"  # a loopback address that no program takes for its own machine's


@pytest.fixture
def mcp_server() -> Iterator[str]:
    """An MCP server in the operator's own network."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(listening(docs_server, HOST, 0)) as url,
    ):
        yield url


def mcp_agent(url: str) -> dict[str, Any]:
    allow = {"enabled": True, "permission_policy": {"type": "always_allow"}}
    toolset = {"type": "mcp_toolset", "mcp_server_name": "docs", "default_config": allow}
    server = {"type": "url", "name": "docs", "url": f"{url}/mcp"}
    return {"tools": [{"type": "agent_toolset_20260401"}, toolset], "mcp_servers": [server]}


def test_an_agent_reaches_its_mcp_server_where_operator_and_environment_allow_it(
    tmp_path: Path, mcp_server: str
):
    step = {"tool": "mcp__docs__find", "input": {"what": "it"}}
    port = urlsplit(mcp_server).port
    rules = {"ROOST_EGRESS_NETWORKS": f"{HOST}/32", "ROOST_EGRESS_PORTS": f"80,443,{port}"}
    with LiveServer(tmp_path / "data", **rules) as server:
        agent = mcp_agent(mcp_server)
        chat = Chat(server, networking={"type": "limited", "allow_mcp_servers": True}, agent=agent)
        fronting = (
            f"curl -skS --connect-to b.example:{port}:{HOST}:{port} https://b.example:{port}/"
        )
        events = chat.turn(script(step, bash(fronting), {"text": "Done."}))
        (error,) = [event.error.message for event in events if event.type == "session.error"]
        assert error == (
            f"the sandbox may not reach b.example:{port}: server_name_not_allowed. It connected to "
            f"{HOST} and asked there, by TLS, for b.example. If it may, add that name to the "
            "environment's `allowed_hosts`."
        )
        assert any("access denied" in output for output in printed(events))
        (call,) = [event for event in events if event.type == "agent.mcp_tool_use"]
        assert (call.mcp_server_name, call.name) == ("docs", "find")
        (result,) = [event for event in events if event.type == "agent.mcp_tool_result"]
        assert result.content[0].text == "found"
        assert said(events) == ["Done."]

        apart = Chat(server, networking={"type": "limited"}, agent=agent)
        events = apart.turn(script({"text": "Without it."}))
        errors = [event.error for event in events if event.type == "session.error"]
        assert f"the sandbox may not reach {HOST}:{port}: host_not_allowed" in [
            error.message for error in errors
        ]
        assert "docs" in [getattr(error, "mcp_server_name", None) for error in errors]
        assert said(events) == ["Without it."]


MANIFEST = """---
name: greeting
description: How to greet people here.
allowed-tools: Bash
---
Say KUMQUAT; the shell says !`echo $((40+2))`. The words are in words.txt.
"""


def test_an_agent_finds_its_skill_in_the_sandbox_and_uses_it(tmp_path: Path):
    with LiveServer(tmp_path / "data") as server:
        client = client_of(server)
        files = [("greeting/SKILL.md", MANIFEST.encode()), ("greeting/words.txt", b"Good day.")]
        skill = client.beta.skills.create(files=files)
        chat = Chat(server, agent={"skills": [{"type": "custom", "skill_id": skill.id}]})
        assert chat.session.agent.skills[0].version == skill.latest_version_id
        uses = {"tool": "Skill", "input": {"skill": "greeting"}}
        words = "/run/roost/agent/skills/greeting/words.txt"
        tries = bash(f"cat {words}; echo no > {words}; echo no > {words}.new; true")
        events = chat.turn(script(uses, tries, {"text": "Done."}))
        calls = [event for event in events if event.type == "agent.tool_use"]
        assert [call.name for call in calls] == ["Skill", "bash"]
        assert calls[0].evaluated_permission == "allow"
        loaded, shown = printed(events)
        assert "greeting" in loaded
        assert shown.startswith("Good day.")
        assert shown.count("Read-only file system") == 2
        assert said(events) == ["Done."]
        transcript = "".join(
            path.read_text() for path in chat.home.glob(".claude/projects/-workspace/*.jsonl")
        )
        assert "Say KUMQUAT; the shell says [shell command" in transcript

        client.beta.skills.delete(skill.id)
        assert server.stop() == 0
        server.start()
        events = chat.turn(script({"text": "Without it."}))
        (error,) = [event.error for event in events if event.type == "session.error"]
        assert error.message.endswith("no longer exists; the agent works without it")
        assert said(events) == ["Without it."]
