"""HTTP/1.1 to the servers that a session may use with a credential: httpcore2, one pool for each session.

A connection that is used again must never give one request what was meant for another. So there are three
fences. No pool is shared: whatever goes wrong in one, it cannot reach another session. A connection is kept
only when its answer was read to the end; httpcore2 closes it after everything else, also a cancellation.
And it is not used again if the server has sent more than that answer. What was received and not read is
known only to parts of the libraries that are not public; tests fail if these move.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import cache
from typing import Any, Final

import anyio
import httpcore2
import httpx2
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSAttribute, TLSStream
from httpcore2._backends.anyio import AnyIOStream

from roost.egress.dial import Dialer
from roost.egress.hosts import target_of
from roost.egress.options import EgressBounds
from roost.egress.wire import Headers

_MOST_KEPT: Final = 8
_KEPT_SECONDS: Final = 60.0
_PROBED_SECONDS: Final = (
    60  # a server that may be silent for long is asked whether it is still there
)

# At the level of debugging it writes down the headers of answers, and a gateway may quote a key in them.
logging.getLogger("httpcore2").setLevel(logging.WARNING)


class UpstreamConnections:
    """The connections of one session: a bounded number, and few that are kept.

    A session may have as many requests under way as it has connections to its sockets, so with `most` of those
    no request waits for a connection. Those to addresses that clients gave are apart, and the `dialer` opens
    them: only to addresses that sandboxes may reach.
    """

    def __init__(self, bounds: EgressBounds, dialer: Dialer, most: int) -> None:
        self._pool = _pool(_Network(), most)
        self._restricted = _pool(_RestrictedNetwork(dialer), most)
        connect, answer = bounds.connect_seconds, bounds.upstream_seconds
        self._timeout = {"connect": connect, "pool": connect, "read": answer, "write": answer}
        self._under_way = 0
        self._used = anyio.current_time()

    @asynccontextmanager
    async def send(
        self,
        url: httpx2.URL,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterable[bytes],
        *,
        restricted: bool = False,
        patient: bool = False,
    ) -> AsyncGenerator[httpx2.Response, None]:
        """The answer's head, and its body to be read until the context ends.

        A body of unknown length goes in chunks, unless the headers say its length. `restricted`: only to an
        address that sandboxes may reach. `patient`: the answer may take as long as it likes.

        :raises Refusal: its address may not be reached
        :raises httpx2.TransportError: there is no answer
        """
        pool = self._restricted if restricted else self._pool
        timeout = self._timeout | {"read": None} if patient else self._timeout
        port = url.port or (443 if url.scheme == "https" else 80)
        where = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=port, target=target)
        head = [(b"host", url.netloc), *headers, *_framing(method, headers, body)]
        request = httpcore2.Request(
            method, where, headers=head, content=body, extensions={"timeout": timeout}
        )
        self._under_way += 1
        try:
            with _explained():
                answer = await pool.handle_async_request(request)
            stream = _Body(answer)
            try:
                yield httpx2.Response(answer.status, headers=answer.headers, stream=stream)
            finally:
                await stream.aclose()
        finally:
            self._under_way -= 1
            self._used = anyio.current_time()

    @property
    def connections(self) -> int:
        """How many connections are open, in use or kept."""
        return len(self._pool.connections) + len(self._restricted.connections)

    async def tidy(self) -> None:
        """Close what is kept but was not used for long. Never returns.

        The pool itself looks after its connections only when it is used.
        """
        while True:
            await anyio.sleep(_KEPT_SECONDS / 2)
            if not self._under_way and anyio.current_time() - self._used > _KEPT_SECONDS:
                await self._close()

    async def close(self) -> None:
        """Close every connection, also those in use."""
        with anyio.CancelScope(shield=True):
            await self._close()

    async def _close(self) -> None:
        try:
            await self._pool.aclose()
        finally:
            await self._restricted.aclose()


def _pool(network: httpcore2.AsyncNetworkBackend, most: int) -> httpcore2.AsyncConnectionPool:
    return _Pool(
        ssl_context=_tls(),
        max_connections=most,
        max_keepalive_connections=_MOST_KEPT,
        keepalive_expiry=_KEPT_SECONDS,
        network_backend=network,
    )


class _Pool(httpcore2.AsyncConnectionPool):
    def create_connection(self, origin: httpcore2.Origin) -> httpcore2.AsyncConnectionInterface:
        return _Connection(
            origin,
            ssl_context=self._ssl_context,
            keepalive_expiry=self._keepalive_expiry,
            network_backend=self._network_backend,
        )


class _Connection(httpcore2.AsyncHTTPConnection):
    def has_expired(self) -> bool:
        """Asked by the pool of each connection that no request has, before one gets it."""
        return super().has_expired() or self._has_surplus()

    def _has_surplus(self) -> bool:
        """Whether more was parsed than the last answer: the next request would take it for its own."""
        connection = self._connection
        if not isinstance(connection, httpcore2.AsyncHTTP11Connection):
            return False
        return connection._h11_state.trailing_data != (b"", False)


class _Network(httpcore2.AnyIOBackend):
    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return _Stream(_within(await super().connect_tcp(*args, **options)))


class _RestrictedNetwork(httpcore2.AnyIOBackend):
    """Opens connections as sandboxes may have them: the name is looked up once, and its address checked."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer

    async def connect_tcp(
        self, host: str, port: int, *args: Any, **options: Any
    ) -> httpcore2.AsyncNetworkStream:
        written = f"[{host}]" if ":" in host else host
        stream = await self._dialer.dial(target_of(b"CONNECT", f"{written}:{port}".encode()))
        raw = stream.extra(SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBED_SECONDS)
        return _Stream(stream)


class _Stream(AnyIOStream):
    """A stream that knows of all bytes it has taken from the system, and is closed with a failed handshake."""

    async def start_tls(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        try:
            return _Stream(_within(await super().start_tls(*args, **options)))
        except BaseException:  # the library does so, but not when it is cancelled
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        """What is asked for; `is_readable` is asked of a connection before it is used again."""
        found = super().get_extra_info(info)
        return found or self._has_unread() if info == "is_readable" else found

    def _has_unread(self) -> bool:
        """Whether something was received that nobody has read: the system does not know of it any more."""
        stream: Any = self._stream
        if isinstance(stream, TLSStream):
            if stream._read_bio.pending or stream.extra(TLSAttribute.ssl_object).pending():
                return True
            stream = stream.transport_stream
        return bool(stream._protocol.read_queue)


def _within(stream: httpcore2.AsyncNetworkStream) -> ByteStream:
    if not isinstance(stream, AnyIOStream):
        raise TypeError(f"{stream!r} is not what the library made when this was written")
    return stream._stream


class _Body(httpx2.AsyncByteStream):
    """An answer's body. Closed before its end, its connection is closed too."""

    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _explained():
            async with aclosing(self._answer.aiter_stream()) as parts:
                async for data in parts:
                    yield data

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._answer.aclose()


def _framing(
    method: str, headers: Iterable[tuple[bytes, bytes]], body: bytes | AsyncIterable[bytes]
) -> Headers:
    if isinstance(body, bytes):
        return [(b"content-length", b"%d" % len(body))] if body or method != "GET" else []
    if any(name == b"content-length" for name, _ in headers):
        return []
    return [(b"transfer-encoding", b"chunked")]


@contextmanager
def _explained() -> Generator[None, None, None]:
    """One error for whatever goes wrong. The library's own words may quote what was sent."""
    try:
        yield
    except httpcore2.ConnectError:
        raise httpx2.ConnectError("there is no connection") from None
    except httpcore2.TimeoutException:
        raise httpx2.ReadTimeout("the server took too long") from None
    except httpcore2.ProtocolError:
        raise httpx2.RemoteProtocolError("that is not HTTP, or was cut off") from None
    except (httpcore2.NetworkError, OSError):
        raise httpx2.NetworkError("the connection broke") from None


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading all certificates takes a while. Sessions of TLS are not resumed with it."""
    return httpx2.create_ssl_context()
