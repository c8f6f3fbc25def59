"""Who may open a WebSocket: decided before the upgrade, so that a refusal is an HTTP response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

import msgspec
from starlette.types import Scope

from roost.api.access.origins import check_origin
from roost.api.access.tokens import SocketTokens, TokenClaims
from roost.api.framework.deps import Deps
from roost.errors import Forbidden, InvalidRequest, NotFound, Unauthenticated, Unavailable
from roost.ports.keys import Key

PATH: Final = "/ws/v2"


class Admission(msgspec.Struct, frozen=True):
    """Who opened a socket, with which login, for which session if for one, and from where on."""

    key: Key
    login_id: str | None
    session_id: str | None
    after: int | None


async def admit(deps: Deps, scope: Scope) -> Admission:
    """Check who wants to open a WebSocket, and for which session.

    :raises RoostError: see docs/gateway.md
    """
    query = _taken_query(scope)
    if scope["path"] != PATH:
        raise NotFound(f"there is no WebSocket at {scope['path'][:200]}")
    if deps.server.stopping():
        raise Unavailable("the server is stopping; try again")
    check_origin(_headers(scope), scope["scheme"], deps.settings.allowed_origins)
    granted = deps.services[SocketTokens].read(_one(query, "token") or "")
    key = await _key(deps, granted)
    await deps.rates.count(key, "reads", {})
    session_id = await _session(deps, key, granted, _one(query, "sessionId"))
    return Admission(key, granted.login_id, session_id, _after(_one(query, "after")))


def _taken_query(scope: Scope) -> Mapping[str, list[str]]:
    """The query, out of the scope: the server logs what is in there, and the token must not be."""
    raw, scope["query_string"] = scope["query_string"], b""
    try:
        return parse_qs(raw.decode("ascii"), max_num_fields=50)
    except ValueError:
        raise InvalidRequest("the query string is not valid") from None


def _headers(scope: Scope) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


def _one(query: Mapping[str, list[str]], name: str) -> str | None:
    values = query.get(name, [])
    if len(values) > 1:
        raise InvalidRequest(f"{name}: given more than once")
    return values[0] if values else None


async def _key(deps: Deps, granted: TokenClaims) -> Key:
    """The key behind a token, unless it was revoked or logged out since."""
    if granted.login_id is None:
        return await deps.keyring.named(granted.tenant, granted.key_id)
    login = await deps.logins.still(granted.login_id)
    if login.key.id != granted.key_id:
        raise Unauthenticated()
    return login.key


async def _session(deps: Deps, key: Key, granted: TokenClaims, asked: str | None) -> str | None:
    if granted.session_id is not None and asked not in (None, granted.session_id):
        raise Forbidden("this token is for another session")
    session_id = asked or granted.session_id
    if session_id is None:
        return None
    try:
        return (await deps.access.session(key, session_id, "see")).id
    except NotFound:
        raise Forbidden("this token does not open that session") from None


def _after(after: str | None) -> int | None:
    if after is None:
        return None
    if not (after.isascii() and after.isdigit() and len(after) < 16):
        raise InvalidRequest("after: give the `seq` of a message")
    return int(after)
