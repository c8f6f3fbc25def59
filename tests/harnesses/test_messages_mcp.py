"""The messages harness and MCP servers of the older transport: HTTP with SSE."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import MCPServer
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.egress.both_sides import until
from tests.harnesses.messages_session import MessagesSession

from roost.domain.events import Entry
from roost.serve.http import listening
from roost.testing.in_memory_runner import InMemoryRunner, script, with_mcp
from roost.testing.scripted_model import ScriptedModel

END = {"type": "end_turn"}
FIND = {"tool": "mcp__docs__find", "input": {"what": "it"}}


class Model(ScriptedModel):
    """The model, and an MCP server below `/older`, at one port: sessions reach no other."""

    def __init__(self) -> None:
        super().__init__()
        self.server: ASGIApp = OlderServer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/older"):
            await self.server(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class OlderServer:
    """Speaks the older transport, and can be told to misbehave.

    `calls` counts what was called. `silent`: calls get no answer. `forgets`: that many messages are answered with 404.
    """

    def __init__(self) -> None:
        self.streams = self.calls = self.forgets = 0
        self.silent = False
        self.heard: list[dict[str, Any]] = []
        self._ends = anyio.Event()
        self._send: Send | None = None

    def end(self) -> None:
        """End the stream that is open."""
        self._ends.set()
        self._send = None

    async def say(self, event: str, data: str) -> None:
        assert self._send is not None
        body = f"event: {event}\ndata: {data}\n\n".encode()
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["method"], scope["path"]:
            case "GET", "/older/sse":
                await self._stream(send)
            case "POST", "/older/messages":
                message = json.loads((await receive())["body"])
                self.heard.append(message)
                status = 202
                if self.forgets or scope["query_string"] != b"number=%d" % self.streams:
                    self.forgets, status = max(0, self.forgets - 1), 404
                await _respond(send, status)
                if status == 202 and "id" in message and "method" in message:
                    await self._answer(message)
            case _:
                await _respond(send, 405)

    async def _stream(self, send: Send) -> None:
        self.streams += 1
        ends = self._ends = anyio.Event()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._send = send
        await self.say("endpoint", f"/older/messages?number={self.streams}")
        await ends.wait()
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, message: dict[str, Any]) -> None:
        if message["method"] == "tools/call":
            self.calls += 1
            if self.silent:
                return
        tool = {"name": "find", "description": "Finds.", "inputSchema": {"type": "object"}}
        about = {"name": "docs", "version": "1"}
        result: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2024-11-05",
                "capabilities": {},
                "serverInfo": about,
            },
            "tools/list": {"tools": [tool]},
            "tools/call": {"content": [{"type": "text", "text": f"found {self.calls}"}]},
        }[message["method"]]
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        await self.say("message", json.dumps(answer))


async def _respond(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def model() -> AsyncGenerator[Model, None]:
    model = Model()
    async with listening(model, "127.0.0.1", 0) as model.url:
        yield model


@pytest.fixture
def server(model: Model) -> OlderServer:
    assert isinstance(model.server, OlderServer)
    return model.server


@pytest.fixture
def runner(model: Model, tmp_path: Path) -> InMemoryRunner:
    agent = with_mcp({"docs": f"{model.url}/older/sse"})
    (toolset,) = agent["tools"]
    toolset["default_config"]["permission_policy"] = {"type": "always_allow"}
    return InMemoryRunner(MessagesSession(model.url, tmp_path), agent)


def results(runner: InMemoryRunner) -> list[str]:
    return [_text(entry) for entry in runner.events("agent.mcp_tool_result")]


def _text(entry: Entry) -> str:
    return str(entry.fields["content"][0]["text"])


async def test_a_tool_of_a_real_server_of_the_older_transport_is_called(
    model: Model, runner: InMemoryRunner
) -> None:
    made = MCPServer("docs")

    @made.tool()
    def find(what: str) -> str:
        return f"found {what}"

    app = made.sse_app(sse_path="/older/sse", message_path="/older/messages/", host="127.0.0.1")
    model.server = app
    async with app.router.lifespan_context(app):
        assert await runner.run(runner.say(script(FIND, FIND, {"text": "Done."}))) == END
    assert results(runner) == ["found it", "found it"]
    assert runner.events("session.error") == []


async def test_one_stream_serves_all_calls_and_ends_with_the_conversation(
    server: OlderServer, runner: InMemoryRunner
) -> None:
    both = {"tools": [FIND, FIND]}
    async with runner.open() as conversation:
        await runner.turn(conversation, [runner.say(script(both, {"text": "Done."}))])
        await runner.turn(conversation, [runner.say(script(FIND, {"text": "Done."}))])
    assert sorted(results(runner)) == ["found 1", "found 2", "found 3"]
    assert server.streams == 1
    # A conversation that is opened again knows the tools, and opens a stream only for a call.
    assert await runner.run(runner.say(script({"text": "Done."}))) == END
    assert server.streams == 1


async def test_a_call_whose_stream_ends_is_not_made_again_and_the_next_has_another_stream(
    server: OlderServer, runner: InMemoryRunner
) -> None:
    server.silent = True

    async def end() -> None:
        await until(lambda: server.calls == 1)
        server.silent = False
        server.end()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end)
        assert await runner.run(runner.say(script(FIND, FIND, {"text": "Done."}))) == END
    lost, found = results(runner)
    assert "ended before it answered. Check whether it took effect" in lost
    assert (found, server.calls, server.streams) == ("found 2", 2, 2)


async def test_a_session_that_the_server_has_forgotten_is_begun_again(
    server: OlderServer, runner: InMemoryRunner
) -> None:
    async with runner.open() as conversation:
        await runner.turn(conversation, [runner.say(script(FIND, {"text": "Done."}))])
        server.forgets = 1
        await runner.turn(conversation, [runner.say(script(FIND, {"text": "Done."}))])
    assert results(runner) == ["found 1", "found 2"]
    assert (server.calls, server.streams) == (2, 2)


async def test_a_server_that_asks_whether_anybody_is_there_is_told(
    server: OlderServer, runner: InMemoryRunner
) -> None:
    pong = {"jsonrpc": "2.0", "id": "there?", "result": {}}
    async with runner.open() as conversation:
        await runner.turn(conversation, [runner.say(script(FIND, {"text": "Done."}))])
        await server.say("message", '{"jsonrpc": "2.0", "id": "there?", "method": "ping"}')
        await until(lambda: pong in server.heard)


@pytest.mark.parametrize("path", ["/older/nothing", "/nothing"])
async def test_the_agent_goes_on_without_a_server_that_speaks_neither(
    model: Model, tmp_path: Path, path: str
) -> None:
    agent = with_mcp({"docs": f"{model.url}{path}"})
    runner = InMemoryRunner(MessagesSession(model.url, tmp_path), agent)
    assert await runner.run(runner.say(script({"text": "Done."}))) == END
    (error,) = [entry.fields["error"] for entry in runner.events("session.error")]
    assert error["mcp_server_name"] == "docs"
    assert "it answered 40" in error["message"]
    assert runner.texts() == ["Done."]
