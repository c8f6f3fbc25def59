"""From a permitted host to an open connection, by way of an address that was checked.

A name is looked up once, and the connection goes to the address that was looked at: a name server
that answers differently the second time (rebinding) is not asked a second time.

Addresses that are not public are somebody's inside: this machine, its network, its cloud's metadata
service. The tables are written out because `ipaddress.is_global` differs between Python versions and lets
several of these pass (site-local, some translations, Azure's metadata address).
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import anyio
from anyio.abc import SocketStream

from roost.egress.hosts import ProxyTarget
from roost.egress.reports import Refusal

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOT_PUBLIC_4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network; 0.0.0.0 connects to loopback
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, and Alibaba's metadata service
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's metadata service: looks public, is the host
        "169.254.0.0/16",  # link-local, and nearly everybody's metadata service
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
"""All unicast space there is. Outside are loopback, IPv4-mapped, NAT64 (64:ff9b::), unique local
(fd00:ec2::254 is Amazon's metadata service), link-local, site-local and multicast."""
_NOT_PUBLIC_6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments; Teredo among them, which carries an IPv4 address
        "2001:db8::/32",
        "2002::/16",  # 6to4, which carries an IPv4 address
        "3fff::/20",
    )
)


def public(address: Address) -> bool:
    """Whether the address belongs to the internet, in the plain form."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    # A zone (fe80::1%eth0) names an interface of this machine.
    if address.scope_id is not None or address not in _PUBLIC_6:
        return False
    return not any(address in network for network in _NOT_PUBLIC_6)


def allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Whether a sandbox may connect to it: it is public, or the operator named it."""
    return public(address) or any(
        address.version == network.version and address in network for network in networks
    )


_MOST_ATTEMPTS = 4
_TLS_PORT = 443


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host by the system's own means, best first."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


class Dialer:
    """Opens connections for sandboxes. One for the whole process: it bounds the lookups at a time,
    because they take threads that others need, too.
    """

    def __init__(
        self,
        resolve: Callable[[str, int], Awaitable[Sequence[str]]],
        networks: Sequence[Network],
        seconds: float,
        *,
        lookups: int = 8,
    ) -> None:
        self._resolve = resolve
        self._networks = networks
        self._seconds = seconds
        self._lookups = anyio.Semaphore(lookups)

    async def dial(self, target: ProxyTarget) -> SocketStream:
        """A connection to the target. :raises Refusal: it may not be reached, or it does not answer"""
        good = self._permitted(await self._addresses(target), target)
        if not good:
            raise not_allowed(target, f"{target.host} is at an address that is not public")
        return await self._first(good[:_MOST_ATTEMPTS], target)

    def _permitted(self, addresses: Sequence[Address], target: ProxyTarget) -> list[Address]:
        """Those of a target's addresses that it may be reached at. :raises Refusal: it may not be at all"""
        return [address for address in addresses if allowed(address, self._networks)]

    async def _addresses(self, target: ProxyTarget) -> list[Address]:
        if target.literal is not None:
            return [target.literal]
        try:
            async with self._lookups:
                with anyio.fail_after(self._seconds):
                    found = await self._resolve(target.host, target.port)
        # UnicodeError: a name that is no name in the eyes of the resolver's own encoding.
        except (OSError, UnicodeError, TimeoutError):
            raise Refusal(502, f"the address of {target.host} cannot be found") from None
        return [ip_address(text) for text in found]

    async def _first(self, addresses: Sequence[Address], target: ProxyTarget) -> SocketStream:
        for address in addresses:
            try:
                with anyio.fail_after(self._seconds):
                    return await anyio.connect_tcp(str(address), target.port)
            except (OSError, TimeoutError):
                continue
        raise Refusal(504, f"{target.host} does not answer at port {target.port}")


class WebhookDialer(Dialer):
    """Opens connections to the receivers of webhooks: to port 443 of public addresses, and to any port of the
    networks that the operator has named.

    Who has a name with a public and a private address, is about to be somebody else: all of them have to be good.
    """

    def _permitted(self, addresses: Sequence[Address], target: ProxyTarget) -> list[Address]:
        named = [each for each in addresses if not public(each) and allowed(each, self._networks)]
        if any(not allowed(each, self._networks) for each in addresses):
            raise not_allowed(target, f"{target.host} is at an address that is not public")
        if target.port != _TLS_PORT and len(named) < len(addresses):
            raise not_allowed(
                target,
                f"port {target.port} is not allowed: a public receiver listens on {_TLS_PORT}",
            )
        return list(addresses)


def not_allowed(target: ProxyTarget, why: str) -> Refusal:
    """The error of a target at an address that may not be reached."""
    return Refusal(403, why, reason="address_not_allowed", host=target.host, port=target.port)
