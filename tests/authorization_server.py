"""A small real authorization server, whose refresh tokens are good for one use."""

from __future__ import annotations

import itertools
from base64 import b64decode
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, unquote

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

CLIENT_SECRET = "client/secret+with=signs:0123456789"


class AuthorizationServer:
    """Gives new tokens for the newest refresh token. One that is used again ends the whole grant, unless it is
    used again within `grace` uses: then the same answer is given once more.

    `seen` has the forms of all requests, `reused` those with a token that was used before.
    """

    def __init__(self, *, lives: int | None = 3600, grace: int = 0) -> None:
        self.lives = lives
        self.refresh = "refresh-0-0123456789"
        self.access = "access-0-0123456789"
        self.seen: list[dict[str, str]] = []
        self.reused: list[str] = []
        self.answer: Callable[[], Response] | None = None
        self.takes = 0.0
        self._grace = grace
        self._number = itertools.count(1)
        self._used: dict[str, dict[str, Any]] = {}
        self.app = Starlette(routes=[Route("/token", self._token, methods=["POST"])])

    def is_good(self, access: str) -> bool:
        """Whether a resource server would take it."""
        return access == self.access

    async def _token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        if basic := request.headers.get("authorization"):
            name, _, secret = b64decode(basic.removeprefix("Basic ")).decode().partition(":")
            form |= {"basic": f"{unquote(name)}:{unquote(secret)}"}
        self.seen.append(form)
        await anyio.sleep(self.takes)
        if self.answer is not None:
            return self.answer()
        given = form.get("refresh_token", "")
        if given in self._used:
            self.reused.append(given)
            if len(self.reused) <= self._grace:
                return JSONResponse(self._used[given])
            self.refresh = self.access = "revoked"
        if given != self.refresh:
            return JSONResponse({"error": "invalid_grant"}, 400)
        number = next(self._number)
        self.refresh, self.access = f"refresh-{number}-0123456789", f"access-{number}-0123456789"
        tokens: dict[str, Any] = {"access_token": self.access, "token_type": "Bearer"}
        tokens |= {"refresh_token": self.refresh} | (
            {"expires_in": self.lives} if self.lives else {}
        )
        self._used[given] = tokens
        return JSONResponse(tokens)
