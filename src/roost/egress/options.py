"""What an operator decides about the way out."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import SecretStr

from roost.domain import address
from roost.egress.dial import resolve
from roost.errors import InvalidRequest, StartupError

MESSAGES_ROUTES = (
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "GET /v1/models",
    "GET /v1/models/*",
)
RESPONSES_ROUTES = (
    "POST /v1/responses",
    "POST /v1/responses/compact",
    "POST /v1/chat/completions",
    "GET /v1/models",
    "GET /v1/models/*",
)

USUAL_PORTS = frozenset((80, 443))
CARRIED_HEADERS = (
    "accept",
    "content-type",
    "user-agent",
    "anthropic-*",
    "openai-beta",
    "x-stainless-*",
    "x-app",
    "x-claude-*",
    "x-client-request-id",
    "x-codex-*",
    "originator",
    "session_id",
    "session-id",
    "thread_id",
    "conversation_id",
    "idempotency-key",
)
"""Request headers that go on to the model. A list of what passes, because what must not is endless:
gateways obey headers that name another target or another key, and would send ours there."""


_ADDRESS = (
    "It is such as `https://api.example.com` or `http://127.0.0.1:4000/gateway`; the key is apart."
)


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """A model's server, and the key for it.

    `guest_prefix` is the part of the path that is in front inside, and is already in `base_url`.
    Without a `key` none is put on.
    """

    dialect: Literal["anthropic", "openai"]
    base_url: str
    key: SecretStr | None = None
    scheme: Literal["x-api-key", "bearer", "basic"] = "x-api-key"
    routes: Sequence[str] = MESSAGES_ROUTES
    headers: Sequence[str] = CARRIED_HEADERS
    guest_prefix: str = ""

    def credentials(self) -> list[tuple[bytes, bytes]]:
        """The header that carries the key."""
        if self.key is None:
            return []
        value = self.key.get_secret_value().encode()
        if self.scheme == "bearer":
            return [(b"authorization", b"Bearer " + value)]
        if (
            self.scheme == "basic"
        ):  # as git servers take tokens: any name, and the token as password
            return [(b"authorization", b"Basic " + b64encode(b"x-access-token:" + value))]
        return [(b"x-api-key", value)]

    def check(self, name: str) -> None:
        """Refuse a malformed address, and a key that no header can carry: libraries quote it in errors.

        :raises StartupError: without the key in it
        """
        secret = self.key.get_secret_value() if self.key is not None else "-"
        if not secret or not all("!" <= letter <= "~" for letter in secret):
            raise StartupError(
                f"the key for {name!r} is empty, or has a space or a line break in it"
            )
        where = f"the address of {name!r}"
        try:
            address.checked(self.base_url, where)
        except InvalidRequest as refused:
            raise StartupError(refused.message, hint=_ADDRESS) from None
        if not {"?", "#"}.isdisjoint(self.base_url):  # paths are put at its end
            raise StartupError(f"{where}: it cannot have a query or a fragment", hint=_ADDRESS)


def anthropic(base_url: str, key: SecretStr | None) -> Upstream:
    """The Messages API, or something that speaks it."""
    return Upstream(dialect="anthropic", base_url=base_url, key=key)


def openai(base_url: str, key: SecretStr | None) -> Upstream:
    """The Responses API, or something that speaks it; its base URL ends in `/v1` by custom."""
    return Upstream(
        dialect="openai",
        base_url=base_url,
        key=key,
        scheme="bearer",
        routes=RESPONSES_ROUTES,
        guest_prefix="/v1",
    )


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much, how many and how long. Connections and bandwidth are per session, held bytes are those of
    requests to the model: per session, and of all together.
    """

    connections: int = 64
    head_bytes: int = 32 * 1024
    body_bytes: int = 32 * 1024**2
    held_bytes: int = 128 * 1024**2
    all_held_bytes: int = 1024**3
    bytes_per_second: int = 64 * 1024**2
    keep_alive_seconds: float = 75
    head_seconds: float = 10
    body_seconds: float = 120
    send_seconds: float = 120
    linger_seconds: float = 2
    connect_seconds: float = 10
    upstream_seconds: float = 600
    idle_seconds: float = 300
    callback_seconds: float = 5


Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a host and a port to its addresses, as text. Raises OSError if there are none."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `egress.host.serving` needs.

    `directory` holds the sockets and belongs to this alone: what an earlier process left there is
    removed. `allow_networks` are addresses that may be reached although they are not public.
    """

    directory: Path
    upstreams: Mapping[str, Upstream] = {}
    ports: frozenset[int] = USUAL_PORTS
    allow_networks: Sequence[IPv4Network | IPv6Network] = ()
    package_hosts: Sequence[str] = ()
    resolve: Resolver = resolve
    bounds: Bounds = Bounds()

    def check(self) -> None:
        """Refuse what no request could be sent with. :raises StartupError: it says what"""
        for name, upstream in self.upstreams.items():
            upstream.check(name)
        for host in self.package_hosts:
            try:
                address.check_pattern(host, f"ROOST_PACKAGE_HOSTS: {host!r}")
            except InvalidRequest as refused:
                raise StartupError(refused.message, hint=refused.hint) from None
