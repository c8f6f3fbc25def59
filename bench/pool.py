"""Executions in a pool, beside a bare Jupyter kernel in the same run.

    python bench/pool.py [--quick]

Run it alone; it gets the kernel itself, from the package index. `1+1` is run again and again in an interpreter that is
there (warm), as the first code of an identifier (cold), and as the first code of one in a pool that keeps an
interpreter ready. The pool is asked over HTTP and its interpreter is in a sandbox; the kernel is a process on the
machine, asked over its sockets. They take turns. What is compared are differences and ratios of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from roost.testing.live import LiveServer

ROOT = Path(__file__).parents[1]
KERNEL = ROOT / ".tools/jupyter-kernel/bin/python"
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
WARM, COLD, READY = "warm", "cold", "kept ready"


class Kernel:
    """The bare kernel, in a process that keeps the time."""

    def __init__(self) -> None:
        command = [str(KERNEL), str(Path(__file__).with_name("_kernel.py"))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def seconds(self, how: str) -> float:
        """How long it took."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{how}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


class PoolClient:
    """A client of one server's pools, with one connection."""

    def __init__(self, server: LiveServer) -> None:
        self._http = httpx2.Client(
            base_url=server.url, headers={"x-api-key": server.key, **HEADERS}, timeout=60
        )
        self._made = 0

    def make(self, name: str, **fields: Any) -> None:
        """A pool."""
        environment = self._http.post("/v1/environments", json={"name": f"of {name}"}).json()["id"]
        body = {"name": name, "environment_id": environment, **fields}
        self._http.post("/roost/v1/pools", json=body).raise_for_status()

    def seconds(self, pool: str, identifier: str) -> float:
        """How long one execution takes."""
        url = f"/roost/v1/pools/{pool}/executions"
        asked = {"identifier": identifier, "api-version": "2025-10-02-preview"}
        began = time.perf_counter()
        answer = self._http.post(url, params=asked, json={"code": "1+1"})
        took = time.perf_counter() - began
        assert answer.json()["result"]["executionResult"] == 2, answer.text
        return took

    def first(self, pool: str) -> float:
        """How long the first execution of an identifier takes, which is then let go."""
        self._made += 1
        name = f"id-{self._made}"
        took = self.seconds(pool, name)
        self._http.delete(f"/roost/v1/pools/{pool}/session", params={"identifier": name})
        return took

    def when_ready(self, pool: str) -> float:
        """The same, once an interpreter is up that nobody has asked for."""
        while "roost_prestarted_agents 1.0" not in self._http.get("/metrics").text:
            time.sleep(0.05)
        return self.first(pool)


def measure(*, rounds: int) -> None:
    times: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="pool-") as found,
        LiveServer(Path(found), ROOST_LOG_LEVEL="error", ROOST_MAX_LIVE="50") as server,
    ):
        client, kernel = PoolClient(server), Kernel()
        client.make("plain")
        client.make("ready", ready_sessions=1)

        def alternate(what: str, how: str, act: Callable[[], float], count: int) -> None:
            for _ in range(count):
                times[what].append((act(), kernel.seconds(how)))

        alternate(COLD, "cold", lambda: client.first("plain"), rounds)
        alternate(READY, "cold", lambda: client.when_ready("ready"), rounds)
        client.seconds("plain", "kept")
        alternate(WARM, "warm", lambda: client.seconds("plain", "kept"), rounds * 10)
        kernel.end()
    show(times)


def show(times: dict[str, list[tuple[float, float]]]) -> None:
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; ms")
    print(f"{'':12}{'pool p50':>10}{'p99':>8}{'kernel p50':>12}{'p99':>8}")
    for what in (WARM, COLD, READY):
        ours, bare = ([pair[i] * 1000 for pair in times[what]] for i in (0, 1))
        p50, base = statistics.median(ours), statistics.median(bare)
        said = (
            f"{p50 - base:+.1f} ms (aim +2)"
            if what == WARM
            else f"{p50 / base:.2f} of it (aim {1.2 if what == COLD else 0.2})"
        )
        print(f"{what:12}{p50:10.1f}{p99(ours):8.1f}{base:12.1f}{p99(bare):8.1f}   {said}")


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, round(len(values) * 0.99))]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    given = options.parse_args()
    subprocess.run(
        [str(ROOT / "scripts/install-test-parts"), "jupyter-kernel"], check=True, stdout=sys.stderr
    )
    measure(rounds=5 if given.quick else 30)


if __name__ == "__main__":
    main()
