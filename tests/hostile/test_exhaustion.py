"""What strangers, keys and slow readers can hold of a server, measured from outside.

Each attack runs beside a server that nobody touches: its answers tell what the machine itself takes. The
numbers that are asserted are those of docs/limits.md. The long forms have ten times as many attackers as a
server without bounds could stand.
"""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.gateway.talk import HEADERS, Api

from roost.testing.live import LiveServer

MB = 1_000_000
PATIENCE = 120


def resident(server: LiveServer) -> float:
    """Megabytes of memory that the server has."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024 / MB


def descriptors(server: LiveServer) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def latency(server: LiveServer) -> float:
    """Seconds until the server says that it lives: the middle of some tries."""
    tries = []
    for _ in range(9):
        began = time.perf_counter()
        assert httpx2.get(f"{server.url}/healthz", timeout=PATIENCE).status_code == 200
        tries.append(time.perf_counter() - began)
    return sorted(tries)[4]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Attack:
    """A server under attack, and one that is not."""

    def __init__(self, server: LiveServer, untouched: LiveServer, stack: ExitStack) -> None:
        self.server = server
        self._untouched = untouched
        self._stack = stack
        self.before = resident(server)
        self.highest = self.before

    def connect(self, window: int | None = None) -> socket.socket:
        place = urlsplit(self.server.url)
        line = self._stack.enter_context(socket.socket())
        if window is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        line.settimeout(PATIENCE)
        line.connect((place.hostname, place.port))
        return line

    def request(self, method: str, path: str, key: str = "", **more: str) -> bytes:
        headers = {**HEADERS, "host": "x", "x-api-key": key, "content-type": "application/json"}
        lines = [f"{name}: {value}" for name, value in {**headers, **more}.items()]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()

    def pour(self, lines: list[socket.socket], size: int) -> None:
        """Send so many bytes on each, as far as the server takes them."""
        left = dict.fromkeys(lines, size)
        piece = b" " * 65536
        for line in lines:
            line.setblocking(False)
        quiet = 0.0
        while left and quiet < 3:
            moved = False
            for line in list(left):
                try:
                    left[line] -= line.send(piece[: left[line]])
                    moved = True
                except BlockingIOError:
                    continue
                except OSError:
                    left[line] = 0
                if left[line] <= 0:
                    del left[line]
            self.look()
            quiet = 0.0 if moved else quiet + 0.1
            time.sleep(0 if moved else 0.1)

    def look(self) -> float:
        self.highest = max(self.highest, resident(self.server))
        return self.highest - self.before

    def report(self, what: str) -> float:
        """The growth in megabytes; says so, and how both servers answer meanwhile."""
        here, there = latency(self.server), latency(self._untouched)
        grown = self.look()
        print(
            f"{what}: {self.before:.0f} MB before, {self.highest:.0f} MB at most, /healthz "
            f"{here * 1000:.1f} ms beside {there * 1000:.1f} ms untouched"
        )
        assert here < 1 + 20 * there
        return grown


@contextmanager
def attacked(data: Path, **environ: str) -> Iterator[Attack]:
    with (
        LiveServer(data / "one", ROOST_LOG_LEVEL="error", **environ) as server,
        LiveServer(data / "two", ROOST_LOG_LEVEL="error") as untouched,
        ExitStack() as stack,
    ):
        for each in (server, untouched):
            latency(each)
        yield Attack(server, untouched, stack)


long = pytest.mark.chaos


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=long)])
def test_stalled_bodies_without_a_key_cost_a_few_kilobytes_each(tmp_path: Path, count: int) -> None:
    with attacked(tmp_path) as attack:
        lines = [attack.connect() for _ in range(count)]
        for line in lines:
            line.sendall(attack.request("POST", "/auth/login", **{"transfer-encoding": "chunked"}))
            line.sendall(b"%x\r\n" % (31 * 2**20))
        attack.pour(lines, 31 * 2**20)
        grown = attack.report(f"{count} stalled logins")
        assert grown < 10 + count * 0.2


@pytest.mark.parametrize("count", [20, pytest.param(400, marks=long)])
def test_stalled_bodies_with_a_key_have_a_bound_together(tmp_path: Path, count: int) -> None:
    most = 16 * 2**20 if count == 20 else 128 * 2**20
    settings = {"ROOST_MAX_BODIES_BYTES": str(most), "ROOST_MAX_BODY_BYTES": str(most // 4)}
    with attacked(tmp_path, **settings) as attack:
        size = most // 4 - 1000
        head = attack.request(
            "POST", "/v1/agents", attack.server.key, **{"content-length": str(size + 1)}
        )
        lines = [attack.connect() for _ in range(count)]
        for line in lines:
            line.sendall(head)
        attack.pour(lines, size)
        grown = attack.report(f"{count} stalled bodies with a key")
        assert grown < 20 + 1.6 * (most / 2) / MB + count * 0.2


@pytest.mark.parametrize(("count", "events"), [(40, 100), pytest.param(1000, 600, marks=long)])
def test_slow_readers_of_a_log_cost_a_page_each(tmp_path: Path, count: int, events: int) -> None:
    with attacked(tmp_path, ROOST_MAX_QUEUED="100000") as attack:
        with Api(attack.server) as api:
            session = api.session()
            for _ in range(events // 20):
                text = [{"type": "text", "text": "x" * 60_000}]
                sent = [
                    {"type": "user.interrupt"},
                    *[{"type": "user.message", "content": text}] * 20,
                ]
                api.post(f"/v1/sessions/{session}/events", {"events": sent})
        attack.before = attack.highest = resident(attack.server)
        for path in (f"/v1/sessions/{session}/events/stream?after=0",):
            ask = attack.request("GET", path, attack.server.key)
            lines = [attack.connect(window=4096) for _ in range(count)]
            for line in lines:
                line.sendall(ask)
            until(lambda: _streams(attack.server) >= count * 0.9)
            settled = time.monotonic() + 5
            while time.monotonic() < settled:
                attack.look()
                time.sleep(0.1)
            grown = attack.report(f"{count} slow readers of {events * 60_000 / MB:.0f} MB")
            assert grown < 60 + count * 0.6
            for line in lines:
                line.close()


def _streams(server: LiveServer) -> int:
    lines = httpx2.get(f"{server.url}/metrics", timeout=PATIENCE).text.splitlines()
    said = next(line for line in lines if line.startswith("roost_open_streams "))
    return int(float(said.split()[1]))


@pytest.mark.parametrize(("count", "each"), [(20, 100), pytest.param(1000, 600, marks=long)])
def test_slow_listings_cost_a_page_each(tmp_path: Path, count: int, each: int) -> None:
    with attacked(tmp_path, ROOST_MAX_QUEUED="100000") as attack:
        with Api(attack.server) as api:
            session = api.session()
            for _ in range(each // 20):
                text = [{"type": "text", "text": "x" * 60_000}]
                sent = [{"type": "user.message", "content": text}] * 20
                api.post(f"/v1/sessions/{session}/events", {"events": sent})
        attack.before = attack.highest = resident(attack.server)
        ask = attack.request("GET", f"/v1/sessions/{session}/events?limit=1000", attack.server.key)
        lines = [attack.connect(window=4096) for _ in range(count)]
        for line in lines:
            line.sendall(ask)
            attack.look()
        settled = time.monotonic() + 5
        while time.monotonic() < settled:
            attack.look()
            time.sleep(0.1)
        grown = attack.report(f"{count} slow listings")
        assert grown < 60 + min(count * 3, 1.5 * 256 * 2**20 / MB)


@pytest.mark.parametrize("count", [300, pytest.param(12_000, marks=long)])
def test_silent_connections_do_not_stop_the_health_check(tmp_path: Path, count: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = min(count, hard * 3 // 4 if hard > 0 else count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings = {"ROOST_MAX_CONNECTIONS": "100"} if count <= 300 else {}
    seconds = "8" if count <= 300 else "20"
    with attacked(tmp_path, ROOST_HEAD_SECONDS=seconds, **settings) as attack:
        before = descriptors(attack.server)
        lines = []
        for n in range(count):
            line = attack.connect()
            lines.append(line)
            with suppress(OSError):  # it may have had to make room
                line.sendall((b"", b"GET", b"GET / HTTP/1.1\r\nhost: x\r\n")[n % 3])
        grown = attack.report(f"{count} silent connections")
        held = descriptors(attack.server) - before
        print(f"descriptors held: {held}")
        most = int(settings.get("ROOST_MAX_CONNECTIONS", hard * 3 // 4))
        assert held <= most + 64
        assert grown < 20 + held * 0.02
        until(lambda: descriptors(attack.server) <= before + 5)  # the deadline of the head
        assert json.loads(httpx2.get(f"{attack.server.url}/healthz").text)["status"] == "ok"
