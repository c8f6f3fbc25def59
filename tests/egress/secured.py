"""TLS on both sides of a proxy that replaces placeholders: servers that are trusted, and clients inside."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import h11
import msgspec
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener, TLSStream

from roost.egress.tls import CertificateAuthority
from roost.ports.egress import Substitution
from tests.egress.both_sides import Far, Inside, Seen

SECRET = "s3cr3t/+Value&of<a>key-0123456789"
PLACEHOLDER = "roost_" + "0123456789abcdef" * 2
HOST = "api.example"


class SecureFar(Far):
    """A real TLS server on loopback, with a certificate for each name that it is asked for."""

    def __init__(self, authority: CertificateAuthority, *, protocols: Sequence[str] = ()) -> None:
        super().__init__()
        self._authority = authority
        self.names: list[str | None] = []
        self._context = authority.context("nobody.example")
        self._context.set_alpn_protocols(list(protocols) or ["http/1.1"])
        self._context.sni_callback = self._choose

    def _choose(self, connection: Any, name: str | None, _: ssl.SSLContext) -> None:
        self.names.append(name)
        if name is not None:
            connection.context = self._authority.context(name)

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[SecureFar, None]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(SocketAttribute.local_port)
        secure = TLSListener(listener, self._context, standard_compatible=False)
        async with secure, anyio.create_task_group() as tasks:
            tasks.start_soon(secure.serve, self._each)
            yield self
            tasks.cancel_scope.cancel()

    async def _each(self, stream: TLSStream) -> None:
        await self._talk(stream)  # type: ignore[arg-type]  # a test may put another one in its place


def trusting(certificate: bytes) -> ssl.SSLContext:
    """A client's context that trusts this one, and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certificate.decode())
    return context


def kept(value: str | None) -> Callable[[], Awaitable[str | None]]:
    async def secret() -> str | None:
        return value

    return secret


def substitution(**changes: Any) -> Substitution:
    fields: dict[str, Any] = {
        "variable": "API_KEY",
        "placeholder": PLACEHOLDER,
        "secret": kept(SECRET),
        "hosts": [HOST],
    }
    return Substitution(**fields | changes)


class Answer(msgspec.Struct):
    """An answer as the client inside saw it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        return dict(self.headers).get(name)


class Client:
    """A client inside, on one connection."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream

    async def ask(self, request: bytes) -> Answer:
        """Send the bytes of one request; its answer."""
        await self.stream.send(request)
        return await self.answer(request.partition(b" ")[0])

    async def answer(self, method: bytes = b"GET") -> Answer:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        head: h11.Response | None = None
        body = b""
        with anyio.fail_after(60):
            while not isinstance(event := parser.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    parser.receive_data(await self.stream.receive())
                elif isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
        assert head is not None
        return Answer(head.status_code, list(head.headers), body)


@asynccontextmanager
async def client(
    inside: Inside, port: int, host: str = HOST, *, name: str | None = None, ca: bytes = b""
) -> AsyncGenerator[Client, None]:
    """A client that has connected to a host by TLS, and trusts what the sandbox is told to trust."""
    file = next(each.source for each in inside.opened.mounts if each.target.endswith("ca.pem"))
    context = trusting(ca or await anyio.Path(file).read_bytes())
    context.check_hostname = name is None
    async with inside.tunnel(host, port) as stream:
        with anyio.fail_after(60):
            secured = await TLSStream.wrap(
                stream, hostname=name or host, ssl_context=context, standard_compatible=False
            )
        yield Client(secured)


def request(
    *headers: str, method: str = "GET", path: str = "/", host: str | None = None, body: bytes = b""
) -> bytes:
    """The bytes of a request. A body has its length with it, unless the headers say another thing."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", *headers]
    if body and not any(each.lower().startswith("transfer-encoding") for each in headers):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def echo(seen: Seen, stream: ByteStream) -> None:
    """Answer with all that was asked."""
    said = "\n".join(f"{name}: {value}" for name, value in seen.headers).encode()
    data = said + b"\n\n" + seen.body
    await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data))
