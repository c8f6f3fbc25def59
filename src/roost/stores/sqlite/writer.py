"""Group commit: whatever is asked for while one commit runs, goes into the next one together.

No timer and no waiting: an idle writer commits a lone operation at once, a busy one takes all that
has gathered. An operation may be run again:

* it raises a `RoostError` before it writes anything: that is its answer, and the batch goes on;
* anything else goes wrong (its own bug, a full disk): the batch is rolled back, and each operation
  is run again in a transaction of its own, so that one failure is nobody else's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar

import apsw
import msgspec

from roost.errors import RoostError, Unavailable
from roost.stores.sql.batch import Procedure
from roost.stores.sql.database import Ended, finished, tell
from roost.stores.sql.rows import Settled
from roost.stores.sqlite.checkpoint import Checkpoints
from roost.stores.sqlite.clock import Clock
from roost.stores.sqlite.driver import explained
from roost.stores.sqlite.transaction import SqliteOperation, SqliteTransaction

T = TypeVar("T")
_Job = tuple[SqliteOperation[Any], "asyncio.Future[Any] | None", Ended[Any] | None]

_log = logging.getLogger(__name__)
_MOST_AT_ONCE: Final = 1000


class SqliteWriter:
    """The thread that owns the writing connection."""

    def __init__(self, db: apsw.Connection, clock: Clock) -> None:
        self._db = db
        self._tx = SqliteTransaction(db, clock)
        self._checkpoints = Checkpoints(db)
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._run, name="roost-writer", daemon=True)
        self._thread.start()

    def do(self, operation: SqliteOperation[T], ended: Ended[T] | None = None) -> asyncio.Future[T]:
        """What it returns or raises, once it is durable. Giving up waiting does not undo it."""
        if self._closed:
            error = Unavailable("the store is closed")
            tell(ended, error)
            raise error
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((operation, future, ended))
        return future

    def alone(self, procedure: Procedure[T]) -> asyncio.Future[T]:
        """The same for one that asks the database questions: here it is an operation like any other."""
        return self.do(_RunToItsEnd(procedure))

    def execute(self, sql: str, *values: Any) -> asyncio.Future[None]:
        """The same for one statement."""
        return self.do(_Statement(sql, values))

    def later(self, operation: SqliteOperation[object]) -> None:
        """Do it when its turn comes; nobody waits for it."""
        self._jobs.put((operation, None, None))

    def remembers(self, session_id: str) -> bool:
        """Whether the session was written to lately, so that its rows are in memory. Any thread may ask."""
        return self._tx.remembers(session_id)

    def settled(self, session_id: str) -> Settled | None:
        """The session as it is committed, if it was written to lately and is not being written to now."""
        return self._tx.settled(session_id)

    def lives(self, node: str) -> bool:
        """Whether a node's lease holds. Any thread may ask."""
        return self._tx.nodes.get(node, 0) > time.monotonic()

    def refuse(self) -> None:
        """Take nothing new; what was taken is still done. Called on the loop, before `close`."""
        self._closed = True
        self._jobs.put(None)

    def close(self) -> None:
        """Wait until all is done. Blocks."""
        self._thread.join()
        self._db.close()

    def _run(self) -> None:
        while (first := self._jobs.get()) is not None:
            jobs = self._gather(first)
            outcomes = self._commit([operation for operation, _, _ in jobs])
            self._loop.call_soon_threadsafe(_answer, jobs, outcomes)
            for operation in self._tx.later:
                self.later(operation)
            self._tx.later.clear()
            self._checkpoints.tidy()

    def _gather(self, first: _Job) -> list[_Job]:
        jobs = [first]
        for _ in range(min(self._jobs.qsize(), _MOST_AT_ONCE - 1)):
            job = self._jobs.get()
            if job is None:
                self._jobs.put(None)
                break
            jobs.append(job)
        return jobs

    def _commit(self, operations: list[SqliteOperation[Any]]) -> list[Any]:
        try:
            return self._commit_together(operations)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to one of them only
            self._abandon()
            if len(operations) == 1:
                return [explained(error)]
            _log.warning("a batch of %d failed, one by one now: %s", len(operations), error)
            return [self._commit([operation])[0] for operation in operations]

    def _commit_together(self, operations: list[SqliteOperation[Any]]) -> list[Any]:
        tx, outcomes = self._tx, list[Any]()
        tx.begin()
        for operation in operations:
            try:
                outcomes.append(operation.on(tx))
            except RoostError as refusal:
                outcomes.append(refusal)
        tx.commit()
        return outcomes

    def _abandon(self) -> None:
        try:
            self._tx.abandon()
        except apsw.Error as error:
            _log.error("cannot roll back, will try before the next batch: %s", error)


class _RunToItsEnd(msgspec.Struct, frozen=True):
    procedure: Procedure[Any]

    def on(self, tx: SqliteTransaction) -> Any:
        return finished(self.procedure.on(tx))


class _Statement(msgspec.Struct, frozen=True):
    sql: str
    values: tuple[Any, ...]

    def on(self, tx: SqliteTransaction) -> None:
        tx.query(self.sql, *self.values)


def _answer(jobs: list[_Job], outcomes: list[Any]) -> None:
    for (_, future, ended), outcome in zip(jobs, outcomes, strict=True):
        if ended is not None:
            tell(ended, outcome)
        if future is None:
            if isinstance(outcome, Exception):
                _log.warning("nobody waits for this, it is done at the next start: %s", outcome)
        elif future.done():
            continue
        elif isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
