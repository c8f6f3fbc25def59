"""A pool of one process: runs code in our own interpreter without a sandbox, and fails where a test tells it to.

It stands for a pool elsewhere: its gateway can cut a request off before it is run, after it was run, or in the middle
of the answer; it can cut what an execution answers; and it can replace a container.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlparse

import roost
from roost.guest.detached import runs

PROGRAM = Path(roost.__file__).parent / "guest" / "interpreter.py"
PLANTED = Path(__file__).parent / "planted_sdk"
Json = dict[str, Any]

Fault = Callable[[int], str]
"""What happens to a request, by its number: `` (nothing), before, after, half, or a status."""


class SmallContainer:
    """An interpreter, and a home, for one identifier."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.lock = Lock()
        self.temporary = home.with_name(f"{home.name}-tmp")
        for folder in (home, self.temporary):
            folder.mkdir(parents=True)
        environ = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PLANTED),
            "TMPDIR": str(self.temporary),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            cwd=home,
        )
        self._frame()  # it is up

    def run(self, code: str) -> Json:
        with self.lock:
            frame = {"run": "1", "kind": "python", "code": code, "seconds": 60}
            data = json.dumps(frame).encode()
            assert self.process.stdin is not None
            self.process.stdin.write(struct.pack(">I", len(data)) + data)
            self.process.stdin.flush()
            return self._frame()

    def _frame(self) -> Json:
        assert self.process.stdout is not None
        size = int.from_bytes(self.process.stdout.read(4), "big")
        frame: Json = json.loads(self.process.stdout.read(size))
        return frame

    def end(self) -> None:
        """End all of it, as a pool does: what was started in it, too; and its files are gone."""
        with self.lock:
            self.end_turns()
            self.process.kill()
            with self.process:
                pass
            self.end_turns()
            for folder in (self.home, self.temporary):
                while folder.exists():  # what was just killed may have been writing
                    shutil.rmtree(folder, ignore_errors=True)

    def end_turns(self) -> None:
        """Kill turns that run, and no process that has got the number of one that has ended."""
        for name in ("started", "claim"):
            for path in self.home.glob(f".roost/turns/*/{name}"):
                with suppress(OSError, ValueError):
                    was = json.loads(path.read_text())
                    if runs(was):
                        os.killpg(was["pid"], signal.SIGKILL)


class SmallPool:
    """What the pool is told to do, and what it was asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.fault: Fault = lambda number: ""
        self.most = 10**9
        self.only_old = False
        self.requests: list[tuple[str, Json]] = []
        self.codes: list[str] = []
        self.headers: list[Any] = []
        self._containers: dict[str, SmallContainer] = {}
        self._made = 0
        self._lock = Lock()

    def container(self, identifier: str) -> SmallContainer:
        with self._lock:
            if identifier not in self._containers:
                self._made += 1
                self._containers[identifier] = SmallContainer(self.root / f"c{self._made}")
            return self._containers[identifier]

    def executed(self) -> list[tuple[str, Json]]:
        """The requests that are no uploads."""
        return [each for each in self.requests if "/files" not in each[0]]

    def recycle(self) -> None:
        """Replace all containers: what was in them is gone."""
        with self._lock:
            for container in self._containers.values():
                container.end()
            self._containers.clear()


class Handler(BaseHTTPRequestHandler):
    pool: SmallPool
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_POST(self) -> None:
        at = urlparse(self.path)
        sent = self.rfile.read(int(self.headers["content-length"]))
        self.pool.requests.append((at.path, parse_qs(at.query)))
        self.pool.headers.append(self.headers)
        fault = self.pool.fault(len(self.pool.requests))
        is_flat = at.path.endswith(("/executions", "/files"))
        if fault == "before":
            self._hang_up()
        elif fault.isdigit():
            self._answer(int(fault), {"error": {"code": "TooManyRequests"}})
        elif is_flat and self.pool.only_old:
            self._answer(404, {"error": {"code": "NotFound"}})
        else:
            container = self.pool.container(parse_qs(at.query)["identifier"][0])
            if at.path.endswith(("/files", "/files/upload")):
                told = self._uploaded(container, parse_qs(at.query).get("path", [""])[0], sent)
            else:
                body = json.loads(sent)
                code = (body if is_flat else body["properties"])["code"]
                self.pool.codes.append(code)
                told = self._told(container.run(code), is_flat)
            if fault == "after":
                self._hang_up()
            else:
                self._answer(200, told, half=fault == "half")

    def _uploaded(self, container: SmallContainer, folder: str, sent: bytes) -> Json:
        head, _, rest = sent.partition(b"\r\n\r\n")
        name = re.findall(rb'filename="([^"]+)"', head)[0].decode()
        path = container.home / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rest[: rest.rindex(b"\r\n--")])
        return {"name": name}

    def _told(self, frame: Json, is_flat: bool) -> Json:
        value = frame.get("value", {}).get("value", "")
        if isinstance(value, str):
            value = value[: self.pool.most]
        is_ok = frame["status"] == "ok"
        streams = {"stdout": frame["stdout"][: self.pool.most], "stderr": frame["stderr"]}
        if is_flat:
            status = "Succeeded" if is_ok else "Failed"
            return {"status": status, "result": {**streams, "executionResult": value}}
        status = "Success" if is_ok else "Failure"
        return {"properties": {"status": status, "result": value, **streams}}

    def _answer(self, status: int, value: Json, *, half: bool = False) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.send_header("retry-after", "0")
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if half else data)
        if half:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True


@contextmanager
def small_pool(root: Path) -> Iterator[SmallPool]:
    pool = SmallPool(root)
    handler = type("PoolHandler", (Handler,), {"pool": pool})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = False
    pool.url = f"http://127.0.0.1:{server.server_address[1]}/sessionPools/p"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield pool
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        pool.recycle()
