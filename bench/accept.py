"""How many inputs a server accepts over HTTP, beside a bare ASGI application in the same run.

    python bench/accept.py [--connections 64] [--seconds 4] [--rounds 5] [--quick]

Both are asked by turns by the same client, `bench/load.c`, which is compiled here and takes little of the
machine: one message after another on each of the kept connections. The bare application is uvicorn with
uvloop and httptools, and parses the same body with msgspec. It checks nothing, stores nothing and answers
with eleven bytes: nothing in Python on the same server could be much faster.

The server has its default settings and SQLite on disk. Only the key may write more often than the default,
and the node is drained first, so that no agent works while inputs are counted. In the end the server is
killed, and its log must have each accepted input exactly once, in the order of its connection.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
import uvicorn

from roost.stores.sqlite.store import SqliteStore
from roost.testing.live import LiveServer

MARK = "#" * 24
SESSIONS_EACH = 8  # for each connection, so that no queue gets full
BODY = msgspec.json.encode(
    {
        "events": [
            {
                "type": "user.message",
                "content": [
                    {"type": "text", "text": f"{MARK} Please look at the tests that fail."}
                ],
            }
        ]
    }
)
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
    "content-type": "application/json",
}


class Round(msgspec.Struct):
    """What the client found, and what the server took for it."""

    seconds: float
    refused: int
    p50: float
    p99: float
    accepted: list[int]
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        return sum(self.accepted) / self.seconds

    @property
    def each(self) -> float:
        """Microseconds of processor time, of all the server's threads."""
        return 1e6 * self.cpu / sum(self.accepted)

    def __str__(self) -> str:
        wait = f"p50 {1e3 * self.p50:5.1f} ms  p99 {1e3 * self.p99:5.1f} ms"
        return f"{self.rate:7,.0f}/s  {wait}  {self.each:4.0f} us of processor each"


class Load:
    """The client, with its input in files."""

    def __init__(self, folder: Path, connections: int, seconds: float) -> None:
        self.program = folder / "load"
        self._folder = folder
        self._connections = connections
        self._seconds = seconds
        source = Path(__file__).with_name("load.c")
        compiler = [os.environ.get("CC", "cc"), "-O2", "-o", str(self.program), str(source)]
        subprocess.run(compiler, check=True)
        (folder / "body").write_bytes(BODY)

    def run(self, number: int, url: str, pid: int, key: str, paths: list[str]) -> Round:
        where = urlsplit(url)
        lines = {"host": where.netloc, "x-api-key": key, **HEADERS}
        told = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        (self._folder / "headers").write_text(told)
        (self._folder / "paths").write_text("\n".join(paths))
        plan = [where.port, self._connections, self._seconds, number]
        files = [self._folder / name for name in ("headers", "paths", "body")]
        before = cpu(pid)
        done = subprocess.run(
            [self.program, *map(str, plan), *files], stdout=subprocess.PIPE, check=True
        )
        found = msgspec.json.decode(done.stdout, type=Round)
        found.cpu = cpu(pid) - before
        if found.refused:
            raise SystemExit(f"{found.refused} inputs were refused")
        return found


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The bare application


async def bare(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    msgspec.json.decode(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"11")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"ok":true}'})


def serve_bare(port: int) -> None:
    options: dict[str, Any] = {"http": "httptools", "loop": "uvloop", "lifespan": "off"}
    uvicorn.run(bare, port=port, access_log=False, log_level="critical", **options)


@contextmanager
def bare_server() -> Iterator[tuple[str, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, __file__, "--bare", str(port)]) as process:
        try:
            while not _listens(port):
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.send_signal(signal.SIGKILL)


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


# The real one


def prepared(server: LiveServer, count: int) -> tuple[str, list[str]]:
    """A key that may write often, and sessions that nobody works on."""
    with httpx2.Client(base_url=server.url, verify=False) as client:

        def ask(path: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = client.post(path, headers={"x-api-key": key, **HEADERS}, json=body)
            answer.raise_for_status()
            return msgspec.json.decode(answer.content, type=dict[str, Any])

        nodes = client.get("/roost/v1/nodes", headers={"x-api-key": server.key}).json()["data"]
        for node in nodes:
            ask(f"/roost/v1/nodes/{node['id']}/drain", server.key, {})
        often = {"name": "bench", "limits": {"writes_per_minute": 60_000_000}}
        key = ask("/roost/v1/keys", server.key, often)["secret"]
        agent = ask("/v1/agents", key, {"name": "a", "model": "claude-opus-4-5"})["id"]
        place = ask("/v1/environments", key, {"name": "e"})["id"]
        made = {"agent": agent, "environment_id": place}
        return key, [ask("/v1/sessions", key, made)["id"] for _ in range(count)]


async def check(data: Path, sessions: list[str], rounds: list[Round]) -> int:
    """That the log has what was accepted, once and in order; gives how many that is."""
    connections = len(rounds[0].accepted)
    expected: dict[str, list[str]] = {session_id: [] for session_id in sessions}
    for number, found in enumerate(rounds):
        for c, accepted in enumerate(found.accepted):
            for n in range(accepted):
                session_id = sessions[c + connections * (n % SESSIONS_EACH)]
                expected[session_id].append(f"r{number:03d}-c{c:04d}-n{n:012d}")
    async with SqliteStore.open(data / "roost.db") as store:
        for session_id, marks in expected.items():
            entries = await store.log.read(session_id, 0, 10_000)
            texts = [e.fields["content"][0]["text"] for e in entries if e.type == "user.message"]
            if [text[: len(MARK)] for text in texts] != marks:
                raise SystemExit(f"the log of {session_id} is not what was accepted")
    return sum(map(len, expected.values()))


def main(options: argparse.Namespace) -> None:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        print("skipped: the client is a program in C. Install a compiler (`apt install gcc`).")
        return
    connections = options.connections
    rounds, seconds = (2, 1.0) if options.quick else (options.rounds, options.seconds)
    ours: list[Round] = []
    plain: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        load = Load(Path(folder), connections, seconds)
        data = Path(folder) / "data"
        with LiveServer(data) as server, bare_server() as (url, pid):
            key, sessions = prepared(server, connections * SESSIONS_EACH)
            paths = [f"/v1/sessions/{session_id}/events" for session_id in sessions]
            print(f"{connections} connections, {len(sessions)} sessions, {len(BODY)}-byte bodies")
            for number in range(rounds + 1):  # the first one warms up
                plain.append(load.run(number, url, pid, key, paths))
                ours.append(load.run(number, server.url, server.pid, key, paths))
                if number:
                    print(f"  bare   {plain[-1]}\n  roost  {ours[-1]}", flush=True)
            server.kill()
        accepted = asyncio.run(check(data, sessions, ours))
    ratios = [found.rate / other.rate for found, other in zip(ours[1:], plain[1:], strict=True)]
    print(f"all {accepted:,} accepted inputs are in the log, once and in order")
    print(
        f"medians: bare {median(r.rate for r in plain[1:]):,.0f}/s, "
        f"roost {median(r.rate for r in ours[1:]):,.0f}/s; "
        f"processor {median(r.each for r in plain[1:]):.0f} us and {median(r.each for r in ours[1:]):.0f} us"
    )
    print(
        f"ratio    {median(ratios):.2f} of the bare application ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds of a second each")
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.bare:
        serve_bare(chosen.bare)
    else:
        main(chosen)
