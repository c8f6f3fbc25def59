"""One table: our errors → HTTP. One envelope for all of them."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
from starlette.responses import Response

from roost.errors import (
    BlobsFailed,
    Conflict,
    DiskFull,
    Forbidden,
    HeadTooLarge,
    HeartbeatMismatch,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    QuotaExceeded,
    RangeRefused,
    RateLimited,
    RequestTooSlow,
    RoostError,
    SandboxUnavailable,
    SnapshotCorrupt,
    TenantStorageFull,
    TooLarge,
    Unauthenticated,
    Unavailable,
)

STATUS: Final[dict[type[RoostError], tuple[int, str]]] = {
    MethodNotAllowed: (405, "invalid_request_error"),
    RangeRefused: (416, "invalid_request_error"),
    InvalidRequest: (400, "invalid_request_error"),
    Unauthenticated: (401, "authentication_error"),
    Forbidden: (403, "permission_error"),
    NotFound: (404, "not_found_error"),
    Conflict: (409, "conflict_error"),
    HeartbeatMismatch: (412, "invalid_request_error"),
    RequestTooSlow: (408, "timeout_error"),
    HeadTooLarge: (431, "request_too_large"),
    TooLarge: (413, "request_too_large"),
    RateLimited: (429, "rate_limit_error"),
    Unavailable: (503, "api_error"),
    SandboxUnavailable: (503, "api_error"),
    BlobsFailed: (503, "api_error"),
    DiskFull: (507, "api_error"),
    TenantStorageFull: (507, "api_error"),
    SnapshotCorrupt: (500, "api_error"),
    RoostError: (500, "api_error"),
}

_DRAIN_SECONDS = 2.0


def status_of(error: RoostError) -> tuple[int, str]:
    """The HTTP status and the API's type of an error: those of its nearest class in the table."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def envelope(error: RoostError, request_id: str) -> dict[str, Any]:
    """The body of every error; in a stream, the data of an `error` frame."""
    details: dict[str, Any] = {"error_code": error.code}
    details |= {"hint": error.hint} if error.hint else {}
    if isinstance(error, HeartbeatMismatch):
        details["current_state"] = error.lease
    return {
        "type": "error",
        "error": {"type": status_of(error)[1], "message": error.message, "details": details},
        "request_id": request_id,
    }


def refusal(error: RoostError, request_id: str) -> Response:
    """The error as a response. Clients repeat 409, 429 and 5xx unless told that it is no use."""
    status, _ = status_of(error)
    headers = {}
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    if isinstance(error, RateLimited) and not isinstance(error, QuotaExceeded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    elif isinstance(error, Unavailable | BlobsFailed) and status == 503:
        headers["retry-after"] = str(math.ceil(_DRAIN_SECONDS))
    elif status < 500:
        headers["x-should-retry"] = "false"
    body = msgspec.json.encode(envelope(error, request_id))
    return Response(body, status, headers, media_type="application/json")
