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
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import anyio
from anyio.abc import TaskGroup

from roost.errors import RoostError, Unavailable
from roost.stores.postgres.database import Database, Work
from roost.stores.postgres.driver import CommitMark, Connection, worded
from roost.stores.postgres.transaction import PostgresTransaction
from roost.stores.sql.batch import Needs, Procedure, StoreOperation
from roost.stores.sql.database import Ended, tell

T = TypeVar("T")
Answer = Callable[["asyncio.Future[Any]", Any], None]

_log = logging.getLogger(__name__)
_LANES: Final = 2
_MOST_AT_ONCE: Final = 1000


class _Job(NamedTuple):
    operation: StoreOperation[Any]
    needs: Needs
    future: asyncio.Future[Any]
    since: float
    ended: Ended[Any] | None


class PostgresWriter:
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

    async def do(self, operation: StoreOperation[T], ended: Ended[T] | None = None) -> T:
        """What it returns or raises, once it is durable. Giving up waiting does not undo it."""
        future: asyncio.Future[T] = self._begun(ended)
        needs = operation.needs
        lane = self._lanes[crc32(needs.session_id.encode()) % len(self._lanes)]
        lane.put(_Job(operation, needs, future, time.monotonic(), ended))
        return await future

    async def alone(self, procedure: Procedure[T]) -> T:
        """The same for one that asks the database questions: it has a transaction of its own."""

        async def change(connection: Connection) -> T:
            tx = await PostgresTransaction.begin(connection, procedure.needs)
            outcome = await procedure.on(tx)
            await tx.flush()
            return outcome

        return await self.apart(change)

    async def execute(self, sql: str, *values: Any) -> None:
        """The same for one statement."""
        await self.apart(lambda connection: connection.execute(worded(sql), *values))

    async def apart(self, change: Work[T]) -> T:
        """The same for a change that knows which database this is: it has a transaction of its own."""
        future: asyncio.Future[T] = self._begun()
        self._tasks.start_soon(self._apart, change, future)
        return await future

    async def close(self) -> None:
        """Take nothing new, and wait until what was taken is done."""
        self._closed = True
        if self._under_way:
            await self._done.wait()

    def _begun(self, ended: Ended[T] | None = None) -> asyncio.Future[T]:
        if self._closed:
            error = Unavailable("the store is closed")
            tell(ended, error)
            raise error
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

    async def _apart(self, change: Work[Any], future: asyncio.Future[Any]) -> None:
        try:
            outcome = await self._database.write(change)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            outcome = error
        self._ended(future, outcome)


class _Lane:
    """One transaction after the other."""

    def __init__(self, database: Database, ended: Answer) -> None:
        self._database = database
        self._ended = ended
        self._connection = database.own_connection()
        self._jobs: deque[_Job] = deque()
        self._something = anyio.Event()

    async def warm_up(self) -> None:
        await self._database.write_on(self._connection, _rehearsal, time.monotonic())

    def put(self, job: _Job) -> None:
        self._jobs.append(job)
        self._something.set()

    async def run(self) -> None:
        while True:
            await self._something.wait()
            jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), _MOST_AT_ONCE))]
            if not self._jobs:
                self._something = anyio.Event()
            for job, outcome in zip(jobs, await self._commit(jobs), strict=True):
                tell(job.ended, outcome)
                self._ended(job.future, outcome)

    async def _commit(self, jobs: Sequence[_Job]) -> list[Any]:
        try:
            return await self._database.write_on(
                self._connection,
                lambda connection, mark: _together(connection, mark, jobs),
                jobs[0].since,
            )
        except Unavailable as away:
            return [Unavailable(away.message, hint=away.hint) for _ in jobs]
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to one of them only
            if len(jobs) == 1:
                return [error]
            _log.warning("a batch of %d failed, one by one now: %s", len(jobs), error)
            return [(await self._commit([job]))[0] for job in jobs]


async def _together(connection: Connection, mark: CommitMark, jobs: Sequence[_Job]) -> list[Any]:
    tx = await PostgresTransaction.begin(connection, [job.needs for job in jobs])
    outcomes = [_outcome(job.operation, tx) for job in jobs]
    await tx.flush(mark)
    return outcomes


async def _rehearsal(connection: Connection, mark: CommitMark) -> None:
    """A batch that changes nothing."""
    tx = await PostgresTransaction.begin(connection, [Needs("")])
    await tx.write(mark)


def _outcome(operation: StoreOperation[Any], tx: PostgresTransaction) -> Any:
    try:
        return operation.on(tx)
    except RoostError as refusal:
        return refusal
