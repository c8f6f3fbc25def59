"""Start to first answer: from `roost serve` to `/readyz`, against a bare uvicorn server's.

    python bench/start.py [--rounds 5]

Both are new processes in turns, on one machine: the bare one imports starlette and uvicorn and serves
one route. The processor's time of each is told beside the clock's, which a busy machine stretches.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2

from roost.testing.live import LiveServer

BARE = """
import socket, uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

bound = socket.create_server(("127.0.0.1", 0))
print(bound.getsockname()[1], flush=True)
app = Starlette(routes=[Route("/readyz", lambda request: PlainTextResponse("ok"))])
uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none")).run([bound])
"""


def bare() -> tuple[float, float]:
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        port = process.stdout.readline().strip()
    httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=60).raise_for_status()
    took = time.perf_counter() - began, cpu_of(process.pid)
    process.terminate()
    process.wait()
    return took


def roost() -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with LiveServer(Path(folder)) as server:
            return time.perf_counter() - began, cpu_of(server.pid)


def cpu_of(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / 100


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--rounds", type=int, default=5)
    rounds = [(bare(), roost()) for _ in range(asked.parse_args().rounds)]
    for what, part in (("clock", 0), ("processor", 1)):
        ours, theirs = (statistics.median(r[who][part] for r in rounds) for who in (1, 0))
        print(f"{what:9}  roost {ours:.2f} s, bare {theirs:.2f} s: {ours / theirs:.1f} times")


if __name__ == "__main__":
    main()
