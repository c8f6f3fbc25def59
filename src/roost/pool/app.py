"""Pools as an ASGI application: who asks, for which pool, in which generation of the API."""

from __future__ import annotations

import logging
import re
import time
from typing import Final

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roost.api.access.auth import caller
from roost.api.access.headers import RequestHeaders
from roost.api.access.tokens import SocketTokens
from roost.api.framework.call import ApiCall, ClientGone
from roost.api.framework.deps import Deps
from roost.core.pools.executions import PoolExecutions
from roost.core.pools.identifiers import PoolSessions
from roost.core.pools.pools import Pools
from roost.core.workspaces.browse import Browse
from roost.errors import Forbidden, NotFound, RoostError, Unauthenticated
from roost.ids import mint
from roost.pool import data_plane
from roost.pool.call import PoolCall, PoolError, PoolParts, body_of, is_flat, query_in, refusal
from roost.ports.keys import Key

_log = logging.getLogger(__name__)
_OWN: Final = re.compile(r"/roost/v1/pools/([^/]+)/(.+)", re.DOTALL)
_RESOURCE: Final = re.compile(
    r"/subscriptions/[^/]+/resourcegroups/[^/]+/sessionpools/([^/]+)(?:/(.*))?", re.DOTALL | re.I
)
_SLASHES: Final = re.compile(r"/+")


class PoolRouter:
    """Passes on what is below a pool's own path to pools, and everything else to the rest of the server."""

    def __init__(self, pools: PoolApp, others: ASGIApp) -> None:
        self._pools = pools
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or accompany one connection."""
        found = place_of(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self._others(scope, receive, send)
        else:
            await self._pools.answer(scope, receive, send, *found)


def place_of(path: str) -> tuple[str, str] | None:
    """The name of the pool that a path is below, and the rest of the path; None: it is below none."""
    if not path.startswith(("/roost/v1/pools/", "/subscriptions/")):
        return None
    found = (
        _OWN.fullmatch(_SLASHES.sub("/", path).rstrip("/"))
        if path.startswith("/roost/")
        else _RESOURCE.fullmatch(_SLASHES.sub("/", path).rstrip("/"))
    )
    if found is None:
        return ("", "") if path.startswith("/subscriptions/") else None
    return found[1], found[2] or ""


class PoolApp:
    """Answers requests to pools."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        services = deps.services
        self._pools = services[Pools]
        self._tokens = services[SocketTokens]
        executions = Counter(
            "roost_pool_executions",
            "Executions in pools, by kind and what came of them.",
            ("kind", "outcome"),
            registry=deps.registry,
        )
        self._parts = PoolParts(
            services[PoolSessions],
            services[PoolExecutions],
            services[Browse],
            lambda kind, outcome: executions.labels(kind, outcome).inc(),
        )

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, name: str, rest: str
    ) -> None:
        """Answer one request; whatever goes wrong is told in the shape of that API."""
        call = ApiCall(self._deps, scope, mint("req"), RequestHeaders(scope["headers"]), {}, {}, {})
        added = {"request-id": call.request_id}
        response: ASGIApp
        began = time.perf_counter()
        try:
            response = await self._answered(call, receive, name, rest, added)
        except (RoostError, PoolError) as error:
            response = refusal(error)
        except ClientGone:
            return
        except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer
            _log.exception("request failed", extra={"action": "pool", "request": call.request_id})
            response = refusal(RoostError())
        finally:
            call.forget()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                operation = f"pool.{_operation(rest)}"
                seconds = time.perf_counter() - began
                self._deps.meters.answered(operation, message["status"], seconds)
                own = [(n.encode(), v.encode()) for n, v in added.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        await response(scope, receive, counted)

    async def _answered(
        self, call: ApiCall, receive: Receive, name: str, rest: str, added: dict[str, str]
    ) -> ASGIApp:
        call.caller = await self._caller(call.headers)
        method = call.scope["method"]
        is_read = method in ("GET", "HEAD")
        await self._deps.rates.count(call.caller, "reads" if is_read else "writes", added)
        if "\0" in rest or "\0" in name or not rest:
            raise NotFound(f"there is nothing at {call.scope['path'][:200]!r}")
        query = query_in(call.scope["query_string"])
        flat = is_flat(query)
        pool = await self._pools.named(call.tenant, name)
        pool_call = PoolCall(call, self._parts, pool, rest, query, flat, {})
        if rest in data_plane.UPLOADS and method == "POST":
            call.receive = receive
        elif method == "POST":
            pool_call.body = await body_of(call, receive)
        return await data_plane.answered(pool_call)

    async def _caller(self, headers: RequestHeaders) -> Key:
        """Whose key or token it is. :raises Unauthenticated:"""
        shown = {name: value for name, value in headers.items() if name != "cookie"}
        if "x-ms-apikey" in shown:
            shown.setdefault("x-api-key", shown["x-ms-apikey"])
        try:
            key, _ = await caller(self._deps.keyring, self._deps.logins, shown)
        except Unauthenticated:
            scheme, _, token = shown.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or token.count(".") != 2:
                raise
            claims = self._tokens.read(token.strip())
            if claims.session_id is not None:
                raise Forbidden("this token is for one session, and not for pools") from None
            if claims.login_id is not None:
                return (await self._deps.logins.still(claims.login_id)).key
            return await self._deps.keyring.named(claims.tenant, claims.key_id)
        return key


_NAMED: Final = ("code", "executions", "files", "session", "listSessions", "metadata", "mcp")


def _operation(rest: str) -> str:
    """A word for the metrics: a path of a client's own makes no new one."""
    first = rest.partition("/")[0]
    return "management" if first == ".management" else first if first in _NAMED else "none"
