"""How fast the store is, beside what the same machine can do at best in the same minute.

    python bench/store.py [--quick]

Closed loop: so many sessions, each waiting for its own durable commit before it sends again. The
baselines do with each event nothing but what makes it durable, in groups formed in the same way:
appended to a file, or inserted into a table. The sessions are kept running, so that each accept is
one entry; nobody works their queues off, which therefore have no limit here. A turn is what a runner
makes of a message: it is taken up, answered with three events, and the session rests: ten entries.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

import apsw
import uvloop

from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease
from roost.ports.drafts import new_draft
from roost.ports.log import EventQuery
from roost.stores.sqlite import SqliteStore
from roost.stores.sqlite.driver import connect
from roost.testing.stage import END_TURN, Stage, message

SAID = "It takes a fairly ordinary sentence or two to make an event of the usual size. " * 3
EVENT = new_draft("user.message", content=[{"type": "text", "text": SAID}])
ANSWER = new_draft("agent.message", content=[{"type": "text", "text": SAID}])
Send = Callable[[int, int], Awaitable[object]]


@dataclass
class Figures:
    """What came of one run."""

    rate: float
    p50: float
    p99: float

    def __str__(self) -> str:
        return f"{self.rate:>9,.0f}/s   p50 {self.p50:7.2f} ms   p99 {self.p99:7.2f} ms"


def figures(latencies: list[float], seconds: float) -> Figures:
    latencies.sort()
    p99 = latencies[int(len(latencies) * 0.99)]
    return Figures(len(latencies) / seconds, median(latencies) * 1e3, p99 * 1e3)


class Group:
    """The least that group commit can be: whatever gathered goes to `commit` together."""

    def __init__(self, commit: Callable[[list[Any]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[Any, asyncio.Future[None]] | None] = SimpleQueue()
        self._commit = commit
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def send(self, row: Any) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put((row, future))
        return future

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            more = [self._jobs.get() for _ in range(min(self._jobs.qsize(), 999))]
            jobs = [first, *(job for job in more if job is not None)]
            self._commit([row for row, _ in jobs])
            self._loop.call_soon_threadsafe(self._answer, [future for _, future in jobs])

    @staticmethod
    def _answer(futures: Iterable[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)


async def closed_loop(sessions: int, send: Send, seconds: float) -> Figures:
    latencies: list[float] = []
    stop = time.perf_counter() + seconds

    async def client(session: int) -> None:
        n = 0
        while (start := time.perf_counter()) < stop:
            n += 1
            await send(session, n)
            latencies.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(client(n) for n in range(sessions)))
    return figures(latencies, time.perf_counter() - start)


async def open_load(sessions: int, send: Send, rate: int, seconds: float) -> Figures:
    """Events at their scheduled times, whether or not the earlier ones are done."""
    latencies: list[float] = []

    async def one(session: int, n: int, due: float) -> None:
        await send(session, n)
        latencies.append(time.perf_counter() - due)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for n in range(int(rate * seconds)):
            due = start + n / rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.create_task(one(n * 7919 % sessions, n, due))
    return figures(latencies, time.perf_counter() - start)


async def file_baseline(folder: Path, sessions: int, seconds: float) -> Figures:
    """Append and fdatasync."""
    descriptor = os.open(folder / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def commit(rows: list[bytes]) -> None:
        os.write(descriptor, b"".join(rows))
        os.fdatasync(descriptor)

    group, row = Group(commit), EVENT.body + bytes(80)
    found = await closed_loop(sessions, lambda session, n: group.send(row), seconds)
    await asyncio.to_thread(group.close)
    os.close(descriptor)
    return found


async def table_baseline(folder: Path, sessions: int, seconds: float, index: str) -> Figures:
    """Insert and commit, under the pragmas of the store."""
    db = connect(folder / "table.db")
    db.execute("PRAGMA wal_autocheckpoint = 1000")
    db.execute("CREATE TABLE t (num INTEGER PRIMARY KEY, session, seq, at, id, type, body)")
    db.execute(index)
    cursor = db.cursor()

    def commit(rows: list[Any]) -> None:
        cursor.execute("BEGIN IMMEDIATE")
        insert = "INSERT INTO t (session, seq, at, id, type, body) VALUES (?, ?, ?, ?, ?, ?)"
        cursor.executemany(insert, rows)
        cursor.execute("COMMIT")

    group, now = Group(commit), time.time_ns() // 1000

    def send(session: int, n: int) -> Awaitable[None]:
        return group.send((session, n, now, EVENT.id, EVENT.type, EVENT.body))

    found = await closed_loop(sessions, send, seconds)
    await asyncio.to_thread(group.close)
    db.close()
    return found


async def running_sessions(stage: Stage, count: int) -> list[str]:
    made = await asyncio.gather(*(stage.session(message()) for _ in range(count)))
    return list(made)


async def store_accepts(folder: Path, sessions: int, seconds: float, rate: int = 0) -> Figures:
    async with SqliteStore.open(folder / f"store{sessions}.{rate}.db") as store:
        names = await running_sessions(Stage(store), sessions)

        def send(session: int, n: int) -> Awaitable[object]:
            return store.log.accept(names[session], [EVENT], max_queued=10**9)

        if rate:
            return await open_load(sessions, send, rate, seconds)
        return await closed_loop(sessions, send, seconds)


async def store_turns(folder: Path, sessions: int, seconds: float) -> Figures:
    async with SqliteStore.open(folder / f"turns{sessions}.db") as store:
        await running_sessions(Stage(store), sessions)
        leases = await Stage(store).claim()

        async def turn(session: int, n: int) -> None:
            lease = leases[session]
            if n > 1:
                await store.log.accept(lease.session_id, [EVENT])
            waiting = await store.log.inputs(lease.session_id)
            await store.log.append(lease, Batch(takes=waiting, turn=TurnMark.BEGIN))
            for _ in range(2):
                await store.log.append(lease, Batch(drafts=[ANSWER]))
            [last] = await store.log.append(lease, Batch(drafts=[ANSWER]))
            await store.log.finish(lease, last.seq, Batch(), END_TURN, keep=True)

        return await closed_loop(sessions, turn, seconds)


Method = Callable[[Path, int, float], Awaitable[Figures]]
METHODS: dict[str, Method] = {
    "file, fdatasync": file_baseline,
    "bare table": partial(table_baseline, index=""),
    "indexed by (session, seq)": partial(
        table_baseline, index="CREATE UNIQUE INDEX i ON t (session, seq)"
    ),
    "Log.accept": store_accepts,
}


async def best_of_each(sessions: int, seconds: float, rounds: int = 3) -> dict[str, Figures]:
    """All by turns, because disks and neighbours have moods; each one's best counts."""
    best: dict[str, Figures] = {}
    for _ in range(rounds):
        for name, method in METHODS.items():
            with tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
                found = await method(Path(folder), sessions, seconds / rounds)
            if name not in best or found.rate > best[name].rate:
                best[name] = found
    return best


async def compare_accepts(folder: Path, seconds: float) -> None:
    print(
        "durable accepts, closed loop; last: the share of the bare table's, and of the indexed one's"
    )
    for sessions in (1, 64, 1000):
        best = await best_of_each(sessions, seconds)
        bare, indexed = best["bare table"].rate, best["indexed by (session, seq)"].rate
        for name, found in best.items():
            shares = f"{found.rate / bare:5.2f} {found.rate / indexed:5.2f}"
            print(f"  {sessions:>5} sessions  {name:<26} {found}   {shares}")
    print("\nwhole turns, closed loop")
    for sessions in (1, 64, 1000):
        found = await store_turns(folder, sessions, seconds)
        print(f"  {sessions:>5} sessions  {'':<26} {found}   {found.rate * 10:,.0f} entries/s")
    print("\ndurable accepts, open load on 1000 sessions")
    for rate in (2_000, 10_000):
        found = await store_accepts(folder, 1000, seconds, rate=rate)
        print(f"  {rate:>6,} offered {'':<22} {found}")


async def usual(call: Callable[[], Awaitable[object]], times: int = 41) -> float:
    """Milliseconds for one call, the median of many."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        await call()
        took.append(time.perf_counter() - start)
    return median(took) * 1e3


async def grown(stage: Stage, length: int) -> Lease:
    lease = await stage.running()
    await stage.take_all(lease)
    for size in [1000] * (length // 1000) + [length % 1000]:
        await stage.log.append(lease, Batch(drafts=[EVENT] * size))
    return lease


async def compare_lengths(folder: Path) -> None:
    print("\nmilliseconds for one call                        100 entries   100,000 entries")
    async with SqliteStore.open(folder / "lengths.db") as store:
        stage = Stage(store)
        leases = [await grown(stage, length) for length in (100, 100_000)]
        ends = {lease: (await stage.state(lease.session_id)).head - 50 for lease in leases}

        async def change_hands(lease: Lease) -> None:
            generation = (await stage.state(lease.session_id)).generation
            await store.log.release(Lease(lease.session_id, lease.node, generation))
            await stage.claim()

        calls: dict[str, Callable[[Lease], Awaitable[object]]] = {
            "read 50 from the start": lambda at: store.log.read(at.session_id, 0, 50),
            "read the newest 50": lambda at: store.log.read(at.session_id, ends[at], 50),
            "list the newest 50": lambda at: store.log.page(
                at.session_id, EventQuery(order="desc", limit=50)
            ),
            "list the oldest 50": lambda at: store.log.page(at.session_id, EventQuery(limit=50)),
            "look for one rare type": lambda at: store.log.page(
                at.session_id, EventQuery(types=["session.status_running"], order="desc", limit=1)
            ),
            "inputs that wait": lambda at: store.log.inputs(at.session_id),
            "give back and claim": change_hands,
        }
        for name, call in calls.items():
            took = [await usual(partial(call, lease)) for lease in leases]
            print(f"  {name:<44} {took[0]:>12.2f} {took[1]:>17.2f}")


async def replay(folder: Path) -> None:
    async with SqliteStore.open(folder / "replay.db") as store:
        lease = await grown(Stage(store), 1496)
        whole = await usual(lambda: store.log.read(lease.session_id, 0, 1500))
        paged = await usual(lambda: pages(store, lease.session_id))
    print(f"\nreplay of 1,500 events: {whole:.1f} ms at once, {paged:.1f} ms in pages of 100")


async def pages(store: SqliteStore, session_id: str) -> None:
    after = 0
    while page := await store.log.read(session_id, after, 100):
        after = page[-1].seq


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--quick", action="store_true", help="one second and a half for each run, not six"
    )
    seconds = 1.5 if parser.parse_args().quick else 6.0
    folder = Path(tempfile.mkdtemp(prefix="roost-bench-"))
    gc.freeze()  # as the server does, for the baselines too
    gc.set_threshold(20_000, 20, 50)
    print(
        f"SQLite {apsw.sqlite_lib_version()}, {os.cpu_count()} cores, {len(EVENT.body)}-byte bodies"
    )
    try:
        await compare_accepts(folder, seconds)
        await replay(folder)
        await compare_lengths(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    uvloop.run(main())
