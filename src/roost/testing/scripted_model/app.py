"""The scripted model as an ASGI application."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import msgspec
import uvicorn
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from roost.domain.ids import mint
from roost.testing.scripted_model.messages import Messages, count_tokens
from roost.testing.scripted_model.responses import Responses
from roost.testing.scripted_model.script import Cue, Fault, Step, cue
from roost.testing.scripted_model.wire import Json, Wire

_MAX_BODY = 32 * 1024 * 1024  # the real API's limit
_MAX_FAULTS = 10_000
_MAX_KEPT = 64 * 1024 * 1024  # bytes of requests
_MESSAGES = Messages()
_WIRES: Mapping[str, Wire] = {"/v1/messages": _MESSAGES, "/v1/responses": Responses()}

_MODEL = {
    "type": "model",
    "object": "model",
    "id": "scripted",
    "display_name": "Scripted model",
    "created_at": "2026-01-01T00:00:00Z",
    "lifecycle": "active",
}
_MODELS = {  # both APIs list their models at this path, and neither minds the other's fields
    "object": "list",
    "data": [_MODEL],
    "models": [],
    "has_more": False,
    "first_id": "scripted",
    "last_id": "scripted",
}


class SeenRequest(msgspec.Struct, frozen=True):
    """A request the model was sent, for tests that want to look at it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Json
    size: int


class ScriptedModel:
    """Plays scripts. Keeps the newest requests, up to `keep`, and how often a scripted failure was
    met; nothing else.
    """

    def __init__(self, *, require_key: str | None = None, keep: int = 200) -> None:
        self.requests: deque[SeenRequest] = deque()
        self._keep = keep
        self._require_key = require_key
        self._faults: OrderedDict[tuple[str, int], int] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see ASGI."""
        if scope["type"] == "http":
            try:
                await self._answer(Request(scope, receive), send)
            except ClientDisconnect:
                return

    async def _answer(self, request: Request, send: Send) -> None:
        path, method = request.url.path.rstrip("/"), request.method
        wire = _WIRES.get(path, _MESSAGES)
        raw = await _raw_body(request)
        body = _parsed(raw)
        said = body if isinstance(body, dict) else {}
        self._remember(SeenRequest(method, path, dict(request.headers), said, len(raw)))
        if not self._admits(request.headers):
            await _refuse(send, wire, Fault(401, message="invalid x-api-key"))
        elif method == "GET" and path == "/v1/models":
            await _send_json(send, 200, _MODELS)
        elif method != "POST" or path not in (*_WIRES, "/v1/messages/count_tokens"):
            await _refuse(send, wire, Fault(404, message=f"{method} {path} is not served here"))
        elif isinstance(body, Fault):
            await _refuse(send, wire, body)
        elif path in _WIRES:
            await self._play(wire, body, request.receive, send)
        else:
            await _send_json(send, 200, count_tokens(body))

    def _remember(self, seen: SeenRequest) -> None:
        self.requests.append(seen)
        while (
            len(self.requests) > self._keep or sum(seen.size for seen in self.requests) > _MAX_KEPT
        ):
            self.requests.popleft()

    def _admits(self, headers: Headers) -> bool:
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        return self._require_key is None or key == self._require_key

    async def _play(self, wire: Wire, body: Json, receive: Receive, send: Send) -> None:
        if problem := wire.problem(body):
            await _refuse(send, wire, Fault(400, message=problem))
            return
        chosen = cue(wire.turns(body))
        show = _stream if body.get("stream") else _show

        async def perform() -> None:
            await anyio.sleep(chosen.step.delay)
            if fault := self._fault_due(chosen):
                await _refuse(send, wire, fault)
            else:
                await show(wire, chosen.step, body, send)

        await _while_connected(receive, perform)

    def _fault_due(self, chosen: Cue) -> Fault | None:
        """The failure, if this try is one that fails. After the last one the count is forgotten,
        so that the same script fails the same way when it is sent again.
        """
        fault, key = chosen.step.error, chosen.key
        if fault is None or key is None or fault.times is None:
            return fault
        tries = self._faults.pop(key, 0) + 1
        if tries > fault.times:
            return None
        self._faults[key] = tries
        if len(self._faults) > _MAX_FAULTS:
            self._faults.popitem(last=False)
        return fault


def scripted_model(*, require_key: str | None = None, keep: int = 200) -> ScriptedModel:
    """The scripted model, to be served by any ASGI server."""
    return ScriptedModel(require_key=require_key, keep=keep)


def run(host: str = "127.0.0.1", port: int = 8765, *, require_key: str | None = None) -> None:
    """Serve the scripted model until the process is told to stop."""
    uvicorn.run(scripted_model(require_key=require_key, keep=0), host=host, port=port)


async def _raw_body(request: Request) -> bytes:
    """The body; no more of it than it takes to see that it is too large."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _MAX_BODY:
            break
    return bytes(raw)


def _parsed(raw: bytes) -> Json | Fault:
    """The body, or why the real API would not look at it."""
    if len(raw) > _MAX_BODY:
        return Fault(413, message="Request exceeds the maximum size")
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError as error:
        return Fault(400, message=f"the body is not a JSON object: {error}")


async def _while_connected(receive: Receive, perform: Callable[[], Awaitable[None]]) -> None:
    """Stop as soon as the client is gone, as a real model does when it is interrupted."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await perform()
        tasks.cancel_scope.cancel()


async def _show(wire: Wire, step: Step, body: Json, send: Send) -> None:
    raw = msgspec.json.encode(wire.whole(step, body))
    await _start(send, 200, {"content-type": "application/json", "content-length": str(len(raw))})
    cut = step.cut is not None
    # Less than was announced, and nothing more: the server breaks the connection.
    await _send_part(send, raw[: len(raw) // 2] if cut else raw, more=cut)


async def _stream(wire: Wire, step: Step, body: Json, send: Send) -> None:
    headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    await _start(send, 200, headers)
    shown = 0
    for frame in wire.frames(step, body):
        if step.cut is not None and shown >= step.cut:
            return  # without an end, so that the server breaks the connection
        if frame.text and shown:
            await anyio.sleep(step.chunk_delay)
        await _send_part(send, frame.data, more=True)
        shown += frame.text
    await _send_part(send, b"", more=False)


async def _refuse(send: Send, wire: Wire, fault: Fault) -> None:
    body = wire.error(fault.status, fault.type, fault.message)
    await _send_json(send, fault.status, body, fault.headers)


async def _send_json(
    send: Send, status: int, body: object, headers: Mapping[str, str] | None = None
) -> None:
    raw = msgspec.json.encode(body)
    size = {"content-type": "application/json", "content-length": str(len(raw))}
    await _start(send, status, {**(headers or {}), **size})
    await _send_part(send, raw, more=False)


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    named = {"request-id": mint("req"), **headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def _send_part(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
