"""Connections to use: each is made when it is needed, and again when it was lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio

from roost.stores.postgres import driver
from roost.stores.postgres.driver import Connection


class ReconnectingConnection:
    """One connection, for one user at a time."""

    def __init__(self, url: str, name: str, *, planned_once: bool = False) -> None:
        """`planned_once`: see `driver.connect`."""
        self._url = url
        self._name = name
        self._planned_once = planned_once
        self._connection: Connection | None = None

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Connection]:
        """The connection; a transaction that is left open on it is rolled back."""
        connection = self._connection
        if connection is None or connection.is_closed():
            self._connection = connection = await driver.connect(
                self._url, self._name, planned_once=self._planned_once
            )
        try:
            yield connection
        except Exception as error:
            if driver.is_lost(error):
                connection.terminate()  # it may lead to a server that does not write any more
            raise
        except BaseException:
            connection.terminate()  # given up half-way: nobody knows what it is in the middle of
            raise
        finally:
            await _tidy(connection)

    async def close(self) -> None:
        """Nobody uses it any more."""
        if self._connection is not None:
            await driver.close(self._connection)


async def _tidy(connection: Connection) -> None:
    if connection.is_closed() or not connection.is_in_transaction():
        return
    try:
        await connection.execute("ROLLBACK")
    except Exception:  # noqa: BLE001 - the database rolls back what it has no connection for
        connection.terminate()
    except BaseException:
        connection.terminate()  # a rollback given up half-way is no end of the transaction, either
        raise


class ConnectionPool:
    """Some connections, for whoever comes."""

    def __init__(self, connections: Sequence[ReconnectingConnection]) -> None:
        self._idle = list(connections)
        self._free = anyio.Semaphore(len(connections))

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Connection]:
        """A connection that nobody uses. :raises TimeoutError: there was none"""
        with anyio.fail_after(driver.PATIENCE):
            await self._free.acquire()
        unused = self._idle.pop()
        try:
            async with unused.connected() as connection:
                yield connection
        finally:
            self._idle.append(unused)
            self._free.release()
