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

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import NamedTuple

import anyio

from roost.egress.hosts import HostList, ProxyTarget, target_of
from roost.egress.options import EgressBounds
from roost.egress.reports import Refusal

Pieces = AsyncGenerator[bytes, None]
"""What one side of a tunnel says, as it comes."""

_RECORDS = range(20, 25)
"""The first byte of every TLS record. No handshake begins with another one than 22, but some servers
pass over others in front of it."""
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_HELLO = 2
_SERVER_NAME = b"\0\0"
_PROTOCOLS = b"\0\x10"
_HOST_NAME = b"\0"

ACCESS_DENIED = bytes((21, 3, 3, 0, 2, 2, 49))
"""An alert, which a TLS client shows to its user."""

_RANDOM = slice(11, 43)
_RETRY = sha256(b"HelloRetryRequest").digest()
"""What a ServerHello has in the place of random bytes if it stands for "ask again" (RFC 8446)."""


class Unreadable(Exception):
    """What begins as TLS does not go on with a ClientHello of the usual form and size."""


class Hello(NamedTuple):
    """A ClientHello: the name in it, the bytes up to its end, what came after them, and the protocols that
    the client offers to speak inside (ALPN); none if it does not say.
    """

    name: bytes | None
    sent: bytes
    rest: bytes
    protocols: Sequence[bytes] = ()


def begins_as_tls(data: bytes) -> bool:
    """Whether a client's first bytes are those of a TLS record."""
    return data[0] in _RECORDS


def asks_again(begun: bytes) -> bool | None:
    """Whether a server's first bytes ask for a second ClientHello; None: they do not say yet."""
    if begun[:1] not in (b"", bytes([_HANDSHAKE])):
        return False
    if len(begun) < _RANDOM.stop:
        return None
    return begun[5] == _SERVER_HELLO and begun[_RANDOM] == _RETRY


class HelloReader:
    """Puts a ClientHello together from what arrives, however that is cut.

    A second one (`again`) may have other records in front of it, which are passed over.
    """

    def __init__(self, limit: int, *, again: bool = False) -> None:
        self._limit = limit
        self._again = again
        self._raw = bytearray()
        self._at = 0  # where the next record begins
        self._message = bytearray()

    def feed(self, data: bytes) -> Hello | None:
        """The hello, if these are the last bytes of it. :raises Unreadable: it is none"""
        self._raw += data
        while self._take_record():
            if self._complete():
                name, protocols = _asked_in(bytes(self._message[4:]))
                sent, rest = bytes(self._raw[: self._at]), bytes(self._raw[self._at :])
                return Hello(name, sent, rest, protocols)
        if len(self._raw) > self._limit:
            raise Unreadable
        return None

    def _take_record(self) -> bool:
        """Move on by one record, if a whole one is there."""
        head = bytes(self._raw[self._at : self._at + 5])
        if head and not self._fits(head):
            raise Unreadable
        end = self._at + 5 + int.from_bytes(head[3:], "big")
        if len(head) < 5 or len(self._raw) < end:
            return False
        if head[0] == _HANDSHAKE:
            self._message += self._raw[self._at + 5 : end]
        self._at = end
        return True

    def _fits(self, head: bytes) -> bool:
        passed_over = self._again and not self._message
        return (head[0] == _HANDSHAKE or passed_over) and head[1:2] in (b"", b"\3")

    def _complete(self) -> bool:
        """Whether the message is whole. It has to end where its last record does."""
        if self._message and self._message[0] != _CLIENT_HELLO:
            raise Unreadable
        if len(self._message) < 4:
            return False
        size = 4 + int.from_bytes(self._message[1:4], "big")
        if len(self._message) > size or self._at > self._limit:
            raise Unreadable
        return len(self._message) == size


class _Fields:
    """Bytes to be read from front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise Unreadable
        return self._data[begin : self._at]

    def vector(self, width: int) -> bytes:
        """Bytes with their number in front, which is itself so many bytes wide."""
        return self.take(int.from_bytes(self.take(width), "big"))

    def more(self) -> bool:
        return self._at < len(self._data)


def _asked_in(body: bytes) -> tuple[bytes | None, tuple[bytes, ...]]:
    """The name and the protocols that a ClientHello asks for."""
    fields = _Fields(body)
    fields.take(2 + 32)  # version, random
    fields.vector(1)  # session
    fields.vector(2)  # ciphers
    fields.vector(1)  # compressions
    extensions = _Fields(fields.vector(2) if fields.more() else b"")
    names: list[bytes] = []
    protocols: tuple[bytes, ...] = ()
    while extensions.more():
        kind, data = extensions.take(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            names.append(_host_name(data))
        elif kind == _PROTOCOLS:
            protocols = _protocols(data)
    if fields.more() or len(names) > 1:
        raise Unreadable
    return (names[0] if names else None), protocols


def _protocols(extension: bytes) -> tuple[bytes, ...]:
    """Those that a client offers. A list that cannot be read is for the server to refuse: it names nobody."""
    found = []
    try:
        offered = _Fields(_Fields(extension).vector(2))
        while offered.more():
            found.append(offered.vector(1))
    except Unreadable:
        return ()
    return tuple(found)


def _host_name(extension: bytes) -> bytes:
    """The one name in the list: others could be meant for a server that takes the last."""
    outer = _Fields(extension)
    inner = _Fields(outer.vector(2))
    kind, name = inner.take(1), inner.vector(2)
    if kind != _HOST_NAME or not name or inner.more() or outer.more():
        raise Unreadable
    return name


class NameCheck:
    """Looks at the beginning of one tunnel."""

    def __init__(self, target: ProxyTarget, hosts: HostList, bounds: EgressBounds) -> None:
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
