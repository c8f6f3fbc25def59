"""Finds out who calls, and checks the headers that every request below `/v1` carries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from roost.api.access.headers import RequestHeaders
from roost.core.access.keys import Keyring
from roost.core.access.logins import Login, Logins
from roost.errors import InvalidRequest, NotFound, Unauthenticated
from roost.ports.keys import Key

MANAGED_AGENTS: Final = "managed-agents-2026-04-01"
PREVIEW: Final = f"{MANAGED_AGENTS}-research-preview"
_AGENTS: Final = frozenset({MANAGED_AGENTS, PREVIEW})
OLD_SKILLS: Final = "skills-2025-10-02"
OLD_FILES: Final = "files-api-2025-04-14"
VERSIONS: Final = ("2023-06-01", "2026-10-21")

_BETA = re.compile(
    r"[a-z0-9]+(-[a-z0-9]+)*-(\d{4}-\d\d-\d\d|\d{8})(-[a-z]+)*"
)  # older ones: no dashes
_LONGEST_SECRET = 512
_USUAL_BETAS = (
    512  # characters of a header that is remembered: each client sends the same one all the time
)


COOKIE: Final = "roost_login"
"""The cookie of a browser that is logged in."""


def known_caller(keyring: Keyring, headers: RequestHeaders) -> Key | None:
    """The key that a request shows as most do, if it was recognised within the last seconds."""
    if b"authorization" in headers.raw:
        return None  # it may be a worker's, whatever else is shown
    secret = headers.raw.get(b"x-api-key", b"")
    return keyring.known(secret) if len(secret) <= _LONGEST_SECRET and secret.isascii() else None


async def caller(
    keyring: Keyring, logins: Logins, headers: Mapping[str, str]
) -> tuple[Key, Login | None]:
    """The key that a request shows, or that its login stands for.

    :raises Unauthenticated: neither, or one that is unknown, revoked or over
    """
    secret = headers.get("x-api-key", "")
    if not secret:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        secret = token.strip() if scheme.lower() == "bearer" else ""
    if not secret and (cookie := cookie_in(headers)):
        login = await logins.recognise(cookie)
        return login.key, login
    if not secret:
        raise Unauthenticated(
            "The API key is missing.", hint="Send it as `x-api-key` or `Authorization: Bearer`."
        )
    if len(secret) > _LONGEST_SECRET:
        raise Unauthenticated()
    return await keyring.recognise(secret), None


def cookie_in(headers: Mapping[str, str]) -> str | None:
    """The login's cookie, if the request has one."""
    for pair in headers.get("cookie", "").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE and value:
            return value
    return None


def betas_in(headers: Mapping[str, str]) -> list[str]:
    """The names of the betas that a request asks for."""
    return [name.strip() for name in headers.get("anthropic-beta", "").split(",")]


def asks_for_agents(headers: Mapping[str, str]) -> bool:
    """Whether a request asks for the beta of managed agents, under either of its names."""
    return not _AGENTS.isdisjoint(betas_in(headers))


def _betas(said: str) -> frozenset[str]:
    """The betas that a header names. :raises InvalidRequest: one of them is no name of a beta"""
    betas = [name.strip() for name in said.split(",")]
    for name in betas:
        if name and not _BETA.fullmatch(name):
            raise InvalidRequest(
                f"Unexpected value(s) `{name[:80]}` for the `anthropic-beta` header"
            )
    return frozenset(betas)


def check_headers(
    headers: RequestHeaders, tenant: str, *, beta: bool = True, refuses: str | None = None
) -> None:
    """Check the headers that say which API is meant, on every path below `/v1`.

    `beta`: the path belongs to the beta of managed agents. `refuses`: a beta it is not served in.

    :raises InvalidRequest: a version, beta or workspace this server does not have
    :raises NotFound: the beta that these paths belong to is not asked for
    """
    version, said = headers.raw.get(b"anthropic-version"), headers.raw.get(b"anthropic-beta", b"")
    check = _check_known if len(said) <= _USUAL_BETAS else _check_api
    check(version, said, beta, refuses)
    if b"anthropic-workspace-id" in headers.raw and headers["anthropic-workspace-id"] != tenant:
        raise InvalidRequest("anthropic-workspace-id: this key belongs to another workspace")


def _check_api(version: bytes | None, said: bytes, beta: bool, refuses: str | None) -> None:
    """Which API is meant. Raises as `check_headers`."""
    if version is None:
        raise InvalidRequest("anthropic-version: header is required")
    if (dated := version.decode("latin-1")) not in VERSIONS:
        raise InvalidRequest(f"anthropic-version: {dated[:40]!r} is not a valid version")
    betas = _betas(said.decode("latin-1"))
    if refuses in betas:
        raise InvalidRequest(
            f"anthropic-beta: the shapes of `{refuses}` are not served",
            hint="Use an SDK from 1.0 on, or leave that header out.",
        )
    if beta and _AGENTS.isdisjoint(betas):
        raise NotFound(
            "There is nothing here without the beta header.",
            hint=f"Send `anthropic-beta: {MANAGED_AGENTS}`.",
        )


_check_known = lru_cache(maxsize=256)(_check_api)  # what it raises is not remembered
