"""Group commit: whatever is asked for while one transaction runs, goes into the next one together.

A few lanes, each with one transaction at a time; a session always uses the same lane, so that the
lanes of a node never wait for each other. No timer: an idle lane commits a lone operation at once.

An operation that raises a `RoostError` is answered with it, and the batch goes on: a runner that was
fenced off, or a full queue, is nobody else's business. If anything else goes wrong, the operations are
run again one by one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import anyio
from anyio.abc import TaskGroup

from roost.errors import RoostError, Unavailable
from roost.stores.postgres.database import Database, Work
from roost.stores.postgres.driver import Connection, Mark
from roost.stores.postgres.transaction import Needs, Transaction

T = TypeVar("T")
Op = Callable[[Transaction], T]
Ended = Callable[["asyncio.Future[Any]", Any], None]

_log = logging.getLogger(__name__)
_LANES: Final = 2
_MOST_AT_ONCE: Final = 1000


class _Job(NamedTuple):
    op: Op[Any]
    needs: Needs
    future: asyncio.Future[Any]
    since: float


class Writer:
    """All that this node changes."""

    def __init__(self, database: Database, tasks: TaskGroup) -> None:
        self._database = database
        self._tasks = tasks
        self._closed = False
        self._under_way = 0
        self._done = anyio.Event()
        self._lanes = [_Lane(database, self._ended) for _ in range(_LANES)]

    async def start(self) -> None:
        """Ready for the first operation: connected, and every statement known to the database."""
        for lane in self._lanes:
            await lane.warm_up()
            self._tasks.start_soon(lane.run)

    async def do(self, op: Op[T], needs: Needs) -> T:
        """What `op` returns or raises, once it is durable. Giving up waiting does not undo it."""
        future: asyncio.Future[T] = self._begun()
        lane = self._lanes[crc32(needs.session_id.encode()) % len(self._lanes)]
        lane.put(op, needs, future)
        return await future

    async def alone(self, change: Work[T]) -> T:
        """The same for what is not grouped: `change` has a transaction of its own."""
        future: asyncio.Future[T] = self._begun()
        self._tasks.start_soon(self._alone, change, future)
        return await future

    async def close(self) -> None:
        """Take nothing new, and wait until what was taken is done."""
        self._closed = True
        if self._under_way:
            await self._done.wait()

    def _begun(self) -> asyncio.Future[T]:
        if self._closed:
            raise Unavailable("the store is closed")
        self._under_way += 1
        return asyncio.get_running_loop().create_future()

    def _ended(self, future: asyncio.Future[Any], outcome: Any) -> None:
        self._under_way -= 1
        if self._closed and not self._under_way:
            self._done.set()
        if future.done():  # whoever asked has given up
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    async def _alone(self, change: Work[Any], future: asyncio.Future[Any]) -> None:
        try:
            outcome = await self._database.write(change)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            outcome = error
        self._ended(future, outcome)


class _Lane:
    """One transaction after the other."""

    def __init__(self, database: Database, ended: Ended) -> None:
        self._database = database
        self._ended = ended
        self._line = database.line()
        self._jobs: deque[_Job] = deque()
        self._something = anyio.Event()

    async def warm_up(self) -> None:
        await self._database.write_on(self._line, _rehearsal, time.monotonic())

    def put(self, op: Op[Any], needs: Needs, future: asyncio.Future[Any]) -> None:
        self._jobs.append(_Job(op, needs, future, time.monotonic()))
        self._something.set()

    async def run(self) -> None:
        while True:
            await self._something.wait()
            jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), _MOST_AT_ONCE))]
            if not self._jobs:
                self._something = anyio.Event()
            for job, outcome in zip(jobs, await self._commit(jobs), strict=True):
                self._ended(job.future, outcome)

    async def _commit(self, jobs: Sequence[_Job]) -> list[Any]:
        try:
            work = partial(_together, jobs)
            return await self._database.write_on(self._line, work, jobs[0].since)
        except Unavailable as away:
            return [Unavailable(away.message, hint=away.hint) for _ in jobs]
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to one of them only
            if len(jobs) == 1:
                return [error]
            _log.warning("a batch of %d failed, one by one now: %s", len(jobs), error)
            return [(await self._commit([job]))[0] for job in jobs]


async def _together(jobs: Sequence[_Job], connection: Connection, mark: Mark) -> list[Any]:
    tx = await Transaction.begin(connection, [job.needs for job in jobs])
    outcomes = [_outcome(job.op, tx) for job in jobs]
    await tx.flush(mark)
    return outcomes


async def _rehearsal(connection: Connection, mark: Mark) -> None:
    """A batch that changes nothing."""
    tx = await Transaction.begin(connection, [Needs("")])
    await tx.write(mark)


def _outcome(op: Op[Any], tx: Transaction) -> Any:
    try:
        return op(tx)
    except RoostError as refusal:
        return refusal
