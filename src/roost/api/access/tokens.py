"""Signed tokens: short-lived ones that open WebSockets, because a browser cannot send a header with one, and those
that workers are given with a work item.

`jwt` is imported with the first token: it brings a whole library of cryptography, and no start should
wait for that.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import msgspec

from roost.errors import Unauthenticated

_ALGORITHM: Final = "HS256"
_ISSUER: Final = "roost"
_AUDIENCE: Final = "ws"
_LONGEST: Final = 4096
_WORKERS: Final = "work"
WORK_PREFIX: Final = "roost_work_"
"""What the token of a work item begins with."""


_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern="^[^\\x00]+$")]


class TokenClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says: whose it is, and which session it opens, if only one."""

    key_id: _Word
    tenant: _Word
    login_id: _Word | None = None
    session_id: _Word | None = None


class SocketTokens:
    """Signs tokens for WebSockets, and checks those that come back."""

    def __init__(self, secret: bytes, *, seconds: float) -> None:
        self.seconds = seconds
        self._secret = secret

    def sign(self, granted: TokenClaims) -> str:
        """A token with these claims, which is valid for `seconds`."""
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

    def read(self, token: str) -> TokenClaims:
        """The claims of a token. :raises Unauthenticated: it is not ours, or has expired"""
        import jwt

        try:
            if len(token) > _LONGEST:
                raise jwt.InvalidTokenError("too long")
            claims: dict[str, Any] = jwt.decode(
                token,
                self._secret,
                algorithms=[_ALGORITHM],
                issuer=_ISSUER,
                audience=_AUDIENCE,
                options={"require": ["exp", "sub", "tenant"]},
            )
            return _claims(claims)
        except jwt.ExpiredSignatureError:
            raise _refused("The token has expired.") from None
        except (jwt.InvalidTokenError, msgspec.ValidationError, ArithmeticError, TypeError):
            raise _refused("The token is not valid.") from None


class WorkClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's token says: the key and the claim by which it got an item, and the item's session."""

    key_id: _Word
    work_id: _Word
    session_id: _Word
    claim: int


class WorkTokens:
    """Signs the tokens of work items. They have no time of their own: they end with their item, or with their key."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, granted: WorkClaims) -> str:
        """A token with these claims."""
        import jwt

        claims = msgspec.to_builtins(granted) | {"iss": _ISSUER, "aud": _WORKERS}
        return WORK_PREFIX + jwt.encode(claims, self._secret, algorithm=_ALGORITHM)

    def read(self, token: str) -> WorkClaims:
        """The claims of a token. :raises Unauthenticated: it is not ours"""
        import jwt

        try:
            claims: dict[str, Any] = jwt.decode(
                token.removeprefix(WORK_PREFIX),
                self._secret,
                algorithms=[_ALGORITHM],
                issuer=_ISSUER,
                audience=_WORKERS,
            )
            return msgspec.convert(claims, WorkClaims)
        except (jwt.InvalidTokenError, msgspec.ValidationError, ArithmeticError, TypeError):
            raise Unauthenticated("The token is not valid.") from None


def _claims(claims: dict[str, Any]) -> TokenClaims:
    """The claims of a token whose signature was checked.

    :raises msgspec.ValidationError: a claim is not a short text
    """
    names = {"key_id": "sub", "tenant": "tenant", "login_id": "login", "session_id": "session"}
    return msgspec.convert({name: claims.get(claim) for name, claim in names.items()}, TokenClaims)


def _refused(message: str) -> Unauthenticated:
    return Unauthenticated(message, hint="Get a fresh one from /auth/ws-token.")
