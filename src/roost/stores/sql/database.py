"""What a database has to offer for the ports in this room: a writer that commits in groups, and readers.

What is done inside a transaction, and what is asked, is written as coroutines, because PostgreSQL answers over a
network. SQLite answers at once: there a coroutine is run to its end on the thread that has the connection, by
`finished`, and no event loop has to do with it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, Protocol, TypeVar

from roost.domain.events import Entry, Micros
from roost.stores.sql.batch import Procedure, StoreOperation
from roost.stores.sql.rows import Row

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Rows(Protocol):
    """A connection that is asked questions, and changes nothing."""

    async def fetch(self, sql: str, *values: Any) -> list[Row]:
        """All rows of the answer."""
        ...

    async def entries(
        self, sql: str, *values: Any, order: Literal["ASC", "DESC"], most_bytes: int
    ) -> list[Entry]:
        """Entries, from rows of `ENTRY_COLUMNS` in that order: up to the one that brings their bodies to so
        many bytes. No others are loaded.
        """
        ...

    async def now(self) -> Micros:
        """The time by the store's clock, in microseconds."""
        ...


Question = Callable[[Rows], Coroutine[Any, Any, T]]
"""Asks what it needs to know, and may be asked again if a connection breaks."""


class SqlReader(Protocol):
    """Answers questions, from the database as it is committed."""

    def read(self, question: Question[T]) -> Awaitable[T]:
        """What the question comes to."""
        ...


Ended = Callable[[T | None], None]
"""Told on the event loop, in no task of its own, what an operation has returned; None: it has raised."""


def tell(ended: Ended[Any] | None, outcome: object) -> None:
    """Tell who wants to know how an operation has ended; that one's failures are nobody else's."""
    try:
        if ended is not None:
            ended(None if isinstance(outcome, Exception) else outcome)
    except Exception:  # noqa: BLE001 - whatever it is, others wait to be told
        _log.exception("what was committed could not be told")


class SqlWriter(Protocol):
    """Changes the database. What it returns is durable; giving up waiting for it does not undo it."""

    def do(self, operation: StoreOperation[T], ended: Ended[T] | None = None) -> Awaitable[T]:
        """Run an operation together with others in one transaction.

        `ended` is told what it has returned, or None if it has raised, whether or not somebody still waits.
        """
        ...

    def alone(self, procedure: Procedure[T]) -> Awaitable[T]:
        """Run one that asks the database questions."""
        ...

    def execute(self, sql: str, *values: Any) -> Awaitable[None]:
        """Run one statement that has no answer."""
        ...


async def rows_of(reader: SqlReader, sql: str, *values: Any) -> list[Row]:
    """The answer to one statement."""
    return await reader.read(lambda rows: rows.fetch(sql, *values))


def finished(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing but a database which answers at once."""
    try:
        work.send(None)
    except StopIteration as end:
        outcome: T = end.value
        return outcome
    work.close()
    raise AssertionError("work inside a transaction waited for something outside of it")
