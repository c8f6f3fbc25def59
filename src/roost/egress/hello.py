"""What TLS says in the clear before it goes dark: the name that a client asks for, and whether the
server lets it ask once more.

Whoever sends this wants to get past a rule. So there is one reading of each message: where a server
might be lenient, or might read something else into it, it is unreadable here.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

_RECORDS = range(20, 25)
"""The first byte of every TLS record. No handshake begins with another one than 22, but some servers
pass over others in front of it."""
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_HELLO = 2
_SERVER_NAME = b"\0\0"
_HOST_NAME = b"\0"

ACCESS_DENIED = bytes((21, 3, 3, 0, 2, 2, 49))
"""An alert, which a TLS client shows to its user."""

_RANDOM = slice(11, 43)
_RETRY = sha256(b"HelloRetryRequest").digest()
"""What a ServerHello has in the place of random bytes if it stands for "ask again" (RFC 8446)."""


class Unreadable(Exception):
    """What begins as TLS does not go on with a ClientHello of the usual form and size."""


class Hello(NamedTuple):
    """A ClientHello: the name in it, the bytes up to its end, and what came after them."""

    name: bytes | None
    sent: bytes
    rest: bytes


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
                name = _name_in(bytes(self._message[4:]))
                return Hello(name, bytes(self._raw[: self._at]), bytes(self._raw[self._at :]))
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


def _name_in(body: bytes) -> bytes | None:
    fields = _Fields(body)
    fields.take(2 + 32)  # version, random
    fields.vector(1)  # session
    fields.vector(2)  # ciphers
    fields.vector(1)  # compressions
    extensions = _Fields(fields.vector(2) if fields.more() else b"")
    names = []
    while extensions.more():
        kind, data = extensions.take(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            names.append(_host_name(data))
    if fields.more() or len(names) > 1:
        raise Unreadable
    return names[0] if names else None


def _host_name(extension: bytes) -> bytes:
    """The one name in the list: others could be meant for a server that takes the last."""
    outer = _Fields(extension)
    inner = _Fields(outer.vector(2))
    kind, name = inner.take(1), inner.vector(2)
    if kind != _HOST_NAME or not name or inner.more() or outer.more():
        raise Unreadable
    return name
