"""What a request to the network proxy asks for, and the list of hosts it is held against."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from roost.domain import address
from roost.egress.reports import Refusal
from roost.ports.egress import Networking, Reason

_AUTHORITY = rf"(?:(?P<name>{address.NAME})\.?|\[(?P<six>[0-9A-Fa-f:.]{{2,45}})\])"
_CONNECT = re.compile(rf"{_AUTHORITY}:(?P<port>[0-9]{{1,5}})")
_ABSOLUTE = re.compile(
    rf"http://{_AUTHORITY}(?::(?P<port>[0-9]{{1,5}}))?(?P<path>[/?][!-~]*)?", re.IGNORECASE
)


class ProxyTarget(NamedTuple):
    """Where a request wants to go. `literal` is the address, if the host is written as one."""

    host: str
    port: int
    path: str = "/"
    literal: IPv4Address | IPv6Address | None = None

    @property
    def authority(self) -> str:
        """As a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"


def target_of(method: bytes, target: bytes) -> ProxyTarget:
    """What a proxy request names: `CONNECT host:port`, or any method with `http://host/path`.

    Both are matched as a whole, so there is no room for userinfo, a fragment or a control character.

    :raises Refusal: it has another form
    """
    text = target.decode("ascii", "replace")
    if method == b"CONNECT":
        found = _CONNECT.fullmatch(text)
        wanted = "CONNECT needs host:port"
    else:
        found = _ABSOLUTE.fullmatch(text)
        wanted = "this is a proxy: it takes CONNECT, or an address that begins with http://"
    if found is None:
        raise Refusal(400, wanted)
    return _checked(found["name"], found["six"], found["port"], found.groupdict().get("path"))


def _checked(name: str | None, six: str | None, port: str | None, path: str | None) -> ProxyTarget:
    number = 80 if port is None else int(port)
    if not 0 < number < 65536 or len(name or "") > 253:
        raise Refusal(400, "that is not a host and a port")
    literal = _literal(name, six)
    host = str(literal) if literal is not None else str(name).lower()
    return ProxyTarget(host, number, _origin(path), literal)


def _origin(path: str | None) -> str:
    if not path:
        return "/"
    return path if path.startswith("/") else f"/{path}"


def _literal(name: str | None, six: str | None) -> IPv4Address | IPv6Address | None:
    """The address a host is written as; None for a name."""
    try:
        return address.literal(str(name)) if six is None else IPv6Address(six)
    except ValueError:
        raise Refusal(400, "that is not an address in its usual form") from None


class HostList:
    """Names (`example.com`) and suffixes (`*.example.com`, which is not `example.com` itself)."""

    def __init__(self, hosts: Iterable[str]) -> None:
        plain = [_plain(host) for host in hosts]
        self._names = frozenset(host for host in plain if not host.startswith("*."))
        self._suffixes = tuple(host[1:] for host in plain if host.startswith("*."))

    def has(self, target: ProxyTarget) -> bool:
        """Whether the target's host is on the list."""
        if target.host in self._names:
            return True
        # A suffix is about names: `*.0.0.1` must not match an address.
        return target.literal is None and target.host.endswith(self._suffixes)


class NetworkRules:
    """Which ports and hosts a session may connect to. The address behind a name is checked by the `Dialer`."""

    def __init__(
        self, networking: Networking, ports: frozenset[int], package_hosts: Iterable[str]
    ) -> None:
        packages = package_hosts if networking.package_managers else ()
        self.hosts = HostList([*networking.allowed_hosts, *packages])
        self.any_host = networking.kind == "unrestricted"
        self._ports = ports

    def check(self, target: ProxyTarget) -> None:
        """:raises Refusal: it may not be reached"""
        if target.port not in self._ports:
            raise _denied(target, "port_not_allowed", f"port {target.port} is not allowed")
        if not self.any_host and not self.hosts.has(target):
            raise _denied(target, "host_not_allowed", f"{target.host} is not an allowed host")


def _denied(target: ProxyTarget, reason: Reason, message: str) -> Refusal:
    return Refusal(403, message, reason=reason, host=target.host, port=target.port)


def _plain(host: str) -> str:
    """As `ProxyTarget` has it: in small letters, and an IPv6 address in its shortest form."""
    try:
        return str(IPv6Address(host))
    except ValueError:
        return host.lower().removesuffix(".")
