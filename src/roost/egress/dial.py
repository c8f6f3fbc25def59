"""From a permitted host to an open connection, by way of an address that was checked.

A name is looked up once, and the connection goes to the address that was looked at: a name server
that answers differently the second time (rebinding) is not asked a second time.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

import anyio
from anyio.abc import SocketStream

from roost.egress.addresses import Address, Network, allowed
from roost.egress.hosts import Target
from roost.egress.refusal import Refusal

_MOST_ATTEMPTS = 4


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

    async def dial(self, target: Target) -> SocketStream:
        """A connection to the target. :raises Refusal: it may not be reached, or it does not answer"""
        addresses = await self._addresses(target)
        good = [address for address in addresses if allowed(address, self._networks)]
        if not good:
            raise Refusal(
                403,
                f"{target.host} is at an address that is not public",
                reason="address_not_allowed",
                host=target.host,
                port=target.port,
            )
        return await self._first(good[:_MOST_ATTEMPTS], target)

    async def _addresses(self, target: Target) -> list[Address]:
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

    async def _first(self, addresses: Sequence[Address], target: Target) -> SocketStream:
        for address in addresses:
            try:
                with anyio.fail_after(self._seconds):
                    return await anyio.connect_tcp(str(address), target.port)
            except (OSError, TimeoutError):
                continue
        raise Refusal(504, f"{target.host} does not answer at port {target.port}")
