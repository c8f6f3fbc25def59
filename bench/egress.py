"""What the way out costs: the same requests, straight to the model's server and through the proxy.

Run it alone. The ratio counts, not the numbers: both are measured in the same run, in turns, by the
same bare client against the same bare server, which do nearly nothing. A real model takes a second
or so to answer; the added milliseconds are what to compare with that.
"""

from __future__ import annotations

import socket
import statistics
import tempfile
import time
from pathlib import Path

import anyio
from anyio.abc import ByteStream, SocketAttribute
from pydantic import SecretStr

from roost.egress.host import serving
from roost.egress.options import EgressOptions, ModelUpstream, anthropic
from roost.egress.unix import UnixStream
from roost.ports.egress import Account, Grant, RefusalReport

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


if __name__ == "__main__":
    anyio.run(main, backend_options={"use_uvloop": True})
