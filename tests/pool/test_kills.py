"""The interpreter, its sandbox or the whole server is killed while code runs in pools.

An execution runs once at most, and what came of it is told, whoever dies. Where variables are lost, the answer says so.
Files stay.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pytest
from tests.pool.pool_server import PoolClient, make_pool

from roost.sandboxes import procfs
from roost.testing.live import LiveServer

PATIENCE = 300.0
PROGRAM = b"interpreter.py"
CODE = """\
import time
with open('/mnt/data/ran', 'a') as file:
    file.write('{mark}\\n')
count = globals().get('count', 0) + 1
time.sleep({seconds:.2f})
count
"""


class Caller:
    """A client that has code run under one identifier, piece after piece, until it is told to end."""

    def __init__(self, pool: PoolClient, seed: int) -> None:
        self.pool = pool
        self.told: Counter[str] = Counter()
        self.done: list[str] = []
        self.sent: list[str] = []
        self._rng = random.Random(seed)
        self._count = 0

    def work(self, is_over: Event) -> None:
        """Go on until it is over, and then once more, undisturbed."""
        while not is_over.is_set():
            self._one()
        assert self._one() == "Succeeded"

    def _one(self) -> str:
        mark = f"{self.pool.identifier}.{len(self.sent)}"
        self.sent.append(mark)
        code = CODE.format(mark=mark, seconds=self._rng.uniform(0, 0.4))
        body = {"code": code, "executionType": "asynchronous"}
        headers = {"operation-id": mark}
        accepted = {"method": "POST", "path": "executions", "json": body, "headers": headers}
        self._surely(202, **accepted)  # named, so it may be sent again
        path = f"executions/{mark}"
        answer = self._surely(
            200, method="GET", path=path, until=lambda it: it["status"] != "Running"
        )
        self._check(mark, answer)
        return str(answer["status"])

    def _surely(
        self, status: int, until: Callable[[Any], bool] = lambda _: True, **request: Any
    ) -> Any:
        """Ask until the server is there and says what is waited for."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                answer = self.pool.ask(**request)
            except httpx2.TransportError:
                answer = None  # the server is down
            if answer is not None and answer.status_code < 500:
                assert answer.status_code == status, answer.text
                if until(answer.json()):
                    return answer.json()
            assert time.monotonic() < deadline, answer and answer.text
            time.sleep(0.05)

    def _check(self, mark: str, answer: dict[str, Any]) -> None:
        told, result = answer["status"], answer["result"]
        self.told[told] += 1
        if told == "Succeeded":
            self.done.append(mark)
            before = 0 if result.get("stateLost") else self._count
            assert result["executionResult"] == before + 1, (mark, answer)
            self._count = before + 1
        else:
            said = result["stderr"]
            assert "Kernel restarted" in said or "Execution aborted" in said, answer
            if result.get("stateLost"):
                self._count = 0


def kill_at_random(folder: Path, kills: int, callers: int) -> None:
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"ROOST_TEST_SEED={seed}")
    rng, is_over = random.Random(seed), Event()
    with LiveServer(folder / "data") as server, ThreadPoolExecutor(callers) as threads:
        make_pool(server, "p")
        clients = [PoolClient(server, server.key, "p", f"id{n}") for n in range(callers)]
        working = [Caller(client, rng.randrange(10**6)) for client in clients]
        ended = [threads.submit(caller.work, is_over) for caller in working]
        victims: Counter[str] = Counter()
        try:
            for number in range(kills):
                time.sleep(rng.uniform(0, 0.6))
                victim = ("interpreter", "sandbox", "server")[number % 3]
                _kill(server, victim, rng)
                victims[victim] += 1
        finally:
            is_over.set()
        for each in ended:
            each.result(PATIENCE * 2)
        for caller in working:
            ran = str(caller.pool.value("open('/mnt/data/ran').read()")).split()
            assert len(ran) == len(set(ran)), "something ran twice"
            assert set(caller.done) <= set(ran) <= set(caller.sent)
        told = sum((caller.told for caller in working), Counter())
        print(f"killed {dict(victims)}; executions {dict(told)}")


def _kill(server: LiveServer, victim: str, rng: random.Random) -> None:
    if victim == "server":
        server.kill()
        server.start()
        return
    deadline = time.monotonic() + PATIENCE
    while not (found := _interpreters(server) if victim == "interpreter" else _sandboxes(server)):
        assert time.monotonic() < deadline, "no interpreter is started"
        time.sleep(0.05)
    chosen = rng.choice(found)
    procfs.send(chosen, signal.SIGKILL, lambda: True)


def _interpreters(server: LiveServer) -> list[int]:
    """Those who keep time, and those who run code."""
    below = [each.pid for each in procfs.descendants([server.pid])]
    return [pid for pid in below if procfs.command_line(pid)[:1] == [b"python3"]]


def _sandboxes(server: LiveServer) -> list[int]:
    """The server's children that an interpreter is below."""
    found = []
    for child in procfs.children(server.pid):
        below = [b" ".join(procfs.command_line(each.pid)) for each in procfs.descendants([child])]
        if any(PROGRAM in line for line in below):
            found.append(child)
    return found


@pytest.mark.timeout(900)
def test_whatever_is_killed_nothing_runs_twice_and_what_is_lost_is_said(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 3, 2)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_killed_at_a_hundred_random_moments_nothing_runs_twice(tmp_path: Path) -> None:
    """`ROOST_CHAOS_KILLS` says how many, `ROOST_TEST_SEED` when and whom."""
    kill_at_random(tmp_path, int(os.environ.get("ROOST_CHAOS_KILLS") or 100), 4)
