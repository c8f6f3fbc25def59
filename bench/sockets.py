"""WebSockets: what 10,000 idle ones cost one server, and how soon 1,000 followers see what happens.

    python bench/sockets.py [--idle 10000] [--followers 1000] [--rate 5000] [--quick]

Each number stands beside that of a bare uvicorn server in the same run: one that only holds its
sockets, and one that only sends stamped messages to them, with nothing stored and nothing checked.
Every socket follows a session of its own. Delivery is from the store's stamp on an entry, which is
set before the entry is committed, until the frame is parsed by the follower; so it has the commit in it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
import uvloop

from roost.testing.live import LiveServer

BATCH = 5
HEADERS = "anthropic-version: 2023-06-01\r\nanthropic-beta: managed-agents-2026-04-01\r\n"


class Follower(asyncio.Protocol):
    """A WebSocket client that is nothing but that: answers pings, notes when stamped frames come."""

    def __init__(self, head: bytes, hello: bytes, late: list[float]) -> None:
        self._head, self._hello, self._late = head, hello, late
        self._buffer = b""
        self._open = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, host: str, port: int) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, host, port)
        await self.ready

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        transport.write(self._head)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or EOFError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._open:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            assert b" 101 " in head, head
            self._open, self._buffer = True, rest
            if self._hello:
                self._transport.write(_masked(0x81, self._hello))
            else:
                self.ready.set_result(None)
        self._read_frames()

    def _read_frames(self) -> None:
        while len(self._buffer) >= 2:
            size, start = self._buffer[1], 2
            if size == 126:
                size, start = int.from_bytes(self._buffer[2:4]), 4
            if len(self._buffer) < start + size:
                return
            opcode, payload = self._buffer[0] & 15, self._buffer[start : start + size]
            self._buffer = self._buffer[start + size :]
            if opcode == 9:
                self._transport.write(_masked(0x8A, payload))
            elif opcode == 1:
                self._note(payload)

    def _note(self, payload: bytes) -> None:
        now = time.time()
        if not self.ready.done() and b'"agent_status"' in payload:
            self.ready.set_result(None)
        if payload.startswith(b'{"type":"sdk_message"'):
            stamp = json.loads(payload)["message"]["processed_at"]
            if stamp:
                self._late.append(now - datetime.fromisoformat(stamp).timestamp())
        elif payload.startswith(b'{"at":'):
            self._late.append(now - json.loads(payload)["at"])

    def close(self) -> None:
        self._transport.abort()


def _masked(first: int, payload: bytes) -> bytes:
    assert len(payload) < 126
    return bytes([first, 0x80 | len(payload)]) + b"\0\0\0\0" + payload


class Http:
    """As little client as possible: the server is what is measured."""

    def __init__(self, url: str, key: str = "") -> None:
        where = urlsplit(url)
        self.host, self.port = str(where.hostname), int(where.port or 0)
        self._head = f"host: {where.netloc}\r\nx-api-key: {key}\r\n{HEADERS}"

    async def ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        lines = await asyncio.open_connection(self.host, self.port)
        with contextlib.closing(lines[1]):
            return await self.ask_on(lines, method, path, body)

    async def ask_on(
        self,
        lines: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        method: str,
        path: str,
        body: object = None,
    ) -> dict[str, object]:
        reader, writer = lines
        text = "" if body is None else json.dumps(body)
        kind = "content-type: application/json\r\n" if text else ""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{kind}content-length: {len(text)}\r\n\r\n"
        writer.write((head + text).encode())
        answered = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answered.split(b"\r\n")[0], answered
        length = int(answered.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        answer: dict[str, object] = json.loads(await reader.readexactly(length))
        return answer

    def upgrade(self, path: str) -> bytes:
        key = base64.b64encode(os.urandom(16)).decode()
        return (
            f"GET {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\nupgrade: websocket\r\n"
            f"connection: Upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n"
        ).encode()


async def sessions(http: Http, count: int) -> list[str]:
    agent = await http.ask("POST", "/v1/agents", {"name": "a", "model": "m"})
    place = await http.ask("POST", "/v1/environments", {"name": f"e {time.time_ns()}"})
    body = {"agent": agent["id"], "environment_id": place["id"]}
    made: list[str] = []

    async def some(share: int) -> None:
        lines = await asyncio.open_connection(http.host, http.port)
        with contextlib.closing(lines[1]):
            for _ in range(share):
                session = await http.ask_on(lines, "POST", "/v1/sessions", body)
                made.extend([str(session["id"])])

    await asyncio.gather(*(some(count // 10) for _ in range(10)))
    return made


async def opened(http: Http, ids: list[str], late: list[float]) -> list[Follower]:
    """A socket for each session, started; for a bare server, where ids are empty, only opened."""
    crowd: list[Follower] = []
    for start in range(0, len(ids), 100):
        token = "" if not ids[0] else (await http.ask("GET", "/auth/ws-token"))["token"]
        part = [
            Follower(
                http.upgrade(f"/ws/v2?sessionId={session_id}&token={token}"),
                b'{"type":"start"}' if session_id else b"",
                late,
            )
            for session_id in ids[start : start + 100]
        ]
        await asyncio.gather(*(follower.open(http.host, http.port) for follower in part))
        crowd += part
    return crowd


# A bare server, for comparison


async def bare(port: int, rate: int) -> None:
    held: list[object] = []

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        await receive()
        await send({"type": "websocket.accept"})
        held.append(send)
        while (await receive())["type"] != "websocket.disconnect":
            pass
        held.remove(send)

    async def broadcast() -> None:
        turn, began, sent = 0, time.perf_counter(), 0
        filling = "x" * 180
        while True:
            await asyncio.sleep(0.001)
            if not held:
                began, sent = time.perf_counter(), 0
                continue
            due = int((time.perf_counter() - began) * rate) - sent
            for _ in range(due):
                turn = (turn + 1) % len(held)
                text = json.dumps({"at": time.time(), "filling": filling})
                await held[turn]({"type": "websocket.send", "text": text})  # type: ignore[operator]
            sent += due

    config = uvicorn.Config(
        app,
        port=port,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        log_level="critical",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    if rate:
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(broadcast()))
    await server.serve()


@contextlib.asynccontextmanager
async def bare_server(rate: int) -> AsyncIterator[tuple[Http, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, __file__, "--bare", str(port), "--rate", str(rate)]
    )
    try:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.05)
        yield Http(f"http://127.0.0.1:{port}"), process.pid
    finally:
        process.kill()
        process.wait()


# What is measured


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def idle(name: str, http: Http, pid: int, ids: list[str], seconds: float) -> float:
    before, began = resident(pid), time.perf_counter()
    crowd = await opened(http, ids, [])
    took = time.perf_counter() - began
    each = (resident(pid) - before) / len(crowd)
    await asyncio.sleep(2)
    used, began = cpu(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    share = 100 * (cpu(pid) - used) / (time.perf_counter() - began)
    print(
        f"{name:12} {len(crowd)} idle sockets: {each / 1024:.1f} KiB each, "
        f"{share:.2f} % of a core over {seconds:.0f} s; opened {len(crowd) / took:.0f}/s"
    )
    for follower in crowd:
        follower.close()
    await asyncio.sleep(1)
    return each


def p(values: list[float], share: float) -> float:
    return 1000 * sorted(values)[min(len(values) - 1, int(share * len(values)))]


def told(name: str, late: list[float], seconds: float) -> None:
    print(
        f"{name:12} {len(late) / seconds:.0f} deliveries/s: "
        f"p50 {p(late, 0.5):.2f} ms   p99 {p(late, 0.99):.2f} ms"
    )


async def busy(http: Http, ids: list[str], rate: int, seconds: float) -> list[float]:
    """Inputs to all sessions in turn: each is one entry of its session's log."""
    late: list[float] = []
    crowd = await opened(http, ids, late)
    body = {"events": [{"type": "user.interrupt"}] * BATCH}
    until = time.perf_counter() + seconds
    turn = iter(range(10**9))

    async def send(lines: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        pause = 20 * BATCH / rate
        due = time.perf_counter()
        while due < until:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += pause
            session_id = ids[next(turn) % len(ids)]
            await http.ask_on(lines, "POST", f"/v1/sessions/{session_id}/events", body)

    lines = [await asyncio.open_connection(http.host, http.port) for _ in range(20)]
    await asyncio.gather(*(send(line) for line in lines))
    await asyncio.sleep(0.5)
    for line in lines:
        line[1].close()
    for follower in crowd:
        follower.close()
    return late


async def main(options: argparse.Namespace) -> None:
    seconds = 5.0 if options.quick else 30.0
    count = 500 if options.quick else options.idle
    followers = 100 if options.quick else options.followers
    rate = 500 if options.quick else options.rate
    with tempfile.TemporaryDirectory() as data:
        with LiveServer(Path(data), ROOST_LOG_LEVEL="error") as server:
            http = Http(server.url, server.key)
            ids = await sessions(http, count)
            ours = await idle("roost", http, server.pid, ids, seconds)
            async with bare_server(0) as (plain, pid):
                theirs = await idle("bare uvicorn", plain, pid, [""] * count, seconds)
            print(f"{'ratio':12} {ours / theirs:.2f} in memory")
            late = await busy(http, ids[:followers], rate, seconds)
            told("roost", late, seconds)
        async with bare_server(rate) as (plain, _):
            plainly: list[float] = []
            crowd = await opened(plain, [""] * followers, plainly)
            plainly.clear()
            await asyncio.sleep(seconds)
            told("bare uvicorn", plainly, seconds)
            print(f"{'ratio':12} {p(late, 0.5) / p(plainly, 0.5):.1f} of the medians")
            for follower in crowd:
                follower.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--followers", type=int, default=1_000)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(bare(chosen.bare, chosen.rate) if chosen.bare else main(chosen))
