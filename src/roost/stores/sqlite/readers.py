"""Reading: a few threads, each with a connection that cannot write. None ever waits for the writer.

One more connection is the loop's own, for sessions that are being written to: what is in memory is found
in less time than it takes to hand the question to a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal, TypeVar

import apsw

from roost.domain.events import Entry, Micros
from roost.errors import Unavailable
from roost.stores.sql.database import Question, finished
from roost.stores.sql.rows import Row, entry_of
from roost.stores.sqlite.clock import Clock
from roost.stores.sqlite.driver import explained

T = TypeVar("T")
_Job = tuple[Callable[[apsw.Connection], Any], "asyncio.Future[Any]"]


class SqliteReaders:
    """Answers questions on whichever thread is free."""

    def __init__(self, clock: Clock, here: apsw.Connection, *connections: apsw.Connection) -> None:
        self._clock = clock
        self._here = here
        self._here.set_busy_timeout(0)
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        self._threads = [
            Thread(target=self._run, args=(db,), name=f"roost-reader-{n}", daemon=True)
            for n, db in enumerate(connections)
        ]
        for thread in self._threads:
            thread.start()

    def read(self, question: Question[T]) -> asyncio.Future[T]:
        """The question's answer, from the database as it is committed now."""
        return self.ask(lambda db: finished(question(_SqliteRows(db, self._clock))))

    def ask(self, question: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """The same for one that knows which database this is."""
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((question, future))
        return future

    async def read_here(self, question: Question[T]) -> T:
        """As `read`, for a few rows in memory, by their keys: the loop waits for it."""
        if self._closed:
            raise Unavailable("the store is closed")
        try:
            return finished(question(_SqliteRows(self._here, self._clock)))
        except (apsw.BusyError, apsw.LockedError):  # somebody has the file open in another program
            return await self.read(question)
        except Exception as error:
            raise explained(error) from error

    def refuse(self) -> None:
        """Take nothing new. Called on the loop, before `close`."""
        self._closed = True
        self._here.close()
        for _ in self._threads:
            self._jobs.put(None)

    def close(self) -> None:
        """Wait until all is answered. Blocks."""
        for thread in self._threads:
            thread.join()

    def _run(self, db: apsw.Connection) -> None:
        while (job := self._jobs.get()) is not None:
            question, future = job
            try:
                outcome: Any = question(db)
            except Exception as error:  # noqa: BLE001 - it is the asker's, the thread goes on
                outcome = explained(error)
            self._loop.call_soon_threadsafe(_answer, future, outcome)
        db.close()


class _SqliteRows:
    """The `sql.database.Rows` of an SQLite connection."""

    def __init__(self, db: apsw.Connection, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def fetch(self, sql: str, *values: Any) -> list[Row]:
        return self._db.execute(sql, values).fetchall()

    async def entries(
        self, sql: str, *values: Any, order: Literal["ASC", "DESC"], most_bytes: int
    ) -> list[Entry]:
        entries: list[Entry] = []
        size = 0
        # A statement left in the middle would keep its picture of the database.
        with closing(self._db.execute(sql, values)) as rows:
            for row in rows:
                entries.append(entry_of(row))
                size += len(entries[-1].body)
                if size >= most_bytes:
                    break
        return entries

    async def now(self) -> Micros:
        return self._clock.now()


def _answer(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
