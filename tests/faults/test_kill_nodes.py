"""Several nodes on one PostgreSQL; nodes are killed and stopped, connections cut, the database killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest

from roost.domain.session import Spec
from roost.ports.log import Receipt
from roost.stores.postgres import PostgresStore
from roost.testing.postgres import PostgresServer
from roost.testing.stage import Stage, message, numbers

WORKER = Path(__file__).with_name("node_worker.py")
SPEC = Spec(agent={"id": "agent_1", "version": 1, "name": "helper"}, environment_id="env_1")
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
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


class Node:
    """A worker, and a thread that listens to it."""

    def __init__(self, url: str, name: str, sessions: int, acknowledged: Acknowledged) -> None:
        command = [sys.executable, str(WORKER), url, name, str(sessions)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._acknowledged = acknowledged
        self._ready = threading.Event()
        self._ear = threading.Thread(target=self._listen)
        self._ear.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self._acknowledged.note(line.decode())
                self._ready.set()

    def wait(self) -> None:
        assert self._ready.wait(60), "the node does not start"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._ear.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Cluster:
    """Some nodes, and what may happen to them."""

    def __init__(self, server: PostgresServer, url: str, sessions: int, chance: random.Random):
        self.server = server
        self.url = url
        self.sessions = sessions
        self.chance = chance
        self.acknowledged = Acknowledged()
        self.nodes: list[Node] = []
        self.did: Counter[str] = Counter()
        self._names = 0

    def add(self) -> Node:
        self._names += 1
        node = Node(self.url, f"node_{self._names}", self.sessions, self.acknowledged)
        self.nodes.append(node)
        return node

    def do(self, what: str) -> None:
        self.did[what] += 1
        {"kill": self._kill, "stop": self._stop, "cut": self._cut, "crash": self._crash}[what]()
        self.progress()

    def _kill(self) -> None:
        self.nodes.pop(self.chance.randrange(len(self.nodes))).kill()
        self.add().wait()

    def _stop(self) -> None:
        node = self.chance.choice(self.nodes)
        node.process.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED)
        node.process.send_signal(signal.SIGCONT)

    def _cut(self) -> None:
        for _ in range(3):
            anyio.run(self.server.do, CUT, self.url)
            time.sleep(self.chance.uniform(0, 0.2))

    def _crash(self) -> None:
        self.server.kill()
        time.sleep(self.chance.uniform(0, 0.3))
        self.server.start()

    def progress(self) -> None:
        """Every one of them still works."""
        goal = self.acknowledged.counts["accepted"] + 30
        deadline = time.monotonic() + 60
        while self.acknowledged.counts["accepted"] < goal:
            assert time.monotonic() < deadline, "nothing is acknowledged any more"
            assert all(node.process.poll() is None for node in self.nodes), "a node ended by itself"
            time.sleep(0.02)

    def end(self) -> None:
        while self.nodes:
            self.nodes.pop().kill()


async def prepare(url: str, sessions: int) -> None:
    async with PostgresStore.open(url) as store:
        for n in range(sessions):
            await store.sessions.create("tenant_1", f"sesn_{n}", SPEC)


async def verify(cluster: Cluster) -> None:
    acknowledged = cluster.acknowledged
    assert not acknowledged.problems
    async with PostgresStore.open(cluster.url) as store:
        stage = Stage(store)
        for n in range(cluster.sessions):
            await verify_log(stage, f"sesn_{n}", acknowledged)
        keys = sorted(acknowledged.keys)
        for session_id, key in cluster.chance.sample(keys, min(200, len(keys))):
            receipts = [Receipt(key, "same")]
            again = await store.log.accept(session_id, [message()], receipts=receipts)
            assert again.repeated
            assert [(e.seq, e.id) for e in again.entries] == [acknowledged.keys[session_id, key]]


async def verify_log(stage: Stage, session_id: str, acknowledged: Acknowledged) -> None:
    log = await stage.all(session_id)
    assert numbers(log) == list(range(1, (await stage.state(session_id)).head + 1)), "a gap"
    stored = {(session_id, entry.seq): entry.id for entry in log}
    promised = {place: id for place, id in acknowledged.entries.items() if place[0] == session_id}
    assert promised.items() <= stored.items(), "lost"
    inputs = [entry for entry in log if entry.type == "user.message"]
    assert set(Counter((e.id, e.queued) for e in inputs).values()) <= {1}, "doubled"
    texts = Counter(e.fields["content"][0]["text"] for e in inputs if e.queued)
    assert set(texts.values()) <= {1}, "accepted twice"
    said = [entry.fields["generation"] for entry in log if entry.type == "agent.message"]
    assert said == sorted(said), "two agents wrote to one session"
    moments = [entry.at for entry in log]
    assert moments == sorted(moments)


def torment(server: PostgresServer, happenings: list[str], sessions: int) -> Cluster:
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    chance = random.Random(seed)
    url = anyio.run(server.new)
    anyio.run(prepare, url, sessions)
    cluster = Cluster(server, url, sessions, chance)
    try:
        for node in [cluster.add() for _ in range(3)]:
            node.wait()
        chance.shuffle(happenings)
        for happening in happenings:
            time.sleep(chance.uniform(0, 0.5))
            cluster.do(happening)
    finally:
        cluster.end()
    print(f"{dict(cluster.did)}; acknowledged: {dict(cluster.acknowledged.counts)}")
    anyio.run(verify, cluster)
    return cluster


def test_nodes_and_their_database_fail_and_nothing_acknowledged_is_lost(
    postgres: PostgresServer,
) -> None:
    cluster = torment(postgres, ["kill", "stop", "cut", "crash"], sessions=8)
    assert cluster.acknowledged.counts["written"]


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_nodes_and_their_database_fail_again_and_again(postgres: PostgresServer) -> None:
    cluster = torment(postgres, ["kill", "stop", "cut", "crash"] * 20, sessions=60)
    assert cluster.acknowledged.counts["fenced"], "no stalled writer was ever refused"
