"""`/auth`: logins for browsers, and tokens for WebSockets."""

from __future__ import annotations

from typing import Annotated, Any, Final, Required, TypedDict

from pydantic import Field
from starlette.responses import Response
from starlette.types import ASGIApp

from roost.api.access.auth import COOKIE
from roost.api.access.login_attempts import LoginAttempts
from roost.api.access.origins import check_origin
from roost.api.access.tokens import SocketTokens, TokenClaims
from roost.api.framework.call import ApiCall
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.core.access.logins import Login
from roost.core.access.revocations import Revocations
from roost.core.sessions.lifecycle import Lifecycle
from roost.domain.events import Micros, iso
from roost.errors import Forbidden, NotFound, Unauthenticated
from roost.ports.keys import Key

RESOURCE: Final = Resource()


class LoginParams(TypedDict, total=False):
    """The key to log in with."""

    api_key: Required[Annotated[str, Field(min_length=1, max_length=512)]]


class WsTokenParams(TypedDict, total=False):
    """The session that the token is to be for; omitted, it is for all of the tenant's."""

    sessionId: Annotated[str, Field(min_length=1, max_length=128)]


@RESOURCE.post("auth.login", "/auth/login", LoginParams, open=True)
async def login(call: ApiCall, attempts: LoginAttempts, lifecycle: Lifecycle) -> ASGIApp:
    """From now on the browser's cookie stands for the key."""
    scheme = call.scope["scheme"]
    check_origin(call.headers, scheme, call.deps.settings.allowed_origins)
    begun, cookie = await _begin(call, attempts, call.body["api_key"])
    response = reply(_view(lifecycle, begun.key, begun.expires_at))
    seconds = int(call.deps.settings.login_seconds)
    _set_cookie(response, cookie, seconds, secure=scheme == "https")
    return response


async def _begin(call: ApiCall, attempts: LoginAttempts, api_key: str) -> tuple[Login, str]:
    """Make a new login for the key that was sent.

    :raises Unauthenticated:
    :raises RateLimited: too many wrong keys
    """
    client = call.scope.get("client")
    address = client[0] if client else ""
    attempts.check(address, api_key)
    try:
        return await call.deps.logins.begin(api_key)
    except Unauthenticated:
        attempts.failed(address, api_key)
        raise


@RESOURCE.post("auth.logout", "/auth/logout")
async def logout(call: ApiCall, revocations: Revocations) -> ASGIApp:
    """The login ends, with every token and socket it has opened."""
    if call.login is None:
        raise Forbidden("There is no login to end: the request has an API key.")
    await call.deps.logins.end(call.login.id)
    revocations.tell(call.login.id)
    response = reply({"type": "logged_out"})
    _set_cookie(response, "", 0, secure=call.scope["scheme"] == "https")
    return response


@RESOURCE.get("auth.me", "/auth/me")
async def me(call: ApiCall, lifecycle: Lifecycle) -> ASGIApp:
    """Who calls."""
    return reply(_view(lifecycle, call.key, call.login.expires_at if call.login else None))


@RESOURCE.get("auth.ws_token", "/auth/ws-token", WsTokenParams)
async def ws_token(call: ApiCall, tokens: SocketTokens) -> ASGIApp:
    """A token that opens WebSockets for a while."""
    session_id = call.query.get("sessionId")
    if session_id is not None:
        await _check_session(call, session_id)
    token = tokens.sign(
        TokenClaims(
            key_id=call.key.id,
            tenant=call.tenant,
            login_id=call.login.id if call.login else None,
            session_id=session_id,
        )
    )
    response = reply(
        {
            "type": "ws_token",
            "token": token,
            "expires_in": tokens.seconds,
            "session_id": session_id,
            "data": {"token": token},
        }
    )
    response.headers["cache-control"] = "no-store"
    return response


async def _check_session(call: ApiCall, session_id: str) -> None:
    try:
        await call.deps.access.session(call.key, session_id, "see")
    except NotFound:
        raise Forbidden(f"there is no session {session_id} for this key") from None


def _set_cookie(response: Response, value: str, seconds: int, *, secure: bool) -> None:
    response.set_cookie(
        COOKIE, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict"
    )


def _view(lifecycle: Lifecycle, key: Key, expires_at: Micros | None) -> dict[str, Any]:
    return {
        "type": "login",
        "key_id": key.id,
        "name": key.name,
        "tenant": key.tenant,
        "role": key.role,
        "trust_ceiling": key.trust_ceiling,
        "trust_levels": lifecycle.trust_levels(key),
        "expires_at": None if expires_at is None else iso(expires_at),
    }
