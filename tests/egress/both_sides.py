"""What the tests put on both sides of the proxy: a server that answers as told, and clients."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import anyio
import h11
import httpcore2
import httpx2
import msgspec
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from httpcore2._backends.anyio import AnyIOStream
from pydantic import SecretStr

from roost.egress.connections import UpstreamConnections
from roost.egress.dial import Dialer, resolve
from roost.egress.host import HostEgress, serving
from roost.egress.options import EgressBounds, EgressOptions, ModelUpstream, anthropic
from roost.egress.unix import UnixStream
from roost.ports.egress import Account, Credential, Grant, OpenGrant, Origin, RefusalReport

KEY = "sk-ant-REAL-0123456789-abcdefghijklmnopqrstuvwxyz"
LOOPBACK = (ip_network("127.0.0.0/8"),)
QUICK = EgressBounds(
    head_seconds=1,
    body_seconds=1,
    keep_alive_seconds=5,
    linger_seconds=0.2,
    connect_seconds=2,
    send_seconds=5,
    upstream_seconds=5,
    idle_seconds=5,
    callback_seconds=1,
)
PATIENT = EgressBounds(head_seconds=60, body_seconds=60, connect_seconds=60, callback_seconds=60)
"""For programs, which take their time where others keep the machine busy."""


class Seen(msgspec.Struct):
    """A request as the server saw it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


Reply = Callable[[Seen, ByteStream], Awaitable[None]]


class Far:
    """A real server on loopback; `reply` writes its answers, byte by byte if it likes."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.port = 0
        self.open = 0
        self.connections = 0
        self.reply: Reply = answer({"type": "message", "usage": {}})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[Far, None]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(SocketAttribute.local_port)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._talk)
            yield self
            tasks.cancel_scope.cancel()

    async def _talk(self, stream: SocketStream) -> None:
        self.open += 1
        self.connections += 1
        try:
            async with stream:
                while (seen := await read_request(stream)) is not None:
                    self.seen.append(seen)
                    await self.reply(seen, stream)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            pass
        finally:
            self.open -= 1


async def read_request(stream: ByteStream) -> Seen | None:
    """One request, parsed without mercy; None at the end."""
    parser = h11.Connection(h11.SERVER)
    head: h11.Request | None = None
    body = b""
    while not isinstance(event := parser.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            try:
                parser.receive_data(await stream.receive())
            except anyio.EndOfStream:
                return None
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    assert head is not None
    headers = [(name.decode(), value.decode()) for name, value in head.headers]
    return Seen(head.method.decode(), head.target.decode(), headers, body)


def answer(body: object, status: int = 200, **headers: str) -> Reply:
    """An answer with a JSON body, or with the bytes given."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    kind = "" if "content_type" in headers else "content-type: application/json\r\n"
    head = f"HTTP/1.1 {status} X\r\n{kind}{extra}content-length: {len(data)}\r\n\r\n"

    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(head.encode() + data)

    return reply


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def frame(kind: str, **fields: object) -> bytes:
    data = msgspec.json.encode({"type": kind, **fields})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def spoken(*texts: str, input_tokens: int = 10, output_tokens: int = 20) -> list[bytes]:
    """The frames of an answer that streams."""
    usage = {"input_tokens": input_tokens, "output_tokens": 1, "cache_read_input_tokens": 7}
    deltas = [
        frame("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
        for text in texts
    ]
    return [
        frame("message_start", message={"id": "msg_1", "usage": usage}),
        *deltas,
        frame("message_delta", delta={}, usage={"output_tokens": output_tokens}),
        frame("message_stop"),
    ]


def streamed(*pieces: bytes) -> Reply:
    async def reply(seen: Seen, stream: ByteStream) -> None:
        await stream.send(STREAM_HEAD)
        for piece in pieces:
            await stream.send(chunk(piece))
        await stream.send(b"0\r\n\r\n")

    return reply


def repository(url: str, token: str | None = None) -> Origin:
    credential = None if token is None else Credential.fixed(token, "basic")
    return Origin(url=url, protocol="git", credential=credential)


def upstream_connections(bounds: EgressBounds = QUICK) -> UpstreamConnections:
    dialer = Dialer(resolve, LOOPBACK, bounds.connect_seconds)
    return UpstreamConnections(bounds, dialer, 2 * bounds.connections)


class EgressSetup:
    """An egress with one upstream, and the reports it makes."""

    def __init__(self, far: Far, directory: Path) -> None:
        self.far = far
        self.directory = directory
        self.accounts: list[Account] = []
        self.refusals: list[RefusalReport] = []

    def options(self, **changes: Any) -> EgressOptions:
        fields: dict[str, Any] = {
            "directory": self.directory,
            "upstreams": [ModelUpstream.default(self.upstream())],
            "allow_networks": LOOPBACK,
            "ports": frozenset((80, 443, self.far.port)),
            "bounds": QUICK,
        }
        return EgressOptions(**fields | changes)

    def upstream(self, url: str | None = None, key: str | None = KEY) -> Origin:
        return anthropic(url or self.far.url, None if key is None else SecretStr(key))

    def grant(self, **changes: Any) -> Grant:
        async def account(report: Account) -> None:
            self.accounts.append(report)

        async def refused(report: RefusalReport) -> None:
            self.refusals.append(report)

        fields = {"session_id": "sesn_1", "generation": 1, "account": account, "refused": refused}
        return Grant(**fields | changes)

    @asynccontextmanager
    async def opened(
        self, options: dict[str, Any] | None = None, **grant: Any
    ) -> AsyncGenerator[Inside, None]:
        async with (
            serving(self.options(**options or {})) as egress,
            egress.open(self.grant(**grant)) as opened,
        ):
            yield Inside(opened, egress)

    async def until(self, true: Callable[[], bool]) -> None:
        await until(true)


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not true():  # noqa: ASYNC110 - it stands for many conditions
            await anyio.sleep(0.005)


async def connect(path: str) -> UnixStream:
    near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    near.connect(path)
    return UnixStream(near)


class UnixBackend(httpcore2.AsyncNetworkBackend):
    """The HTTP client's own unix sockets do not get along with uvloop."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def connect_tcp(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        return AnyIOStream(await connect(self._path))


def unix_transport(path: str) -> httpx2.AsyncHTTPTransport:
    transport = httpx2.AsyncHTTPTransport(verify=False)
    transport._pool = httpcore2.AsyncConnectionPool(network_backend=UnixBackend(path))
    return transport


class Inside:
    """What a program in the sandbox can do."""

    def __init__(self, opened: OpenGrant, egress: HostEgress) -> None:
        self.opened = opened
        self.egress = egress

    def path(self, name: str) -> str:
        return next(
            str(each.address.path) for each in self.opened.endpoints if each.socket.endswith(name)
        )

    @asynccontextmanager
    async def model(self) -> AsyncGenerator[httpx2.AsyncClient, None]:
        async with httpx2.AsyncClient(
            transport=unix_transport(self.path("model.sock")),
            base_url="http://localhost",
            headers={"x-api-key": "placeholder", "anthropic-version": "2023-06-01"},
            timeout=300,
        ) as client:
            yield client

    async def ask(self, **body: Any) -> httpx2.Response:
        async with self.model() as client:
            return await client.post("/v1/messages", json={"model": "claude-x"} | body)

    async def raw(self, data: bytes, name: str = "model.sock") -> bytes:
        """Send bytes, and everything that comes back until the connection ends."""
        async with await connect(self.path(name)) as stream:
            return await exchange(stream, data)

    @asynccontextmanager
    async def tunnel(self, host: str, port: int) -> AsyncGenerator[UnixStream, None]:
        async with await connect(self.path("proxy.sock")) as stream:
            await stream.send(f"CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            head = await stream.receive()
            assert head.startswith(b"HTTP/1.1 200"), head
            yield stream


async def exchange(stream: ByteStream, data: bytes) -> bytes:
    await stream.send(data)
    return await rest(stream)


async def rest(stream: ByteStream) -> bytes:
    received = b""
    with anyio.fail_after(60):
        try:
            while True:
                received += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return received


def message(body: bytes = b'{"model":"claude-x"}', *headers: str) -> bytes:
    """A request to the model, as bytes."""
    head = ["POST /v1/messages HTTP/1.1", "host: localhost", *headers]
    return "\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body
