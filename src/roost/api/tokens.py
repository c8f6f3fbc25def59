"""Short-lived tokens that open WebSockets: a browser cannot send a header with one.

`jwt` is imported with the first token: it brings a whole library of cryptography, and no start should
wait for that.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from roost.errors import Unauthenticated

_ALGORITHM: Final = "HS256"
_ISSUER: Final = "roost"
_AUDIENCE: Final = "ws"
_LONGEST: Final = 4096


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says: whose it is, and which session it opens if only one."""

    key_id: str
    tenant: str
    login_id: str | None = None
    session_id: str | None = None


class Tokens:
    """Signs tokens and reads them."""

    def __init__(self, secret: bytes, *, seconds: float) -> None:
        self.seconds = seconds
        self._secret = secret

    def sign(self, granted: Pass) -> str:
        """A token that says so, for a while."""
        import jwt

        now = time.time()
        claims: dict[str, Any] = {
            "iss": _ISSUER,
            "aud": _AUDIENCE,
            "iat": now,
            "exp": now + self.seconds,
            "sub": granted.key_id,
            "tenant": granted.tenant,
            "login": granted.login_id,
            "session": granted.session_id,
        }
        return jwt.encode(claims, self._secret, algorithm=_ALGORITHM)

    def read(self, token: str) -> Pass:
        """What a token says. :raises Unauthenticated: it is not ours, or its time is over"""
        import jwt

        try:
            if len(token) > _LONGEST:
                raise jwt.InvalidTokenError("too long")
            claims = jwt.decode(
                token,
                self._secret,
                algorithms=[_ALGORITHM],
                issuer=_ISSUER,
                audience=_AUDIENCE,
                options={"require": ["exp", "sub", "tenant"]},
            )
        except jwt.ExpiredSignatureError:
            raise _refused("The token has expired.") from None
        except jwt.InvalidTokenError:
            raise _refused("The token is not valid.") from None
        return Pass(
            key_id=claims["sub"],
            tenant=claims["tenant"],
            login_id=claims.get("login"),
            session_id=claims.get("session"),
        )


def _refused(message: str) -> Unauthenticated:
    return Unauthenticated(message, hint="Get a fresh one from /auth/ws-token.")
