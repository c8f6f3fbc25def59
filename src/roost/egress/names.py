"""Holds the name that a TLS client asks for behind CONNECT against the rules for hosts.

One address answers for many names, and which of them is meant is said only inside the tunnel. Both
directions are looked at, for as long as TLS speaks in the clear:

* The client's ClientHello goes on when its name is allowed. One without a name goes on, too: it asks
  for whatever is at the address, and that was found by an allowed host.
* A server may ask for a second ClientHello, and some take the name from that one. So what a client
  says after the first waits for the server's answer; without early data it has no reason to be there
  before it.

What does not begin as TLS goes on at once, and nothing that the server says ever waits.
"""

from __future__ import annotations

from contextlib import aclosing

import anyio

from roost.egress.hello import Hello, HelloReader, Unreadable, asks_again, begins_as_tls
from roost.egress.hosts import HostList, Target, target_of
from roost.egress.options import Bounds
from roost.egress.refusal import Refusal
from roost.egress.tunnel import Pieces


class NameCheck:
    """Looks at the beginning of one tunnel."""

    def __init__(self, target: Target, hosts: HostList, bounds: Bounds) -> None:
        self._target = target
        self._hosts = hosts
        self._bounds = bounds
        self._begun = b""  # the server's first bytes, until they say what is to be known
        self._again: bool | None = None
        self._answered = anyio.Event()

    async def outgoing(self, pieces: Pieces) -> Pieces:
        """What the client says, as far as it may go on. :raises Refusal: it may not"""
        async with aclosing(pieces):
            data = await anext(pieces, b"")
            if data and begins_as_tls(data):
                hello = await self._hello(data, pieces)
                yield hello.sent
                data = await self._after(hello, pieces)
            if data:
                yield data
            async for piece in pieces:
                yield piece

    async def incoming(self, pieces: Pieces) -> Pieces:
        """What the server says, all of it."""
        async with aclosing(pieces):
            async for piece in pieces:
                if self._again is None:
                    self._begun += piece
                    self._know(asks_again(self._begun))
                yield piece
        self._know(bool(self._again))

    def _know(self, again: bool | None) -> None:
        if again is not None:
            self._again = again
            self._begun = b""
            self._answered.set()

    async def _after(self, first: Hello, pieces: Pieces) -> bytes:
        """What the client says next. It has to wait for the server if it did not do so itself."""
        more = first.rest or await anext(pieces, b"")
        if more:
            await self._answered.wait()
        if more and self._again:
            second = await self._hello(more, pieces, again=True)
            return second.sent + second.rest
        return more

    async def _hello(self, data: bytes, pieces: Pieces, *, again: bool = False) -> Hello:
        """A ClientHello that may go on; an empty one if the client leaves in the middle of it."""
        reader = HelloReader(self._bounds.head_bytes, again=again)
        try:
            with anyio.fail_after(self._bounds.head_seconds):
                while (hello := reader.feed(data)) is None:
                    data = await anext(pieces, b"")
                    if not data:
                        return Hello(None, b"", b"")
        except (Unreadable, TimeoutError):
            raise self._unreadable() from None
        if hello.name is not None:
            self._check(hello.name)
        return hello

    def _check(self, name: bytes) -> None:
        try:
            asked = target_of(b"CONNECT", b"%s:%d" % (name, self._target.port))
        except Refusal:
            raise self._unreadable() from None
        if asked.host != self._target.host and not self._hosts.has(asked):
            raise Refusal(
                403,
                f"{asked.host} is not an allowed host",
                reason="server_name_not_allowed",
                host=asked.host,
                port=asked.port,
                hint=f"It connected to {self._target.host} and asked there, by TLS, for "
                f"{asked.host}. If it may, add that name to the environment's `allowed_hosts`.",
            )

    def _unreadable(self) -> Refusal:
        return Refusal(
            403,
            "the name that is asked for by TLS cannot be read",
            reason="client_hello_unreadable",
            host=self._target.host,
            port=self._target.port,
            hint="What it sent there begins as TLS, but its first message is malformed, has no "
            f"proper host name, is over {self._bounds.head_bytes} bytes, or took over "
            f"{self._bounds.head_seconds:g} seconds. A program that is to connect there has to "
            "speak plain TLS.",
        )
