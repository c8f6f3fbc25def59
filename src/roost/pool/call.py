"""One request to a pool on its way through, and what may go wrong with it, in that API's own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, quote

import msgspec
from starlette.responses import Response

from roost.api.framework.call import ApiCall, decoded
from roost.api.framework.errors import status_of
from roost.core.pools.executions import PoolExecutions
from roost.core.pools.identifiers import PoolSessions
from roost.core.workspaces.browse import Browse
from roost.domain.session import Session
from roost.errors import InvalidRequest, RateLimited, RoostError
from roost.ports.catalog import Record

_VERSION: Final = re.compile(r"(\d{4}-\d\d-\d\d)(-preview)?")
_FLAT_FROM: Final = "2024-10-01"
"""Versions from then on have flat answers; those before, and requests without a version, wrapped ones."""

CODES: Final = {
    400: "SessionRequestValidationFailed",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    413: "RequestEntityTooLarge",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}


class PoolError(Exception):
    """An answer that is an error with a code of that API's own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True)
class PoolParts:
    """What the operations of pools are made of."""

    sessions: PoolSessions
    executions: PoolExecutions
    browse: Browse
    counted: Callable[[str, str], None]
    """Count an execution, for Prometheus: its kind, and what came of it."""


@dataclass
class PoolCall:
    """A request, once it is known who asks, and of which pool. `rest` is the path below the pool's own."""

    call: ApiCall
    parts: PoolParts
    pool: Record
    rest: str
    query: Mapping[str, list[str]]
    is_flat: bool
    body: dict[str, Any]

    @property
    def method(self) -> str:
        """The request's method."""
        return str(self.call.scope["method"])

    def one(self, name: str) -> str:
        """A parameter of the query; "" if it is not there."""
        return self.query.get(name, [""])[-1]

    @property
    def identifier(self) -> str:
        """Which session is meant: it is in the query, in a header or in the body. :raises InvalidRequest:"""
        inner = self.body.get("properties")
        places = (
            self.one("identifier"),
            self.call.headers.get("identifier"),
            self.body.get("identifier"),
            inner.get("identifier") if isinstance(inner, dict) else None,
        )
        found = next((place for place in places if place), None)
        if not isinstance(found, str):
            raise InvalidRequest("identifier: give one, as a parameter of the query")
        return found

    async def session(self) -> Session:
        """The session of the identifier, made if there is none."""
        key = self.call.key
        _, session = await self.parts.sessions.opened(key, self.pool, self.identifier)
        return session

    def url(self, rest: str) -> str:
        """The whole address of something of the same pool, with this identifier."""
        host = self.call.headers.get("host", "localhost")
        path = str(self.call.scope["path"]).removesuffix(self.rest)
        version = self.one("api-version")
        added = f"&api-version={quote(version)}" if version else ""
        return (
            f"{self.call.scope['scheme']}://{host}{quote(path)}{quote(rest)}"
            f"?identifier={quote(self.identifier, safe='')}{added}"
        )


def query_in(scope_query: bytes) -> dict[str, list[str]]:
    """The parameters of a request. :raises InvalidRequest:"""
    try:
        found = parse_qs(
            scope_query.decode("ascii"), keep_blank_values=True, max_num_fields=50, errors="strict"
        )
    except ValueError:
        raise InvalidRequest("the query string is not valid") from None
    for name, values in found.items():
        if "\0" in name or any("\0" in value for value in values):
            raise InvalidRequest("the query string must not contain NUL characters")
    return found


def is_flat(query: Mapping[str, list[str]]) -> bool:
    """Whether the request is of the newer generation. :raises InvalidRequest: that is no version"""
    version = query.get("api-version", [""])[-1]
    if not version:
        return False
    known = _VERSION.fullmatch(version)
    if known is None:
        raise InvalidRequest(
            f"api-version: {version[:40]!r} is no version; one is `2025-10-02-preview`"
        )
    return known[1] >= _FLAT_FROM


async def body_of(call: ApiCall, receive: Any) -> dict[str, Any]:
    """The object that a request has as its body. :raises InvalidRequest: it is none"""
    raw = await call.read(receive, call.deps.settings.max_body_bytes)
    found = decoded(raw, call.headers)
    if not isinstance(found, dict):
        raise InvalidRequest("the body is not a JSON object")
    return found


def refusal(error: RoostError | PoolError) -> Response:
    """An error as that API tells it."""
    headers: dict[str, str] = {}
    if isinstance(error, PoolError):
        status, code, message = error.status, error.code, error.message
    else:
        status = status_of(error)[0]
        code = CODES.get(status, "InternalServerError")
        message = f"{error.message} {error.hint}" if error.hint else error.message
        if isinstance(error, RateLimited):
            headers["retry-after"] = str(max(1, round(error.retry_after)))
    body = {"error": {"code": code, "message": message}}
    headers["x-ms-error-code"] = code
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
