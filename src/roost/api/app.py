"""The HTTP surface as one ASGI application.

A request passes these steps, each of which only adds one thing and calls the next:
`Api` → `_answer_every_error` → `_answer_who_may_ask` → the operation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roost.api.access.auth import caller, check_headers, known_caller
from roost.api.access.headers import RequestHeaders
from roost.api.access.origins import check_change
from roost.api.framework.call import ApiCall, ClientGone, decoded
from roost.api.framework.deps import Deps
from roost.api.framework.errors import refusal
from roost.api.framework.replies import WHOLE_ANSWER, JsonBytes, TakeWhole
from roost.api.framework.routes import Operation, Routes
from roost.api.operations import OPERATIONS
from roost.errors import RoostError
from roost.ids import mint

_log = logging.getLogger(__name__)
_OPEN_BODY: Final = 4 * 1024  # bytes, of a request that needs no key


def build_app(deps: Deps) -> ASGIApp:
    """The application, with every handler given the parts that it needs. :raises LookupError: one is missing"""
    return Api(deps, Routes(operation.with_parts(deps.services) for operation in OPERATIONS))


class Api:
    """Answers HTTP requests; declines everything else."""

    def __init__(self, deps: Deps, routes: Routes) -> None:
        self._deps = deps
        self._routes = routes

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request, refuse one WebSocket, or accompany one lifespan."""
        if scope["type"] == "http":
            return self._answer_every_error(scope, receive, send)
        if scope["type"] == "websocket":
            return send({"type": "websocket.close", "code": 1000})
        return _lifespan(receive, send)

    async def _answer_every_error(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = ApiCall(self._deps, scope, mint("req"), RequestHeaders(scope["headers"]), {}, {}, {})
        answer = _Answer(send, call)
        response: ASGIApp
        try:
            response = await self._answer_who_may_ask(call, answer, receive)
        except RoostError as error:
            response = refusal(error, call.request_id)
        except ClientGone:
            return  # nobody is left to answer
        except Exception:  # noqa: BLE001 - whatever it is, the client gets the envelope
            _log.exception("request failed", extra={"action": "answer", "request": call.request_id})
            response = refusal(RoostError(), call.request_id)
        if not (isinstance(response, JsonBytes) and answer.at_once(response.body)):
            await response(scope, receive, answer)

    async def _answer_who_may_ask(
        self, call: ApiCall, answer: _Answer, receive: Receive
    ) -> ASGIApp:
        operation, call.params = self._routes.find(call.scope["method"], call.scope["path"])
        answer.operation = operation.name
        if not operation.open:
            call.caller = known_caller(self._deps.keyring, call.headers)
            if not (
                call.caller
                and self._deps.rates.count_held(call.caller, operation.kind, answer.headers)
            ):
                await self._admit(call, operation, answer)
            if operation.official and operation.served:
                tenant, beta, refuses = call.tenant, operation.beta, operation.refuses
                check_headers(call.headers, tenant, beta=beta, refuses=refuses)
        if not operation.served:  # whatever the request says: nothing in it could be right
            return await operation.handler(call)
        call.query = operation.query.parse(call.scope["query_string"])
        if operation.uploads:
            call.receive = receive
        try:
            if operation.body is not None:
                most = self._deps.settings.max_body_bytes
                limit = min(most, _OPEN_BODY) if operation.open else most
                whole = call.whole(limit)
                call.raw = await call.read(receive, limit) if whole is None else whole
                call.body = operation.body.parse(decoded(call.raw, call.headers))
            return await operation.handler(call)
        finally:
            call.forget()

    async def _admit(self, call: ApiCall, operation: Operation, answer: _Answer) -> None:
        """Ask the database who calls, unless that is known, and whether there is a token for it."""
        deps = self._deps
        if call.caller is None and (worker := await deps.workers.recognise(call.headers)):
            call.caller, call.worker = worker.caller, worker
            await deps.workers.check(worker, operation.name, call.params)
        if call.caller is None:
            call.caller, call.login = await caller(deps.keyring, deps.logins, call.headers)
        if call.login is not None:
            allowed = deps.settings.allowed_origins
            check_change(operation.method, call.headers, call.scope["scheme"], allowed)
        await deps.rates.count(call.caller, operation.kind, answer.headers)


class _Answer:
    """Sends a response on, with the headers that every response has."""

    def __init__(self, send: Send, call: ApiCall) -> None:
        self._send = send
        self._call = call
        self._asked = time.perf_counter()
        self.headers = {"request-id": call.request_id}
        self.operation = "none"

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._count(message["status"])
            own = [(name.encode(), value.encode()) for name, value in self.headers.items()]
            message = {**message, "headers": [*message["headers"], *own]}
        await self._send(message)

    def at_once(self, body: bytes) -> bool:
        """Send a whole answer of JSON, if the server takes one; else it has to be sent as usual."""
        scope = self._call.scope
        extensions = scope.get("extensions")
        take: TakeWhole | None = extensions and extensions.get(WHOLE_ANSWER)
        if take is None:
            return False
        own = "\r\n".join(map(": ".join, self.headers.items()))
        head = f"content-length: {len(body)}\r\ncontent-type: application/json\r\n{own}\r\n\r\n"
        if not take(scope, head.encode("latin-1"), body):
            return False
        self._count(200)
        return True

    def _count(self, status: int) -> None:
        seconds = time.perf_counter() - self._asked
        self._call.deps.meters.answered(self.operation, status, seconds)


async def _lifespan(receive: Receive, send: Send) -> None:
    """A lifespan in which nothing is to be done: what this needs is opened by who builds it."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
