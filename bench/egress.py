"""What egress costs: the same requests, straight to a server and through the proxies.

The first part compares a model's server with and without the proxy to it. The second part asks one TLS server
in three ways on live connections: directly, through an opaque tunnel, and through a connection in which a
placeholder is replaced in a header and in the body.

Run it alone. The ratio counts, not the numbers: both are measured in the same run, in turns, by the
same bare client against the same bare server, which do nearly nothing. A real model takes a second
or so to answer; the added milliseconds are what to compare with that.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener, TLSStream
from pydantic import SecretStr

from roost.egress import tls
from roost.egress.host import serving
from roost.egress.options import EgressOptions, ModelUpstream, anthropic
from roost.egress.tls import CertificateAuthority
from roost.egress.unix import UnixStream
from roost.ports.egress import (
    Account,
    Grant,
    Networking,
    OpenGrant,
    RefusalReport,
    Substitution,
)

ROUNDS = 500
WARM_UP = 20
BODY = b'{"model":"claude-x","stream":true,"messages":["' + b"x" * 20_000 + b'"]}'
REQUEST = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
END = b"0\r\n\r\n"
FRAME = b'event: content_block_delta\ndata: {"delta":{"text":"some words"}}\n\n'
FRAMES = {"one frame": 1, "a stream of 100 frames": 100}


class Model:
    """Answers every request with so many frames."""

    frames = 1

    async def talk(self, stream: ByteStream) -> None:
        async with stream:
            try:
                while True:
                    await received(stream, BODY[-5:])
                    await self._answer(stream)
            except anyio.EndOfStream:
                return

    async def _answer(self, stream: ByteStream) -> None:
        await stream.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(self.frames):
            await stream.send(b"%x\r\n%s\r\n" % (len(FRAME), FRAME))
        await stream.send(END)


async def received(stream: ByteStream, end: bytes) -> None:
    tail = b""
    while not tail.endswith(end):
        tail = (tail + await stream.receive())[-16:]


async def timed(stream: ByteStream) -> float:
    began = time.perf_counter()
    await stream.send(REQUEST)
    await received(stream, END)
    return (time.perf_counter() - began) * 1000


async def compare(kind: str, direct: ByteStream, through: ByteStream) -> None:
    pairs = [(await timed(direct), await timed(through)) for _ in range(ROUNDS + WARM_UP)]
    straight, proxied = map(statistics.median, zip(*pairs[WARM_UP:], strict=True))
    print(
        f"{kind}: direct p50 {straight:.2f} ms, through p50 {proxied:.2f} ms, "
        f"added {proxied - straight:.2f} ms, ratio {proxied / straight:.1f}"
    )


HOST = "api.example"
PLACEHOLDER = "roost_" + "0123456789abcdef" * 2
SECRET = "s3cr3t-0123456789-0123456789-0123456789"
ASKED = {"x-key": PLACEHOLDER, "content-length": "2000"}
LENGTH = re.compile(rb"content-length: (\d+)")


class Site:
    """A TLS server that answers every request with two kilobytes."""

    asked = 0

    async def talk(self, stream: ByteStream) -> None:
        async with stream:
            buffer = b""
            try:
                while True:
                    while b"\r\n\r\n" not in buffer:
                        buffer += await stream.receive()
                    head, _, buffer = buffer.partition(b"\r\n\r\n")
                    size = int(found[1]) if (found := LENGTH.search(head)) else 0
                    while len(buffer) < size:
                        buffer += await stream.receive()
                    buffer = buffer[size:]
                    self.asked += SECRET.encode() in head
                    await stream.send(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + bytes(2000)
                    )
            except anyio.EndOfStream:
                return


def site_request(port: int) -> bytes:
    body = (b'{"key": "%s", "text": "' % PLACEHOLDER.encode()).ljust(1998, b"x") + b'"}'
    head = "".join(f"{name}: {value}\r\n" for name, value in ASKED.items())
    return f"POST / HTTP/1.1\r\nhost: {HOST}:{port}\r\n{head}\r\n".encode() + body


async def site_timed(stream: ByteStream, asked: bytes) -> float:
    began = time.perf_counter()
    await stream.send(asked)
    size = 0
    while size < 2000 or not size:
        data = await stream.receive()
        size += len(data.rpartition(b"\r\n\r\n")[2])
    return (time.perf_counter() - began) * 1000


async def tunnelled(opened: OpenGrant, port: int, certificate: bytes, *, direct: bool) -> TLSStream:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certificate.decode())
    if direct:
        raw: ByteStream = await anyio.connect_tcp("127.0.0.1", port)
    else:
        near = socket.socket(socket.AF_UNIX)
        near.connect(str(opened.endpoints[-1].address.path))
        raw = UnixStream(near)
        await raw.send(f"CONNECT {HOST}:{port} HTTP/1.0\r\n\r\n".encode())
        await raw.receive()
    return await TLSStream.wrap(raw, hostname=HOST, ssl_context=context, standard_compatible=False)


def percentiles(times: Sequence[float]) -> str:
    ordered = sorted(times)
    return f"p50 {statistics.median(times):.2f} ms, p99 {ordered[int(len(times) * 0.99)]:.2f} ms"


async def secret() -> str:
    return SECRET


async def here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def substitutions(directory: Path) -> None:
    """One server, asked in three ways in turns."""
    world, site = CertificateAuthority(), Site()
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=world.certificate.decode())
    tls._upstream_context = lambda: trusted  # type: ignore[assignment]
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    secure = TLSListener(listener, world.context(HOST), standard_compatible=False)
    options = EgressOptions(
        directory=directory,
        upstreams=[ModelUpstream.default(anthropic("http://127.0.0.1:1", None))],
        ports=frozenset([port]),
        allow_networks=[ip_network("127.0.0.0/8")],
        resolve=here,
    )

    def grant(session_id: str, hosts: Sequence[str]) -> Grant:
        given = Substitution(
            variable="KEY", placeholder=PLACEHOLDER, secret=secret, hosts=list(hosts)
        )
        return Grant(
            session_id=session_id,
            generation=1,
            account=ignore,
            refused=ignore,
            networking=Networking(kind="unrestricted"),
            substitutions=[given],
        )

    async with secure, anyio.create_task_group() as tasks:
        tasks.start_soon(secure.serve, site.talk)
        async with (
            serving(options) as egress,
            egress.open(grant("sesn_1", [])) as opaque,
            egress.open(grant("sesn_2", [HOST])) as replacing,
        ):
            own = await anyio.Path(replacing.mounts[0].source).read_bytes()
            ways = {
                "directly": await tunnelled(opaque, port, world.certificate, direct=True),
                "opaque tunnel": await tunnelled(opaque, port, world.certificate, direct=False),
                "substitution": await tunnelled(replacing, port, own, direct=False),
            }
            asked, times = site_request(port), {name: [0.0] * 0 for name in ways}
            worked = {name: [0.0] * 0 for name in ways}
            for _ in range(ROUNDS * 2 + WARM_UP):
                for name, stream in ways.items():
                    began = time.process_time()
                    times[name].append(await site_timed(stream, asked))
                    worked[name].append((time.process_time() - began) * 1000)
            assert site.asked == ROUNDS * 2 + WARM_UP, "the secret did not arrive"
        tasks.cancel_scope.cancel()
    for name, took in times.items():
        print(f"a TLS server, {name}: {percentiles(took[WARM_UP:])}")
    # Of the whole process: client and server are the same in all ways. It says more than time on a busy machine.
    for what, taken in (("time", times), ("processor time", worked)):
        middle = {name: statistics.median(took[WARM_UP:]) for name, took in taken.items()}
        added = middle["substitution"] - middle["directly"]
        beyond = middle["substitution"] - middle["opaque tunnel"]
        print(
            f"substitution adds {added:.2f} ms of {what} to a direct request, {beyond:.2f} to a tunnel's"
        )


async def ignore(_: Account | RefusalReport) -> None:
    return


async def main() -> None:
    model = Model()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    upstream = anthropic(f"http://127.0.0.1:{port}", SecretStr("sk-0123456789-0123456789"))
    grant = Grant(session_id="sesn_1", generation=1, account=ignore, refused=ignore)
    with tempfile.TemporaryDirectory(prefix="egress-") as directory:
        served = [ModelUpstream.default(upstream)]
        options = EgressOptions(directory=Path(directory) / "run", upstreams=served)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, model.talk)
            async with serving(options) as egress, egress.open(grant) as opened:
                near = socket.socket(socket.AF_UNIX)
                near.connect(str(opened.endpoints[0].address.path))
                async with (
                    UnixStream(near) as through,
                    await anyio.connect_tcp("127.0.0.1", port) as direct,
                ):
                    for kind, model.frames in FRAMES.items():
                        await compare(kind, direct, through)
            tasks.cancel_scope.cancel()
        await substitutions(Path(directory) / "tls")
    print(f"load: {os.getloadavg()}")


if __name__ == "__main__":
    anyio.run(main, backend_options={"use_uvloop": True})
