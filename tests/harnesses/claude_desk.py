"""The real claude CLI at a desk: what its tests share."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.harnesses.housed import Housed
from tests.parts import need

from roost.domain.events import Draft, Entry
from roost.errors import RoostError
from roost.harnesses.claude import ClaudeHarness, bundled_cli
from roost.ports.harness import Conversation, Emit, Output
from roost.serve.http import listening
from roost.testing.desk import AGENT, Desk, Watch
from roost.testing.scripted_model import ScriptedModel

END = {"type": "end_turn"}


class Served(ScriptedModel):
    url = ""

    def last_request(self) -> str:
        return json.dumps(self.requests[-1].body, ensure_ascii=False)


class Board(Desk):
    """A desk whose client can also give and refuse permission."""

    def confirm(self, event_id: str, result: str = "allow", **fields: str) -> Entry:
        self.pending = [pending for pending in self.pending if pending.event_id != event_id]
        given = {"tool_use_id": event_id, "result": result, **fields}
        return self._write(Draft.of("user.tool_confirmation", **given), queued=True)

    def change_agent(self, agent: dict[str, Any]) -> None:
        """As an update of the session does."""
        self._session = replace(self._session, spec=replace(self._session.spec, agent=agent))

    def told(self) -> list[str]:
        """The types of what was said and done, in order."""
        return [type for type, _ in self.conversation]


def installed_cli() -> Path:
    """The CLI, or the reason why its tests cannot run."""
    try:
        return bundled_cli()
    except RoostError as error:
        need("the claude CLI", None, f"uv pip install claude-agent-sdk==0.2.182 ({error})")
        raise


@asynccontextmanager
async def serving() -> AsyncGenerator[Served, None]:
    """The scripted model on a port of its own."""
    model = Served()
    async with listening(model, "127.0.0.1", 0) as model.url:
        yield model


def housed(model: Served, root: Path) -> Housed:
    """The CLI in plain processes, talking to that model."""
    environ = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "placeholder"}
    return Housed(ClaudeHarness(installed_cli(), mounted=False, environ=environ, retries=2), root)


def agent(policy: str = "always_allow", *configs: dict[str, Any]) -> dict[str, Any]:
    """An agent with the built-in tools, all under one policy, and a custom one."""
    toolset = {
        "type": "agent_toolset_20260401",
        "default_config": {"enabled": True, "permission_policy": {"type": policy}},
        "configs": list(configs),
    }
    return {**AGENT, "tools": [*AGENT["tools"], toolset]}


def bash(command: str) -> dict[str, Any]:
    return {"tool": "Bash", "input": {"command": command}}


def once(matches: Callable[[Output], bool], act: Callable[[], Any]) -> Watch:
    """Does something at the first output that matches."""
    done: list[Output] = []

    async def watch(_: Conversation, output: Output) -> None:
        if not done and matches(output):
            done.append(output)
            await anyio.sleep(0.3)  # so that what the output announces is under way
            act()

    return watch


async def appears(path: Path, word: str = "") -> None:
    """Wait until somebody has made that file, and the word is in it."""
    file = anyio.Path(path)
    while not (await file.exists() and (not word or word in await file.read_text())):  # noqa: ASYNC110 - another's
        await anyio.sleep(0.02)


def emits(type: str) -> Callable[[Output], bool]:
    return lambda output: isinstance(output, Emit) and output.drafts[0].type == type


def config(name: str, *, enabled: bool = True, policy: str = "always_allow") -> dict[str, Any]:
    return {
        "name": name,
        "type": name,
        "enabled": enabled,
        "permission_policy": {"type": policy},
    }


def spans_are_paired(desk: Desk) -> bool:
    starts = [entry.id for entry in desk.events("span.model_request_start")]
    ends = [e.fields["model_request_start_id"] for e in desk.events("span.model_request_end")]
    return bool(starts) and starts == ends


def with_servers(servers: dict[str, str]) -> dict[str, Any]:
    """An agent with MCP servers: name to address."""
    default = {"enabled": True, "permission_policy": {"type": "always_ask"}}
    toolsets = [
        {"type": "mcp_toolset", "mcp_server_name": n, "default_config": default, "configs": []}
        for n in servers
    ]
    listed = [{"type": "url", "name": name, "url": url} for name, url in servers.items()]
    return {**AGENT, "tools": toolsets, "mcp_servers": listed}


async def _mcp(request: Request) -> Response:
    if request.method != "POST":
        return Response(status_code=405)
    message = await request.json()
    if "id" not in message:
        return Response(status_code=202)
    tool = {"name": "find", "description": "Finds.", "inputSchema": {"type": "object"}}
    result = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "docs", "version": "1"},
        },
        "tools/list": {"tools": [tool]},
        "tools/call": {"content": [{"type": "text", "text": "found"}], "isError": False},
    }.get(message["method"], {})
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})


docs_server = Starlette(routes=[Route("/mcp", _mcp, methods=["GET", "POST", "DELETE"])])
"""An MCP server with one tool."""
