"""Followers: what 2,000 open event streams cost one server, and how soon each sees its event.

    python bench/streams.py [--followers 2000] [--quick]

Latency is from just before the POST of an input until its frame is in the follower's hands, beside a
bare request to the same server (`GET /healthz`) in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from roost.testing.live import LiveServer

BODY = json.dumps(
    {"events": [{"type": "user.interrupt"}]}
)  # to an idle session: one entry, no turn


class Http:
    """As little client as possible: the server is what is measured."""

    def __init__(self, server: LiveServer) -> None:
        url = urlsplit(server.url)
        self.host, self.port = str(url.hostname), int(url.port or 0)
        self.head = (
            f"host: {url.netloc}\r\nx-api-key: {server.key}\r\nanthropic-version: 2023-06-01\r\n"
            "anthropic-beta: managed-agents-2026-04-01\r\ncontent-type: application/json\r\n"
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)

    def send(self, writer: asyncio.StreamWriter, method: str, path: str, body: str = "") -> None:
        head = f"{method} {path} HTTP/1.1\r\n{self.head}content-length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())

    async def ask(
        self,
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        method: str,
        path: str,
        body: str = "",
    ) -> dict[str, object]:
        reader, writer = connection
        self.send(writer, method, path, body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0], head
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        answer: dict[str, object] = json.loads(await reader.readexactly(length))
        return answer


class Follower:
    """One open stream; notes when a frame arrives."""

    def __init__(self, http: Http, session_id: str) -> None:
        self.session_id = session_id
        self.arrived = asyncio.Event()
        self._http = http

    async def open(self) -> None:
        self.reader, self.writer = await self._http.connect()
        self._http.send(self.writer, "GET", f"/v1/sessions/{self.session_id}/events/stream")
        await self.reader.readuntil(b"\r\n\r\n")
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while line := await self.reader.readline():
            if line.startswith(b"data:"):
                self.arrived.set()

    async def close(self) -> None:
        self._task.cancel()
        self.writer.close()


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def p(values: list[float], share: float) -> float:
    return 1000 * sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(server: LiveServer, followers: int, sends: int) -> None:
    http = Http(server)
    connection = await http.connect()
    agent = await http.ask(connection, "POST", "/v1/agents", '{"name":"a","model":"m"}')
    place = await http.ask(connection, "POST", "/v1/environments", '{"name":"e"}')
    body = json.dumps({"agent": agent["id"], "environment_id": place["id"]})
    ids = [
        str((await http.ask(connection, "POST", "/v1/sessions", body))["id"])
        for _ in range(followers)
    ]
    before = resident(server.pid)
    started = time.perf_counter()
    crowd = [Follower(http, session_id) for session_id in ids]
    for start in range(0, followers, 50):
        await asyncio.gather(*(follower.open() for follower in crowd[start : start + 50]))
    opened = time.perf_counter() - started
    each = (resident(server.pid) - before) / followers / 1024
    print(f"{followers} followers opened in {opened:.1f} s; {each:.1f} KiB each")
    bare, seen = [], []
    for number in range(sends):
        follower = crowd[number * 7919 % followers]
        started = time.perf_counter()
        await http.ask(connection, "GET", "/healthz")
        bare.append(time.perf_counter() - started)
        follower.arrived.clear()
        started = time.perf_counter()
        path = f"/v1/sessions/{follower.session_id}/events"
        asking = asyncio.create_task(http.ask(connection, "POST", path, BODY))
        await follower.arrived.wait()
        seen.append(time.perf_counter() - started)
        await asking
    print(f"bare request         p50 {p(bare, 0.5):.2f} ms   p99 {p(bare, 0.99):.2f} ms")
    print(f"send to frame seen   p50 {p(seen, 0.5):.2f} ms   p99 {p(seen, 0.99):.2f} ms")
    print(f"ratio of the medians {statistics.median(seen) / statistics.median(bare):.1f}")
    for follower in crowd:
        await follower.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--followers", type=int, default=2000)
    options.add_argument("--quick", action="store_true")
    chosen = options.parse_args()
    followers = 200 if chosen.quick else chosen.followers
    with (
        tempfile.TemporaryDirectory() as data,
        LiveServer(Path(data), ROOST_LOG_LEVEL="error") as server,
    ):
        asyncio.run(measure(server, followers, 100 if chosen.quick else 1000))


if __name__ == "__main__":
    main()
