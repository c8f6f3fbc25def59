"""Asking and changing the database, over connections that may break at any moment.

A question is asked again. A change is one transaction, and whether it was committed is always found
out before anything is said about it: a connection that is cut during COMMIT leaves that open. So each
transaction writes its own number into a row that belongs to its connection. Who looks at that row
waits until the cut-off transaction has come to an end, and then sees whether it was committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, Literal, TypeVar

import anyio

from roost.domain.events import Entry, Micros
from roost.errors import Unavailable
from roost.ids import mint
from roost.stores.postgres import driver
from roost.stores.postgres.connections import ConnectionPool, ReconnectingConnection
from roost.stores.postgres.driver import NOW, CommitMark, Connection, worded
from roost.stores.sql.database import Question
from roost.stores.sql.rows import Row, entry_of

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]
MarkedWork = Callable[[Connection, CommitMark], Awaitable[T]]

_log = logging.getLogger(__name__)
_CONNECTIONS: Final = 10
_BUSY_PATIENCE: Final = 60.0
_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.3)

# This transaction is its connection's last one.
_MARK = f"""
INSERT INTO commits (writer, batch, at) VALUES ($1, $2, {NOW})
ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, at = excluded.at
"""

# The connection's last transaction; waits for one that is still under way.
_LAST = f"""
INSERT INTO commits AS c (writer, batch, at) VALUES ($1, 0, {NOW})
ON CONFLICT (writer) DO UPDATE SET batch = c.batch RETURNING batch
"""

# End a connection of ours that hangs, so that nobody waits for it.
_END = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND application_name = $2
"""


class Database:
    """Connections to one database."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._connections: list[ReconnectingConnection] = []
        self._shared = ConnectionPool([self._connection() for _ in range(_CONNECTIONS)])
        self._batches = count(1)
        self._closed = False
        self._answered = time.monotonic()

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncGenerator[Database]:
        """Connected, and closed when the context ends."""
        database = cls(url, mint("roost"))
        try:
            yield database
        finally:
            database._closed = True
            async with anyio.create_task_group() as closing:
                for connection in database._connections:
                    closing.start_soon(connection.close)

    async def read(self, question: Question[T]) -> T:
        """The answer to a question, which may be asked again if the connection breaks."""
        return await self.ask(lambda connection: question(_PostgresRows(connection)))

    async def ask(self, question: Work[T]) -> T:
        """The same for one that knows which database this is."""
        return await self._patiently(lambda: self._ask(question), time.monotonic())

    async def write(self, change: Work[T]) -> T:
        """What `change` returns, once it is committed; it may be run again.

        :raises Unavailable: the database was away for too long, and nothing was kept
        """

        async def marked(connection: Connection, mark: CommitMark) -> T:
            outcome = await change(connection)
            await connection.execute(_MARK, *mark)
            return outcome

        return await self._patiently(lambda: self._commit(marked, self._shared), time.monotonic())

    async def write_on(self, own: ReconnectingConnection, change: MarkedWork[T], since: float) -> T:
        """The same on a connection of its own, for a change that also writes its mark, if it writes.

        Patience is counted since then.
        """
        return await self._patiently(lambda: self._commit(change, own), since)

    def own_connection(self) -> ReconnectingConnection:
        """A connection for one who uses it all the time, for a few statements."""
        return self._connection(planned_once=True)

    def _connection(self, *, planned_once: bool = False) -> ReconnectingConnection:
        connection = ReconnectingConnection(self._url, self._name, planned_once=planned_once)
        self._connections.append(connection)
        return connection

    async def _patiently(self, attempt: Callable[[], Awaitable[T]], since: float) -> T:
        """Try until it works, or the database has been away for too long."""
        for tries in count():
            if self._closed:
                raise Unavailable("the store is closed")
            try:
                outcome = await attempt()
            except Exception as error:
                if not driver.is_passing(error) or self._is_enough(since):
                    raise driver.explained(error) from error
                _log.debug("again, because of: %s", error)
            else:
                self._answered = time.monotonic()
                return outcome
            await anyio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
        raise AssertionError("unreachable")

    def _is_enough(self, since: float) -> bool:
        """A database that answers others is busy, not away: that is worth a longer wait."""
        now = time.monotonic()
        away = now - max(since, self._answered) > driver.PATIENCE
        return away or now - since > _BUSY_PATIENCE

    async def _ask(self, question: Work[T]) -> T:
        async with self._shared.connected() as connection:
            return await question(connection)

    async def _commit(
        self, change: MarkedWork[T], source: ReconnectingConnection | ConnectionPool
    ) -> T:
        async with source.connected() as connection:
            pid = connection.get_server_pid()
            mark = CommitMark(f"{self._name} {pid}", next(self._batches))
            await connection.execute("BEGIN")
            outcome = await change(connection, mark)
            try:
                done = await connection.execute("COMMIT")
                assert done == "COMMIT", "a statement failed, and its error was swallowed"
                return outcome
            except Exception as error:
                if not driver.is_lost(error):
                    raise
                connection.terminate()
        if await self._was_committed(pid, mark):
            return outcome
        return await self._commit(change, source)

    async def _was_committed(self, pid: int, mark: CommitMark) -> bool:
        _log.warning("cut off while committing; looking whether it was done")

        async def look(connection: Connection) -> bool:
            await connection.execute(_END, pid, self._name)
            last: int = await connection.fetchval(_LAST, mark.writer)
            return last == mark.batch

        try:
            return await self._patiently(lambda: self._ask(look), time.monotonic())
        except Exception as error:
            raise Unavailable(
                "the database went away while it committed, and has not come back",
                hint="Whether this was kept is not known. Send it again with the same idempotency key.",
            ) from error


# Of the rows of a statement, those before which there are less than so many bytes. What is large lies
# elsewhere in the database, and is fetched for rows that are sent only.
_UP_TO = """
SELECT seq, id, type, body, at, queued FROM (
    SELECT q.*, sum(octet_length(q.body)) OVER (ORDER BY q.seq {order} ROWS UNBOUNDED PRECEDING)
    - octet_length(q.body) AS before FROM ({statement}) q
) w WHERE w.before < ? ORDER BY seq {order}
"""


class _PostgresRows:
    """The `sql.database.Rows` of a PostgreSQL connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def fetch(self, sql: str, *values: Any) -> list[Row]:
        rows: list[Row] = await self._connection.fetch(worded(sql), *values)
        return rows

    async def entries(
        self, sql: str, *values: Any, order: Literal["ASC", "DESC"], most_bytes: int
    ) -> list[Entry]:
        bounded = _UP_TO.format(order=order, statement=sql)
        return [entry_of(row) for row in await self.fetch(bounded, *values, most_bytes)]

    async def now(self) -> Micros:
        now: Micros = await self._connection.fetchval(f"SELECT {NOW}")
        return now
