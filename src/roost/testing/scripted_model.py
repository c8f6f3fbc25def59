"""The built-in model as a test double: it keeps what it was asked, and may insist on a key.

python -m roost.testing.scripted_model --port 8765
"""

from __future__ import annotations

import socket
from argparse import ArgumentParser
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from roost.builtin_model.app import BuiltinModel, SeenRequest
from roost.builtin_model.script import Fault

_MAX_KEPT = 64 * 1024 * 1024  # bytes of requests


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
"""An MCP server with one tool, `find`."""


class ScriptedModel(BuiltinModel):
    """Keeps the newest `requests`, up to `keep`. With `require_key` it refuses those with another one.

    At `/mcp` it is an MCP server as well (`docs_server`). Whoever serves it notes its `url`.
    """

    url = ""

    def __init__(self, *, require_key: str | None = None, keep: int = 200) -> None:
        super().__init__()
        self.requests: deque[SeenRequest] = deque()
        self._keep = keep
        self._require_key = require_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see ASGI."""
        if scope["type"] == "http" and scope["path"] == "/mcp":
            await docs_server(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def seen(self, request: SeenRequest) -> Fault | None:
        """Remember the request, and refuse it if it has not the key."""
        self.requests.append(request)
        while len(self.requests) > self._keep or sum(r.size for r in self.requests) > _MAX_KEPT:
            self.requests.popleft()
        return None if self._admits(request) else Fault(401, message="invalid x-api-key")

    def _admits(self, request: SeenRequest) -> bool:
        headers = request.headers
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        return self._require_key is None or key == self._require_key


def scripted_model(*, require_key: str | None = None, keep: int = 200) -> ScriptedModel:
    """The scripted model, to be served by any ASGI server."""
    return ScriptedModel(require_key=require_key, keep=keep)


@contextmanager
def in_a_thread(model: ScriptedModel) -> Iterator[None]:
    """Serve it on a free port of this machine, beside a test that has no event loop; notes its `url`."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        model.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(model, log_level="error", lifespan="off"))
        thread = Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield  # the port is bound: who asks before the thread is ready, waits
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def _main() -> None:
    parser = ArgumentParser(prog="roost.testing.scripted_model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--require-key", help="refuse requests that carry another API key")
    options = parser.parse_args()
    model = scripted_model(require_key=options.require_key, keep=0)
    uvicorn.run(model, host=options.host, port=options.port)


if __name__ == "__main__":
    _main()
