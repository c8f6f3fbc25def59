"""Reading: a few threads, each with a connection that cannot write. None ever waits for the writer.

One more connection is the loop's own, for sessions that are being written to: what is in memory is found
in less time than it takes to hand the question to a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import apsw

from roost.errors import Unavailable
from roost.stores.sqlite.driver import explained

T = TypeVar("T")
Question = Callable[[apsw.Connection], T]
_Job = tuple[Question[Any], "asyncio.Future[Any]"]


class Readers:
    """Answers questions on whichever thread is free."""

    def __init__(self, here: apsw.Connection, *connections: apsw.Connection) -> None:
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

    def ask(self, question: Question[T]) -> asyncio.Future[T]:
        """The question's answer, from the database as it is committed now."""
        if self._closed:
            raise Unavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((question, future))
        return future

    async def ask_here(self, question: Question[T]) -> T:
        """As `ask`, for a few rows in memory, by their keys: the loop waits for it."""
        if self._closed:
            raise Unavailable("the store is closed")
        try:
            return question(self._here)
        except (apsw.BusyError, apsw.LockedError):  # somebody has the file open in another program
            return await self.ask(question)
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


def _answer(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
