"""Several nodes on one PostgreSQL, and what may happen to them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import anyio

from roost.domain.events import Entry
from roost.testing.postgres import PostgresServer
from roost.testing.stage import numbers


def seeded() -> random.Random:
    """Chance that can be had again: the seed is printed."""
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    return random.Random(seed)


class Node(Protocol):
    """A process, of whatever kind."""

    @property
    def pid(self) -> int: ...

    def start(self) -> None:
        """Also after it was killed; returns when it works."""
        ...

    def kill(self) -> None: ...

    def has_ended(self) -> bool: ...


class Cluster:
    """Some nodes and their database. `count` says how much was acknowledged so far."""

    def __init__(
        self,
        server: PostgresServer,
        url: str,
        nodes: Sequence[Node],
        chance: random.Random,
        count: Callable[[], int],
        *,
        stopped: float,
        enough: int = 30,
        patience: float = 60,
    ) -> None:
        self.nodes = nodes
        self.did: Counter[str] = Counter()
        self._server = server
        self._url = url
        self._chance = chance
        self._count = count
        self._stopped = stopped
        self._enough = enough
        self._patience = patience
        self.happenings: Mapping[str, Callable[[], None]] = {
            "kill": self._kill,
            "stop": self._stop,
            "cut": self._cut,
            "crash": self._crash,
        }

    def do(self, what: str) -> None:
        """Let it happen, and see that work goes on."""
        self.did[what] += 1
        self.happenings[what]()
        self.progress()

    def _kill(self) -> None:
        node = self._chance.choice(self.nodes)
        node.kill()
        time.sleep(self._chance.uniform(0, 0.5))
        node.start()

    def _stop(self) -> None:
        node = self._chance.choice(self.nodes)
        os.kill(node.pid, signal.SIGSTOP)
        time.sleep(self._stopped)
        os.kill(node.pid, signal.SIGCONT)

    def _cut(self) -> None:
        for _ in range(3):
            anyio.run(self._server.cut, self._url)
            time.sleep(self._chance.uniform(0, 0.2))

    def _crash(self) -> None:
        self._server.kill()
        time.sleep(self._chance.uniform(0, 0.3))
        self._server.start()

    def progress(self) -> None:
        """Every one of them still works."""
        goal = self._count() + self._enough
        deadline = time.monotonic() + self._patience
        while self._count() < goal:
            assert time.monotonic() < deadline, "nothing is acknowledged any more"
            assert not any(node.has_ended() for node in self.nodes), "a node ended by itself"
            time.sleep(0.02)


def check_order(log: Sequence[Entry], head: int) -> None:
    """What holds of every log: no gap, nothing doubled, time does not run backwards."""
    assert numbers(log) == list(range(1, head + 1)), "a gap"
    inputs = [entry for entry in log if entry.type == "user.message"]
    assert set(Counter((e.id, e.queued) for e in inputs).values()) <= {1}, "doubled"
    assert len({(e.id, e.queued, e.seq) for e in log}) == len(log)
    moments = [entry.at for entry in log]
    assert moments == sorted(moments)
