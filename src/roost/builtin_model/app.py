"""The built-in model as an ASGI application."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from roost.builtin_model.dialect import Json, ModelDialect
from roost.builtin_model.messages import MessagesDialect, count_tokens
from roost.builtin_model.responses import ResponsesDialect
from roost.builtin_model.script import Cue, Fault, Step, cue
from roost.ids import mint

_MAX_BODY = 32 * 1024 * 1024  # the real API's limit
_MAX_FAULTS = 10_000
_MESSAGES = MessagesDialect()
_DIALECTS: Mapping[str, ModelDialect] = {
    "/v1/messages": _MESSAGES,
    "/v1/responses": ResponsesDialect(),
}

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
    """A request the model was sent; its body is empty if it is no JSON object."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Json
    size: int


class BuiltinModel:
    """Plays scripts. Keeps how often a scripted failure was met, and nothing else."""

    def __init__(self) -> None:
        self._faults: OrderedDict[tuple[str, int], int] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see ASGI."""
        if scope["type"] == "http":
            try:
                await self._answer(Request(scope, receive), send)
            except ClientDisconnect:
                return

    def seen(self, request: SeenRequest) -> Fault | None:
        """Called for every request before it is answered; with a fault it is refused."""
        return None

    async def _answer(self, request: Request, send: Send) -> None:
        path, method = request.url.path.rstrip("/"), request.method
        dialect = _DIALECTS.get(path, _MESSAGES)
        raw = await _raw_body(request)
        body = _parsed(raw)
        said = body if isinstance(body, dict) else {}
        seen = SeenRequest(method, path, dict(request.headers), said, len(raw))
        if (refusal := self.seen(seen)) is not None:
            await _refuse(send, dialect, refusal)
        elif method == "GET" and path == "/v1/models":
            await _send_json(send, 200, _MODELS)
        elif method != "POST" or path not in (*_DIALECTS, "/v1/messages/count_tokens"):
            await _refuse(send, dialect, Fault(404, message=f"{method} {path} is not served here"))
        elif isinstance(body, Fault):
            await _refuse(send, dialect, body)
        elif path in _DIALECTS:
            await self._play(dialect, body, request.receive, send)
        else:
            await _send_json(send, 200, count_tokens(body))

    async def _play(self, dialect: ModelDialect, body: Json, receive: Receive, send: Send) -> None:
        if problem := dialect.problem(body):
            await _refuse(send, dialect, Fault(400, message=problem))
            return
        chosen = cue(dialect.turns(body))
        show = _stream if body.get("stream") else _show

        async def perform() -> None:
            await anyio.sleep(chosen.step.delay)
            if fault := self._fault_due(chosen):
                await _refuse(send, dialect, fault)
            else:
                await show(dialect, chosen.step, body, send)

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


async def _show(dialect: ModelDialect, step: Step, body: Json, send: Send) -> None:
    raw = msgspec.json.encode(dialect.whole(step, body))
    await _start(send, 200, {"content-type": "application/json", "content-length": str(len(raw))})
    cut = step.cut is not None
    # Less than was announced, and nothing more: the server breaks the connection.
    await _send_part(send, raw[: len(raw) // 2] if cut else raw, more=cut)


async def _stream(dialect: ModelDialect, step: Step, body: Json, send: Send) -> None:
    headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
    await _start(send, 200, headers)
    shown = 0
    for frame in dialect.frames(step, body):
        if step.cut is not None and shown >= step.cut:
            return  # without an end, so that the server breaks the connection
        if frame.text and shown:
            await anyio.sleep(step.chunk_delay)
        await _send_part(send, frame.data, more=True)
        shown += frame.text
    await _send_part(send, b"", more=False)


async def _refuse(send: Send, dialect: ModelDialect, fault: Fault) -> None:
    body = dialect.error(fault.status, fault.type, fault.message)
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
