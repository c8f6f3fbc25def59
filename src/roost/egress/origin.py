"""HTTP/1.1 to one server, by the shortest way: connections are kept, and a request is one write.

Every request of an agent passes here, and whoever waits for its answer waits for this first. A library's
client takes a millisecond to send what an agent sends, most of it to look again at what was checked
already; what is asked of it here is little: no redirects, no cookies, no proxies, no second version of
HTTP. It cannot be told to skip that, so this does without. Answers are httpx2's, which decodes them.
"""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Final

import anyio
import httptools
import httpx2
from anyio.abc import ByteStream, SocketAttribute

from roost.egress.options import Bounds
from roost.egress.wire import Headers

_MOST_KEPT: Final = 64
_KEPT_SECONDS: Final = 60.0
_CHUNK: Final = 65536
_LONGEST_HEAD: Final = 256 * 1024


class Origin:
    """One server, and the connections to it that are kept for the next request, newest last."""

    def __init__(self, url: httpx2.URL, bounds: Bounds) -> None:
        self._url = url
        self._bounds = bounds
        self._kept: list[_Connection] = []

    async def send(
        self, method: str, target: bytes, headers: Headers, body: bytes
    ) -> httpx2.Response:
        """The answer's head, and its body to be read. The headers have no line breaks in them.

        :raises httpx2.TransportError: there is none
        """
        lines = [b"%b %b HTTP/1.1" % (method.encode(), target), b"host: %b" % self._url.netloc]
        lines += [b"%b: %b" % header for header in headers]
        if body or method != "GET":
            lines.append(b"content-length: %d" % len(body))
        connection = await self._spare() or await self._connected()
        try:
            with _explained():
                await connection.ask(b"\r\n".join((*lines, b"", body)))
        except BaseException:
            await connection.close()
            raise
        return httpx2.Response(
            connection.status,
            headers=connection.headers,
            stream=_Body(connection, self._keep),
        )

    async def close(self) -> None:
        """Let go of what is kept."""
        while self._kept:
            await self._kept.pop().close()

    async def _spare(self) -> _Connection | None:
        while self._kept:
            connection = self._kept.pop()
            if connection.is_fresh():
                return connection
            await connection.close()
        return None

    async def _connected(self) -> _Connection:
        host, port = self._url.raw_host.decode(), self._url.port
        with _explained(), anyio.fail_after(self._bounds.connect_seconds):
            stream: ByteStream
            if self._url.scheme == "https":
                stream = await anyio.connect_tcp(
                    host, port or 443, ssl_context=_tls(), tls_standard_compatible=False
                )
            else:
                stream = await anyio.connect_tcp(host, port or 80)
        return _Connection(stream, self._bounds.upstream_seconds)

    async def _keep(self, connection: _Connection) -> None:
        connection.since = time.monotonic()
        self._kept.append(connection)
        while self._kept and (len(self._kept) > _MOST_KEPT or not self._kept[0].is_fresh()):
            await self._kept.pop(0).close()


@asynccontextmanager
async def origins(bounds: Bounds) -> AsyncGenerator[Callable[[httpx2.URL], Origin], None]:
    """Servers by their addresses, each the same one for whoever asks, until the context ends."""
    known: dict[tuple[str, bytes], Origin] = {}

    def origin(url: httpx2.URL) -> Origin:
        return known.setdefault((url.scheme, url.netloc), Origin(url, bounds))

    try:
        yield origin
    finally:
        for each in known.values():
            await each.close()


class _Connection:
    """One answer at a time. The methods without an underscore that begin with `on` are the parser's."""

    def __init__(self, stream: ByteStream, patience: float) -> None:
        self.status = 0
        self.headers: Headers = []
        self.since = time.monotonic()
        self.whole = False
        self._stream = stream
        self._raw = stream.extra(SocketAttribute.raw_socket)
        self._patience = patience
        self._parser = httptools.HttpResponseParser(self)
        self._read: list[bytes] = []
        self._size = 0
        self._headed = self._ended = False

    def is_fresh(self) -> bool:
        """Whether it was used lately, and the other side has not ended it since."""
        if time.monotonic() - self.since > _KEPT_SECONDS or self._raw.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._raw, select.POLLIN)
        return not poll.poll(0)

    def can_stay(self) -> bool:
        """Whether its answer is over, and another one may follow."""
        return self.whole and not self._ended

    async def ask(self, request: bytes) -> None:
        """Send a request, and read the head of its answer."""
        self.whole = self._headed = False
        self._size = 0
        with anyio.fail_after(self._patience):
            await self._stream.send(request)
        while not self._headed:
            await self._fill()
            if self._size > _LONGEST_HEAD and not self._headed:
                raise httpx2.RemoteProtocolError("the answer's head is too large")

    async def body(self) -> AsyncIterator[bytes]:
        """The answer's body, as it comes."""
        while self._read or not self.whole:
            if not self._read:
                await self._fill()
            read, self._read = self._read, []
            for data in read:
                yield data

    async def close(self) -> None:
        """End it, whatever it is at."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await self._stream.aclose()

    async def _fill(self) -> None:
        try:
            with anyio.fail_after(self._patience):
                data = await self._stream.receive(_CHUNK)
        except anyio.EndOfStream:
            self._end()
            return
        self._size += len(data)
        self._parser.feed_data(data)

    def _end(self) -> None:
        """The other side has no more to say: the end of a body, if nothing else has told its length."""
        self._ended = True
        told = {b"content-length", b"transfer-encoding"} & {name for name, _ in self.headers}
        if not self._headed or told:
            raise httpx2.RemoteProtocolError("the answer was cut off")
        self.whole = True

    def on_message_begin(self) -> None:
        if self.whole:  # nobody has asked for this one
            self._ended = True
        else:
            self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.whole and not self._headed:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headed = self.status >= 200  # before that, it only says that it has heard us

    def on_body(self, data: bytes) -> None:
        if not self.whole:
            self._read.append(data)

    def on_message_complete(self) -> None:
        self.whole = self._headed
        self._ended = self._ended or not self._parser.should_keep_alive()


class _Body(httpx2.AsyncByteStream):
    """Read to its end, its connection is kept; else it is closed."""

    def __init__(
        self, connection: _Connection, keep: Callable[[_Connection], Awaitable[None]]
    ) -> None:
        self._connection = connection
        self._keep = keep

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _explained():
            async for data in self._connection.body():
                yield data

    async def aclose(self) -> None:
        if self._connection.can_stay():
            await self._keep(self._connection)
        else:
            await self._connection.close()


@contextmanager
def _explained() -> Generator[None, None, None]:
    """What goes wrong on the way, in httpx2's words."""
    try:
        yield
    except TimeoutError as error:
        raise httpx2.ReadTimeout("the server took too long") from error
    except (OSError, ssl.SSLError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
        raise httpx2.NetworkError("the connection broke, or there was none") from error
    except httptools.HttpParserError as error:
        raise httpx2.RemoteProtocolError("that is not HTTP") from error


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading all certificates takes a while."""
    context = httpx2.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
