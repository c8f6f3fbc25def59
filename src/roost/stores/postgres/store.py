"""Connects, and puts the parts together."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from roost.errors import StartupError, Unavailable
from roost.stores.postgres import opening
from roost.stores.postgres.buckets import PostgresBuckets
from roost.stores.postgres.database import Database
from roost.stores.postgres.driver import Connection
from roost.stores.postgres.kept_connection import KeptConnection
from roost.stores.postgres.leases import NodeLeases
from roost.stores.postgres.log import PostgresLog
from roost.stores.postgres.marks import PostgresMarks
from roost.stores.postgres.nodes import PostgresNodes
from roost.stores.postgres.sessions import PostgresSessions
from roost.stores.postgres.sweep import Sweeper
from roost.stores.postgres.workspaces import PostgresWorkspaces
from roost.stores.postgres.writer import PostgresWriter
from roost.stores.sql.catalog import SqlCatalog
from roost.stores.sql.credentials import SqlCredentials
from roost.stores.sql.keys import SqlKeys
from roost.stores.sql.runs import SqlRuns
from roost.stores.sql.webhooks import SqlWebhooks

_PING_SECONDS: Final = 3.0

_OFFER = "INSERT INTO shared (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING"
_AGREED = "SELECT value FROM shared WHERE name = $1"


class PostgresStore:
    """All stores of one server in one database, which other servers use at the same time."""

    def __init__(
        self, writer: PostgresWriter, database: Database, nodes: NodeLeases, sweep: Sweeper
    ) -> None:
        self.log = PostgresLog(writer, database, nodes)
        self.sessions = PostgresSessions(writer, database, sweep)
        self.catalog = SqlCatalog(writer, database)
        self.credentials = SqlCredentials(writer, database)
        self.runs = SqlRuns(writer, database)
        self.keys = SqlKeys(writer, database)
        self.webhooks = SqlWebhooks(writer, database)
        self.workspaces = PostgresWorkspaces(writer, database)
        self.nodes = PostgresNodes(writer, database)
        self.buckets = PostgresBuckets(database)
        self.marks = PostgresMarks(database)
        self._writer = writer
        self._database = database

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncGenerator[PostgresStore]:
        """The store in this database, which is brought up to date first.

        :raises SchemaTooNew: a newer Roost has written it
        :raises StartupError: it cannot be reached, or not be used
        """
        await opening.prepare(url)
        async with Database.open(url) as database, anyio.create_task_group() as tasks:
            writer, sweep = PostgresWriter(database, tasks), Sweeper(database)
            nodes = NodeLeases(writer, KeptConnection(url))
            try:
                await writer.start()
            except Unavailable as away:
                raise StartupError(away.message, hint=away.hint) from away
            tasks.start_soon(nodes.watch)
            tasks.start_soon(sweep.run)
            failure: Exception | None = None
            try:
                yield cls(writer, database, nodes, sweep)
            except Exception as error:  # noqa: BLE001 - a task group would wrap it in another
                failure = error
            finally:
                with anyio.CancelScope(shield=True):
                    await writer.close()
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def share(self, name: str, value: bytes) -> bytes:
        """The value that all servers have under this name: the first one's."""

        async def change(connection: Connection) -> bytes:
            await connection.execute(_OFFER, name, value)
            found: bytes = await connection.fetchval(_AGREED, name)
            return found

        return await self._writer.apart(change)

    async def ping(self) -> None:
        """Returns once the database has taken a commit. :raises Unavailable: it does not"""
        with anyio.move_on_after(_PING_SECONDS) as patience:
            await self._writer.apart(_look)
        if patience.cancelled_caught:
            raise Unavailable("the database does not answer")


async def _look(connection: Connection) -> None:
    await connection.fetchval("SELECT 1")
