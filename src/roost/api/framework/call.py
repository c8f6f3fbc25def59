"""One request on its way through: what came in, who sent it, and what it may use.

It is not Starlette's `Request`: a body is counted against a budget as it arrives and has a deadline for each
piece, and JSON is refused by the number of its values before it is built. What `Request` would add, cookies,
forms and a mutable state, is not used.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope

from roost.api.access.headers import RequestHeaders
from roost.api.access.workers import WorkerScope
from roost.api.framework.body_budget import BodyBudget
from roost.api.framework.deps import Deps
from roost.core.access.logins import Login
from roost.core.access.sessions import Act
from roost.core.concurrency import in_time
from roost.domain.session import Session
from roost.errors import Forbidden, InvalidRequest, RequestTooSlow, TooLarge
from roost.ports.keys import Key

_decode = msgspec.json.Decoder().decode
_STRETCH: Final = 64 * 1024
_SHARE: Final = (
    4  # an upload counts this part of the largest one before its first byte: it takes files
)
_MOST_VALUES: Final = (
    1_000_000  # in a body: an empty list takes two bytes there, and sixty in memory
)
_JSON: Final = b"application/json"
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_canonical = msgspec.json.Encoder(order="sorted").encode

WHOLE_BODY: Final = "roost.whole_body"
"""The extension of ASGI by which our server gives a body that has arrived at once, and not message by message."""

GiveWhole = Callable[[Scope], bytes | None]
"""Gives the body of the request of this scope. None: some of it is still to come, and comes as messages."""


class ClientGone(Exception):
    """The client hung up before its request was complete."""


@dataclass(slots=True)
class ApiCall:
    """Filled in as the request passes each step of `api/app.py`; handlers see it complete."""

    deps: Deps
    scope: Scope
    request_id: str
    headers: RequestHeaders
    params: Mapping[str, str]
    query: dict[str, Any]
    body: dict[str, Any]
    raw: bytes = b""
    caller: Key | None = None
    login: Login | None = None
    worker: WorkerScope | None = None
    """The worker that calls, if one does."""
    receive: Receive | None = None
    """Where the body comes from, if the operation takes it as it comes."""
    budget: BodyBudget | None = None
    held: int = 0
    """How many bytes of its body are counted in `budget` until the operation has been carried out."""

    async def chunks(self, limit: int) -> AsyncGenerator[bytes, None]:
        """The body, as it comes. Raises as `_Body.piece`."""
        assert self.receive is not None, "only for operations that take uploads"
        deps = self.deps
        small = limit <= deps.settings.max_body_bytes
        body = _Body(self, self.receive, limit, deps.bodies if small else deps.uploads)
        if not small:
            self.hold(deps.uploads, limit // _SHARE)
        while body.more:
            yield await body.piece()

    def whole(self, limit: int) -> bytes | None:
        """The whole body, if it is here already; None: it has to be read. Raises as `_Body.piece`."""
        give: GiveWhole | None = self.scope.get("extensions", {}).get(WHOLE_BODY)
        whole = None if give is None else give(self.scope)
        if whole is not None:
            if len(whole) > limit:
                raise TooLarge(f"the body has {len(whole)} bytes; at most {limit} are accepted")
            self.hold(self.deps.bodies, len(whole))
        return whole

    async def read(self, receive: Receive, limit: int) -> bytes:
        """The whole body, as it comes. Raises as `_Body.piece`."""
        body = _Body(self, receive, limit, self.deps.bodies)
        pieces = [await body.piece()]
        while body.more:
            pieces.append(await body.piece())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def hold(self, budget: BodyBudget, size: int) -> None:
        """Count bytes of the body until it is let go. Raises as `BodyBudget.take`."""
        budget.take(self.caller.id if self.caller else "", size)
        self.budget = budget
        self.held += size

    def forget(self) -> None:
        """Let the body go: it is not needed while the answer is sent, however long that takes."""
        self.raw, self.body = b"", {}
        held, self.held = self.held, 0
        if self.budget is not None:
            self.budget.release(self.caller.id if self.caller else "", held)

    @property
    def key(self) -> Key:
        """The key of the caller."""
        assert self.caller is not None, "only for operations that need a key"
        return self.caller

    @property
    def tenant(self) -> str:
        """The tenant whose resources the caller uses."""
        return self.key.tenant

    def known_session(self, act: Act) -> Session | None:
        """As `session`, if the store need not be asked, which mostly is so; else None."""
        return self.deps.access.known_session(self.key, self.params["session_id"], act)

    def session(self, act: Act) -> Awaitable[Session]:
        """The session in the path, if the caller may act on it so. :raises NotFound: :raises Forbidden:"""
        return self.deps.access.session(self.key, self.params["session_id"], act)

    @property
    def idempotency_key(self) -> str | None:
        """The client's name for this request. :raises InvalidRequest: too long or not text"""
        if b"idempotency-key" not in self.headers.raw:
            return None
        key = self.headers["idempotency-key"]
        if not (0 < len(key) <= 255 and key.isprintable()):
            raise InvalidRequest("idempotency-key: give 1 to 255 printable characters")
        return key


def administrators_only(call: ApiCall) -> None:
    """Let only administrators go on. :raises Forbidden: the caller's key is not an administrator's"""
    if call.key.role != "admin":
        raise Forbidden("Only an administrator's key may do that.")


def fingerprint(value: bytes | dict[str, Any]) -> str:
    """A digest that tells a repeated request from another one: of its bytes, or of a value however it is written."""
    return sha256(value if isinstance(value, bytes) else _canonical(value)).hexdigest()


class _Body:
    """The body of a request, taken piece by piece, and each piece into account."""

    def __init__(self, call: ApiCall, receive: Receive, limit: int, budget: BodyBudget) -> None:
        """Check the length that the request declares, before anything is read.

        :raises TooLarge: it says itself that it is
        """
        said = call.headers.get("content-length", "0")
        if said.isdecimal() and (len(said) > 18 or int(said) > limit):
            raise TooLarge(f"the body has {said[:19]} bytes; at most {limit} are accepted")
        self.more = True
        self._call = call
        self._receive = receive
        self._limit = limit
        self._budget = budget
        self._seconds = self._patience = call.deps.settings.body_seconds
        self._size = self._stretch = 0

    async def piece(self) -> bytes:
        """What comes next; `more` says whether that was all.

        :raises TooLarge: over the limit :raises ClientGone: it stopped coming
        :raises RequestTooSlow: the next `_STRETCH` bytes took longer than they may
        """
        began = time.monotonic()
        try:
            message = await in_time(self._receive(), self._patience)
        except TimeoutError:
            raise RequestTooSlow(
                f"{self._size} bytes came, and nothing more for too long"
            ) from None
        # Only waiting counts: a body that is slow because of us is not the client's doing.
        self._patience -= time.monotonic() - began
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        self.more = message.get("more_body", False)
        self._take(len(piece))
        return piece

    def _take(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise TooLarge(f"at most {self._limit} bytes are accepted")
        self._call.hold(self._budget, size)
        self._stretch += size
        if self._stretch >= _STRETCH:
            self._stretch, self._patience = 0, self._seconds


def decoded(raw: bytes, headers: RequestHeaders) -> Any:
    """The JSON value of a body; that of an empty one is `{}`. :raises InvalidRequest: not JSON in UTF-8"""
    if not raw:
        return {}
    kind = headers.raw.get(b"content-type", _JSON)
    if kind != _JSON and kind.split(b";")[0].strip().lower() != _JSON:
        sent = headers["content-type"].split(";")[0].strip().lower()
        raise InvalidRequest(f"content-type: send application/json, not {sent[:80]!r}")
    if len(raw) > _MOST_VALUES:  # each value takes a byte at least
        _check_count(raw)
    try:
        value = _decode(raw)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if b"\\u0000" in raw:
        _refuse_nul(value)
    return value


def _check_count(raw: bytes) -> None:
    """Refuse a body with more values than anybody needs, before any of them is looked at.

    :raises TooLarge: there are too many values in it, whatever they are
    """
    if _count(raw) > _MOST_VALUES and _count(_STRINGS.sub(b"", raw)) > _MOST_VALUES:
        raise TooLarge(f"the body has more than {_MOST_VALUES} values")


def _count(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


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
