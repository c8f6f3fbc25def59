"""How fast the store is on PostgreSQL, with one, two and four processes, beside a bare COPY loop.

    python bench/postgres.py [--quick]

The server is started for this, syncs its disk, and shares the machine with everything else here. Closed
loop: so many sessions, each waiting for its own durable commit before it sends again, divided among the
processes. The baseline does nothing but copy the gathered rows into one table with the same columns and
the same index, and commit. Then: one process appends at a given rate, another one follows, through its
own notifier and its own connections; the time is from before the append to the entry in hand. The rate that
came about is printed beside the one that was offered: if it is lower, the times are those of a queue. Then:
one process owns many sessions, and is killed or stopped; another one waits for work as a server does (for a
notification, and otherwise looks every two seconds), and the time of a session is until that one has claimed it.
How many of them it would run at once is another matter, and not measured here.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from statistics import median

import asyncpg
import msgspec
import uvloop

from roost.domain.ledger import Batch
from roost.domain.session import Lease
from roost.ports.drafts import new_draft
from roost.ports.notifier import WORK
from roost.stores.postgres import PostgresNotifier, PostgresStore
from roost.testing.postgres import PostgresServer
from roost.testing.stage import Stage, message

SAID = "It takes a fairly ordinary sentence or two to make an event of the usual size. " * 3
EVENT = new_draft("user.message", content=[{"type": "text", "text": SAID}])
LEASE = 10.0  # seconds; a server's default
LOOK_AGAIN = 2.0  # seconds; as `core/work/dispatch`
PAGE = 500
TABLE = """
CREATE TABLE IF NOT EXISTS bare (session bigint, seq bigint, at bigint, queued boolean, taken bigint,
                                 id text, type text, body bytea, PRIMARY KEY (session, seq))
"""
Send = Callable[[int, int], Awaitable[object]]


async def closed_loop(sessions: range, send: Send, seconds: float) -> list[float]:
    latencies: list[float] = []
    stop = time.perf_counter() + seconds

    async def client(session: int) -> None:
        n = 0
        while (start := time.perf_counter()) < stop:
            n += 1
            await send(session, n)
            if (now := time.perf_counter()) < stop:  # else it belongs to no second that was counted
                latencies.append(now - start)

    await asyncio.gather(*(client(n) for n in sessions))
    return latencies


class Copies:
    """Group commit at its least: whatever gathered is copied, and that is all."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._rows: list[tuple[object, ...]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    def send(self, row: tuple[object, ...]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rows.append(row)
        self._waiting.append(future)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return future

    async def _run(self) -> None:
        while self._rows:
            rows, waiting = self._rows, self._waiting
            self._rows, self._waiting = [], []
            await self._connection.copy_records_to_table("bare", records=rows)
            for future in waiting:
                future.set_result(None)


async def bare(url: str, sessions: range, seconds: float) -> list[float]:
    connection = await asyncpg.connect(url)
    copies, now = Copies(connection), time.time_ns() // 1000

    def send(session: int, n: int) -> Awaitable[None]:
        row = (session, now + n, now, True, 0, EVENT.id, EVENT.type, EVENT.body)
        return copies.send(row)

    found = await closed_loop(sessions, send, seconds)
    await connection.close()
    return found


async def accepts(url: str, sessions: range, seconds: float) -> list[float]:
    async with PostgresStore.open(url) as store:

        def send(session: int, n: int) -> Awaitable[object]:
            return store.log.accept(f"sesn_{session}", [EVENT], max_queued=10**9)

        return await closed_loop(sessions, send, seconds)


async def followed(url: str, lease: Lease, count: int) -> list[float]:
    """From each entry's own note of when its append began."""
    latencies: list[float] = []
    after = 0
    async with PostgresStore.open(url) as store, PostgresNotifier.open(url) as notifier:
        with notifier.subscribe(lease.session_id) as subscription:
            print("ready", flush=True)
            while len(latencies) < count:
                page = await store.log.read(lease.session_id, after, PAGE)
                for entry in page:
                    after = entry.seq
                    if entry.type == "agent.message":
                        latencies.append(time.monotonic() - entry.fields["at"])
                if len(page) < PAGE:  # else there may be more, and nobody notifies of it again
                    await subscription.wait(1)
                subscription.notified()
    return latencies


async def appended(url: str, lease: Lease, rate: int, count: int) -> float:
    """Seconds until all were committed; as many as were meant to be, unless it cannot keep up."""
    start = time.perf_counter()
    async with (
        PostgresStore.open(url) as store,
        PostgresNotifier.open(url) as notifier,
        asyncio.TaskGroup() as tasks,
    ):

        async def one() -> None:
            draft = new_draft("agent.message", at=time.monotonic(), text=SAID)
            await store.log.append(lease, Batch(drafts=[draft]))
            notifier.notify(lease.session_id)

        start = time.perf_counter()
        for n in range(count):
            if (wait := start + n / rate - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            elif not n % 20:
                await asyncio.sleep(0)
            tasks.create_task(one())
    return time.perf_counter() - start


async def own(url: str, sessions: int, lease: float) -> None:
    """Be a node that has claimed so many sessions, until killed."""

    async def live() -> None:
        while True:
            await store.log.renew("node_dying", lease)
            await asyncio.sleep(lease / 3)

    async with PostgresStore.open(url) as store, asyncio.TaskGroup() as tasks:
        await asyncio.gather(*(Stage(store).session(message()) for _ in range(sessions)))
        await store.log.renew("node_dying", lease)
        tasks.create_task(live())
        claimed = 0
        while claimed < sessions:
            claimed += len(await store.log.claim("node_dying", sessions))
        print("ready", flush=True)


async def taken_over(
    server: PostgresServer, sessions: int, how: signal.Signals, lease: float
) -> list[float]:
    """Seconds until each session of a node that got the signal is somebody else's."""
    url = await server.new()
    async with PostgresStore.open(url) as store, PostgresNotifier.open(url) as notifier:
        dying = worker("own", url, sessions, lease)
        assert dying.stdout is not None
        assert await asyncio.to_thread(dying.stdout.readline) == b"ready\n"
        await store.log.renew("node_heir", 600)
        await asyncio.sleep(1)  # until its lock has been seen
        found: list[float] = []
        with notifier.subscribe(WORK) as subscription:
            dying.send_signal(how)
            start = time.perf_counter()
            while len(found) < sessions:
                claimed = await store.log.claim("node_heir", sessions)
                found += [time.perf_counter() - start] * len(claimed)
                if not claimed:
                    await subscription.wait(LOOK_AGAIN)
                    subscription.notified()
        dying.kill()
        dying.communicate()
        return found


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def figures(latencies: list[float], seconds: float) -> str:
    rate, last = len(latencies) / seconds, p99(latencies)
    return f"{rate:>9,.0f}/s   p50 {median(latencies) * 1e3:7.2f} ms   p99 {last * 1e3:7.2f} ms"


def worker(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--worker", *(str(argument) for argument in arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def together(what: str, url: str, sessions: int, processes: int, seconds: float) -> list[float]:
    """The latencies of all processes. They begin when the last one has been started."""
    begin = time.time() + 1.0 + processes
    bounds = [sessions * n // processes for n in range(processes + 1)]
    workers = [worker(what, url, first, last, seconds, begin) for first, last in pairwise(bounds)]
    return [x for one in workers for x in msgspec.json.decode(one.communicate()[0])]


async def work(what: str, url: str, *rest: str) -> None:
    if what in ("bare", "accepts"):
        first, last, seconds, begin = rest
        await asyncio.sleep(max(0, float(begin) - time.time()))
        run = bare if what == "bare" else accepts
        found = await run(url, range(int(first), int(last)), float(seconds))
    elif what == "own":
        await own(url, int(rest[0]), float(rest[1]))
        return
    else:
        lease = Lease(rest[0], rest[1], int(rest[2]))
        found = await followed(url, lease, int(rest[3]))
    sys.stdout.buffer.write(msgspec.json.encode(found))


async def compare_accepts(server: PostgresServer, seconds: float) -> None:
    print("durable accepts, closed loop; last: the share of the bare COPY's")
    for sessions in (1, 64, 1000):
        url = await server.new()
        async with PostgresStore.open(url) as store:
            stage = Stage(store)
            spec = (await stage.look(await stage.session())).spec
            made = (f"sesn_{n}" for n in range(sessions))
            await asyncio.gather(
                *(store.sessions.create("tenant_1", name, spec, [message()]) for name in made)
            )
        await server.do(TABLE, url)
        for processes in (1, 2, 4) if sessions >= 64 else (1,):
            rates = {}
            for what in ("bare", "accepts"):
                await server.do("TRUNCATE bare", url)
                found = together(what, url, sessions, processes, seconds)
                rates[what] = len(found)
                name = {"bare": "bare COPY", "accepts": "Log.accept"}[what]
                share = f"{rates[what] / rates['bare']:5.2f}"
                where = f"{sessions:>5} sessions, {processes} processes"
                print(f"  {where}  {name:<10} {figures(found, seconds)}   {share}", flush=True)


async def compare_follow(server: PostgresServer, seconds: float) -> None:
    print("\nappend on one node to a follower on another")
    for rate in (1_000, 10_000, 20_000):
        url, count = await server.new(), int(rate * seconds)
        async with PostgresStore.open(url) as store:
            lease = await Stage(store).running()
        follower = worker("followed", url, lease.session_id, lease.node, lease.generation, count)
        assert follower.stdout is not None
        await asyncio.to_thread(follower.stdout.readline)
        took = await appended(url, lease, rate, count)
        found = msgspec.json.decode((await asyncio.to_thread(follower.communicate))[0])
        print(f"  {rate:>6,}/s offered  {figures(found, took)}", flush=True)


async def compare_takeover(server: PostgresServer, lease: float, runs: dict[str, int]) -> None:
    print(f"\na session of a node is another's after; the node's lease is {lease:g} s")
    for sessions in (1, 100, 2_000):
        for name, times in runs.items():
            found: list[float] = []
            for _ in range(times):
                found += await taken_over(server, sessions, signal.Signals[name], lease)
            print(
                f"  {sessions:>6,} sessions, {name}, {times} times   p50 {median(found):6.2f} s"
                f"   p99 {p99(found):6.2f} s   last {max(found):6.2f} s",
                flush=True,
            )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--quick", action="store_true", help="a second for each run; one takeover each"
    )
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        await work(*options.worker)
        return
    logging.disable(logging.WARNING)  # that a node is gone is what is measured
    load, *_ = os.getloadavg()
    print(f"{os.cpu_count()} processors; load {load:.1f} before the first run")
    server = PostgresServer(durable=True)
    try:
        server.make()
        server.start()
        seconds = 1.0 if options.quick else 5.0
        await compare_accepts(server, seconds)
        await compare_follow(server, seconds)
        if options.quick:
            await compare_takeover(server, 3.0, {"SIGKILL": 1, "SIGSTOP": 1})
        else:
            await compare_takeover(server, LEASE, {"SIGKILL": 3, "SIGSTOP": 2})
    finally:
        server.stop()


if __name__ == "__main__":
    uvloop.run(main())
