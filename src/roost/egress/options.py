"""What an operator decides about egress."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

import msgspec
from pydantic import SecretStr

from roost.domain import address
from roost.domain.upstream import Upstream, searches_web
from roost.egress.dial import resolve
from roost.egress.secrets import can_be_sent
from roost.errors import InvalidRequest, StartupError
from roost.ports.egress import Credential, Origin, Put

USUAL_PORTS = frozenset((80, 443))
_ADDRESS = (
    "It is such as `https://api.example.com` or `http://127.0.0.1:4000/gateway`; the key is apart."
)


def anthropic(url: str, key: SecretStr | None) -> Origin:
    """The Messages API, or something that speaks it."""
    return _model("anthropic", url, key, "x-api-key")


def openai(url: str, key: SecretStr | None) -> Origin:
    """The Responses API, or something that speaks it; its URL ends in `/v1` by custom."""
    return _model("openai", url, key, "bearer")


def _model(protocol: str, url: str, key: SecretStr | None, put: Put) -> Origin:
    credential = None if key is None else Credential.fixed(key.get_secret_value(), put)
    return Origin(url=url, protocol=protocol, credential=credential)


class ModelUpstream(msgspec.Struct, frozen=True):
    """One of the operator's servers of models: what it serves, and where it is."""

    upstream: Upstream
    origin: Origin

    @classmethod
    def default(cls, origin: Origin) -> ModelUpstream:
        """One that serves every model of its API, and is called like it."""
        api = origin.protocol
        return cls(Upstream(name=api, api=api, web_search=searches_web(api, origin.url)), origin)


async def _check_origin(name: str, origin: Origin) -> None:
    """Refuse a malformed address, and a key that no header can carry. :raises StartupError: without the key"""
    if origin.credential is not None and not can_be_sent(await origin.credential.secret() or ""):
        raise StartupError(f"the key for {name!r} is empty, or has a space or a line break in it")
    where = f"the address of {name!r}"
    try:
        address.checked(origin.url, where)
    except InvalidRequest as refused:
        raise StartupError(refused.message, hint=_ADDRESS) from None
    if not {"?", "#"}.isdisjoint(origin.url):  # paths are put at its end
        raise StartupError(f"{where}: it cannot have a query or a fragment", hint=_ADDRESS)


class EgressBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How much, how many and how long. Connections and bandwidth are per session, held bytes are those of
    requests: per session, and of all together. A body in which placeholders are replaced is held up to
    `replaced_bytes`; a larger one goes on as it comes, in chunks. A placeholder is small and a secret may be
    large, so what is put in has bounds of its own: for the headers of a request, and for its body.
    """

    connections: int = 64
    head_bytes: int = 32 * 1024
    body_bytes: int = 32 * 1024**2
    replaced_bytes: int = 8 * 1024**2
    header_secret_bytes: int = 64 * 1024
    body_secret_bytes: int = 1024**2
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


class EgressOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `egress.host.serving` needs.

    `directory` holds the sockets and belongs to this alone: what an earlier process left there is
    removed. `upstreams` are the operator's servers of models; the first that serves a model gets its requests.
    `allow_networks` are addresses that may be reached although they are not public.
    """

    directory: Path
    upstreams: Sequence[ModelUpstream] = ()
    ports: frozenset[int] = USUAL_PORTS
    allow_networks: Sequence[IPv4Network | IPv6Network] = ()
    package_hosts: Sequence[str] = ()
    resolve: Resolver = resolve
    bounds: EgressBounds = EgressBounds()

    async def check(self) -> None:
        """Refuse what no request could be sent with. :raises StartupError: it says what"""
        for each in self.upstreams:
            await _check_origin(each.upstream.name, each.origin)
        for host in self.package_hosts:
            try:
                address.check_pattern(host, f"ROOST_PACKAGE_HOSTS: {host!r}")
            except InvalidRequest as refused:
                raise StartupError(refused.message, hint=refused.hint) from None
