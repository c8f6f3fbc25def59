"""One request on its way through: what came in, who sent it, and what it may use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from roost.api.deps import Deps
from roost.errors import InvalidRequest, TooLarge
from roost.ports.keys import Key

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_canonical = msgspec.json.Encoder(order="sorted").encode


class ClientGone(Exception):
    """The client hung up before its request was complete."""


@dataclass(kw_only=True)
class Call:
    """Filled in as the request passes each ring of `api/app.py`; handlers see it complete."""

    deps: Deps
    scope: Scope
    request_id: str
    params: dict[str, str]
    caller: Key | None = None
    query: dict[str, Any]
    body: dict[str, Any]

    @cached_property
    def headers(self) -> Headers:
        """The request's headers."""
        return Headers(scope=self.scope)

    @property
    def key(self) -> Key:
        """Who calls."""
        assert self.caller is not None, "only for operations that need a key"
        return self.caller

    @property
    def tenant(self) -> str:
        """For whom."""
        return self.key.tenant

    @property
    def idempotency_key(self) -> str | None:
        """The client's name for this request. :raises InvalidRequest: too long or not text"""
        key = self.headers.get("idempotency-key")
        if key is not None and not (0 < len(key) <= 255 and key.isprintable()):
            raise InvalidRequest("idempotency-key: give 1 to 255 printable characters")
        return key


def fingerprint(value: object) -> str:
    """The same for the same JSON value, however it was written."""
    return sha256(_canonical(value)).hexdigest()


def reply(value: object, status: int = 200) -> Response:
    """A JSON response."""
    return Response(_encode(value), status, media_type="application/json")


async def read_json(scope: Scope, receive: Receive, limit: int) -> Any:
    """The request's body, decoded; None if it is empty.

    :raises TooLarge: more than `limit` bytes :raises InvalidRequest: not JSON in UTF-8
    :raises ClientGone: it stopped coming
    """
    headers = Headers(scope=scope)
    raw = await _read(headers, receive, limit)
    if not raw:
        return None
    kind = headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(f"content-type: send application/json, not {kind[:80]!r}")
    try:
        value = _decode(raw)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if b"\\u0000" in raw:
        _refuse_nul(value)
    return value


async def _read(headers: Headers, receive: Receive, limit: int) -> bytes:
    said = headers.get("content-length", "0")
    if said.isdigit() and int(said) > limit:
        raise TooLarge(f"the body has {said} bytes; at most {limit} are accepted")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"at most {limit} bytes are accepted")
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


def _refuse_nul(value: object) -> None:
    """Databases and shells end a text at a NUL character; without recursion, as depth is theirs."""
    left: list[tuple[str, object]] = [("", value)]
    while left:
        path, here = left.pop()
        if isinstance(here, str) and "\0" in here:
            raise InvalidRequest(f"{path[1:] or 'body'}: must not contain NUL characters")
        if isinstance(here, dict):
            if any("\0" in key for key in here):
                raise InvalidRequest(f"{path[1:] or 'body'}: keys must not contain NUL characters")
            left.extend((f"{path}.{key}", child) for key, child in here.items())
        elif isinstance(here, list):
            left.extend((f"{path}.{i}", child) for i, child in enumerate(here))
