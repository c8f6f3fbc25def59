"""Several nodes on one PostgreSQL; nodes are killed and stopped, connections cut, the database killed."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import anyio
import pytest
from tests.faults.cluster import Cluster, check_order, seeded

from roost.domain.session import Spec
from roost.ports.log import Receipt
from roost.stores.postgres import PostgresStore
from roost.testing.postgres import PostgresServer
from roost.testing.stage import Stage, message

WORKER = Path(__file__).with_name("node_worker.py")
SPEC = Spec(agent={"id": "agent_1", "version": 1, "name": "helper"}, environment_id="env_1")
STOPPED = 2.5  # seconds: longer than a worker's lease


class Acknowledged:
    """What the nodes said was done."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], str] = {}
        self.keys: dict[tuple[str, str], tuple[int, str]] = {}
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._lock = threading.Lock()

    def note(self, line: str) -> None:
        verb, *words = line.split()
        with self._lock:
            self.counts[verb] += 1
            if verb in ("accepted", "written"):
                session_id, seq, id, *key = words
                if self.entries.setdefault((session_id, int(seq)), id) != id:
                    self.problems.append(f"two entries were acknowledged at {session_id} {seq}")
                for one in key:
                    self.keys[session_id, one] = int(seq), id


class Worker:
    """A process, and a thread that listens to it. Each start is a node of another name."""

    def __init__(self, url: str, sessions: int, names: Iterator[int], acknowledged: Acknowledged):
        self._command = [sys.executable, str(WORKER), url]
        self._sessions = sessions
        self._names = names
        self._acknowledged = acknowledged

    def begin(self) -> None:
        command = [*self._command, f"node_{next(self._names)}", str(self._sessions)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def start(self) -> None:
        self.begin()
        self.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                self._acknowledged.note(line.decode())
                self._ready.set()

    def wait(self) -> None:
        assert self._ready.wait(60), "the node does not start"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def prepare(url: str, sessions: int) -> None:
    async with PostgresStore.open(url) as store:
        for n in range(sessions):
            await store.sessions.create("tenant_1", f"sesn_{n}", SPEC)


async def verify(url: str, sessions: int, acknowledged: Acknowledged, chance: random.Random):
    assert not acknowledged.problems
    async with PostgresStore.open(url) as store:
        stage = Stage(store)
        for n in range(sessions):
            await verify_log(stage, f"sesn_{n}", acknowledged)
        keys = sorted(acknowledged.keys)
        for session_id, key in chance.sample(keys, min(200, len(keys))):
            receipts = [Receipt(key, "same")]
            again = await store.log.accept(session_id, [message()], receipts=receipts)
            assert again.repeated
            assert [(e.seq, e.id) for e in again.entries] == [acknowledged.keys[session_id, key]]


async def verify_log(stage: Stage, session_id: str, acknowledged: Acknowledged) -> None:
    log = await stage.all(session_id)
    check_order(log, (await stage.state(session_id)).head)
    stored = {(session_id, entry.seq): entry.id for entry in log}
    promised = {place: id for place, id in acknowledged.entries.items() if place[0] == session_id}
    assert promised.items() <= stored.items(), "lost"
    inputs = [entry for entry in log if entry.type == "user.message" and entry.queued]
    texts = Counter(entry.fields["content"][0]["text"] for entry in inputs)
    assert set(texts.values()) <= {1}, "accepted twice"
    said = [entry.fields["generation"] for entry in log if entry.type == "agent.message"]
    assert said == sorted(said), "two agents wrote to one session"


def torment(server: PostgresServer, happenings: list[str], sessions: int) -> Acknowledged:
    chance = seeded()
    url = anyio.run(server.new)
    anyio.run(prepare, url, sessions)
    acknowledged, names = Acknowledged(), count(1)
    workers = [Worker(url, sessions, names, acknowledged) for _ in range(3)]
    cluster = Cluster(
        server, url, workers, chance, lambda: acknowledged.counts["accepted"], stopped=STOPPED
    )
    try:
        for worker in workers:
            worker.begin()
        for worker in workers:
            worker.wait()
        chance.shuffle(happenings)
        for happening in happenings:
            time.sleep(chance.uniform(0, 0.5))
            cluster.do(happening)
    finally:
        for worker in workers:
            worker.kill()
    print(f"{dict(cluster.did)}; acknowledged: {dict(acknowledged.counts)}")
    anyio.run(verify, url, sessions, acknowledged, chance)
    return acknowledged


def test_nodes_and_their_database_fail_and_nothing_acknowledged_is_lost(
    postgres: PostgresServer,
) -> None:
    acknowledged = torment(postgres, ["kill", "stop", "cut", "crash"], sessions=8)
    assert acknowledged.counts["written"]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_nodes_and_their_database_fail_again_and_again(postgres: PostgresServer) -> None:
    acknowledged = torment(postgres, ["kill", "stop", "cut", "crash"] * 20, sessions=60)
    assert acknowledged.counts["fenced"], "no stalled writer was ever refused"
