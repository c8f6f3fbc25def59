"""The store's process is killed with SIGKILL while it commits; nothing acknowledged is ever missing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest

from roost.domain.ledger import Batch
from roost.domain.session import Status
from roost.ports.log import Receipt
from roost.stores.sqlite import SqliteStore
from roost.testing.stage import Stage, message, numbers

SESSIONS = 64
WORKER = Path(__file__).with_name("store_worker.py")


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    return random.Random(seed)


class Acknowledged:
    """What the killed processes said they had committed."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], str] = {}
        self.keys: dict[tuple[str, str], tuple[int, str]] = {}

    def note(self, line: str) -> None:
        verb, session_id, seq, id, *key = line.split()
        known = self.entries.setdefault((session_id, int(seq)), id)
        assert known == id, f"two entries were acknowledged at {session_id} {seq}"
        if verb == "accepted":
            self.keys[session_id, key[0]] = int(seq), id


def run_and_kill(path: Path, run: int, chance: random.Random, acknowledged: Acknowledged) -> None:
    """One life: started on what the one before it left, killed at any moment, also while it starts."""
    command = [sys.executable, str(WORKER), str(path), f"run{run}", str(SESSIONS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        if chance.random() < 0.15:
            time.sleep(chance.uniform(0, 0.4))
        else:
            assert worker.stdout.readline() == b"ready\n", "the worker could not start again"
            os.set_blocking(worker.stdout.fileno(), False)
            said = _listen(worker, chance.uniform(0.02, 0.5))
            worker.kill()
            os.set_blocking(worker.stdout.fileno(), True)
            said += worker.stdout.read()
            for line in said.decode().split("\n")[:-1]:
                acknowledged.note(line)
        worker.kill()
        worker.wait()


def _listen(worker: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Keep the pipe empty, so that the worker never waits for us."""
    assert worker.stdout is not None
    said, deadline = b"", time.monotonic() + seconds
    while time.monotonic() < deadline:
        said += worker.stdout.read() or b""
        assert worker.poll() is None, "the worker died by itself"
        time.sleep(0.005)
    return said


async def verify(path: Path, acknowledged: Acknowledged, chance: random.Random) -> None:
    async with SqliteStore.open(path) as store:
        stage = Stage(store)
        for n in range(SESSIONS):
            await _verify_log(stage, f"sesn_{n}", acknowledged)
        sample = chance.sample(sorted(acknowledged.keys), min(500, len(acknowledged.keys)))
        for session_id, key in sample:
            again = await stage.log.accept(
                session_id, [message(key)], receipts=[Receipt(key, "same")]
            )
            assert again.repeated
            assert [(e.seq, e.id) for e in again.entries] == [acknowledged.keys[session_id, key]]
        await _finish_all(stage)
    async with SqliteStore.open(path) as store:
        assert await Stage(store).claim() == []


async def _verify_log(stage: Stage, session_id: str, acknowledged: Acknowledged) -> None:
    log = await stage.all(session_id)
    assert numbers(log) == list(range(1, (await stage.state(session_id)).head + 1))
    stored = {(session_id, entry.seq): entry.id for entry in log}
    promised = {place: id for place, id in acknowledged.entries.items() if place[0] == session_id}
    assert promised.items() <= stored.items()
    inputs = [entry for entry in log if entry.type == "user.message"]
    assert set(Counter((e.id, e.queued) for e in inputs).values()) <= {1}, "delivered twice"
    taken = {entry.id for entry in inputs if not entry.queued}
    waiting = [entry for entry in inputs if entry.queued and entry.id not in taken]
    assert await stage.log.inputs(session_id) == waiting


async def _finish_all(stage: Stage) -> None:
    """Every session is claimable and comes to rest."""
    for n in range(SESSIONS):
        await stage.say(f"sesn_{n}", "one more")
    leases = await stage.claim()
    assert {lease.session_id for lease in leases} == {f"sesn_{n}" for n in range(SESSIONS)}
    for lease in leases:
        await stage.take_all(lease)
        head = (await stage.state(lease.session_id)).head
        assert await stage.log.finish(lease, head, Batch(), {"type": "end_turn"})
        assert (await stage.state(lease.session_id)).status is Status.IDLE


def kill_again_and_again(path: Path, kills: int, chance: random.Random) -> None:
    acknowledged = Acknowledged()
    for run in range(kills * 10):
        run_and_kill(path, run, chance, acknowledged)
        if run + 1 >= kills and len(acknowledged.entries) > kills * SESSIONS:
            break  # as many as asked for, or more where too little was done to mean anything
    else:
        pytest.fail("hardly anything is ever acknowledged")
    print(f"{run + 1} kills, {len(acknowledged.entries)} acknowledged")
    anyio.run(verify, path, acknowledged, chance)


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(
    tmp_path: Path, chance: random.Random
) -> None:
    kill_again_and_again(tmp_path / "roost.db", 8, chance)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_over_two_hundred_kills(
    tmp_path: Path, chance: random.Random
) -> None:
    kill_again_and_again(tmp_path / "roost.db", 200, chance)
