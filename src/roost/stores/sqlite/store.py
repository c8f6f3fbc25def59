"""Opens the file, and puts the parts together."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import apsw
import msgspec
from anyio import CancelScope, to_thread

from roost.errors import StartupError
from roost.stores.local import LocalBuckets, LocalMarks
from roost.stores.sql.catalog import SqlCatalog
from roost.stores.sql.credentials import SqlCredentials
from roost.stores.sql.keys import SqlKeys
from roost.stores.sql.runs import SqlRuns
from roost.stores.sql.webhooks import SqlWebhooks
from roost.stores.sql.workspaces import SqlWorkspaces
from roost.stores.sqlite import driver
from roost.stores.sqlite.clock import Clock
from roost.stores.sqlite.log import SqliteLog
from roost.stores.sqlite.migrate import migrate
from roost.stores.sqlite.nodes import SqliteNodes
from roost.stores.sqlite.readers import SqliteReaders
from roost.stores.sqlite.sessions import SqliteSessions
from roost.stores.sqlite.transaction import SqliteTransaction, SweepSlice
from roost.stores.sqlite.writer import SqliteWriter

_READERS: Final = 4

# Something for a commit to carry.
_BEAT = """
INSERT INTO pulse (id, at) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET at = excluded.at
"""


class SqliteStore:
    """All stores of one server in one file. Nobody owns a session when it is opened."""

    def __init__(self, writer: SqliteWriter, readers: SqliteReaders, clock: Clock) -> None:
        self.log = SqliteLog(writer, readers)
        self.sessions = SqliteSessions(writer, readers, clock)
        self.catalog = SqlCatalog(writer, readers)
        self.credentials = SqlCredentials(writer, readers)
        self.runs = SqlRuns(writer, readers)
        self.keys = SqlKeys(writer, readers)
        self.webhooks = SqlWebhooks(writer, readers)
        self.workspaces = SqliteWorkspaces(writer, readers)
        self.nodes = SqliteNodes(writer)
        self.buckets = LocalBuckets()
        self.marks = LocalMarks()
        self._writer = writer
        self._readers = readers

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncGenerator[SqliteStore]:
        """The store in this file, which is made if it is not there.

        :raises DataDirLocked: another process has it open
        :raises SchemaTooNew: a newer Roost has written it
        :raises StartupError: it cannot be opened, or not be brought up to date
        """
        with driver.locked(path):
            db, clock, connections = await to_thread.run_sync(_connect, path)
            writer, readers = SqliteWriter(db, clock), SqliteReaders(clock, *connections)
            writer.later(SweepSlice())
            try:
                yield cls(writer, readers, clock)
            finally:
                with CancelScope(shield=True):
                    await _close(writer, readers)

    async def share(self, name: str, value: bytes) -> bytes:
        """The value that all servers have under this name: there is one server only."""
        return value

    async def ping(self) -> None:
        """Returns once the disk has taken a commit and a reader has answered."""
        await self._writer.do(_Beat())
        await self._readers.ask(_look)


def _connect(path: Path) -> tuple[apsw.Connection, Clock, list[apsw.Connection]]:
    opened: list[apsw.Connection] = []
    try:
        opened.append(driver.connect(path))
        migrate(opened[0])
        clock = Clock(opened[0])
        opened.extend(driver.connect_reader(path) for _ in range(1 + _READERS))
    except BaseException as error:
        for db in opened:
            db.close()
        if isinstance(error, apsw.Error):
            raise StartupError(f"cannot open the database {path}: {error}") from error
        raise
    return opened[0], clock, opened[1:]


async def _close(writer: SqliteWriter, readers: SqliteReaders) -> None:
    """Readers first: the last connection to close tidies the file up, and should be the writer's."""
    readers.refuse()
    await to_thread.run_sync(readers.close)
    writer.refuse()
    await to_thread.run_sync(writer.close)


class _Beat(msgspec.Struct, frozen=True):
    def on(self, tx: SqliteTransaction) -> None:
        tx.query(_BEAT, tx.now)


class SqliteWorkspaces(SqlWorkspaces):
    """The `ports.workspaces.Workspaces` on SQLite."""

    async def elsewhere(self, session_id: str, node: str) -> bool:
        """One server has this database, and it is the one that asks."""
        return False


def _look(db: apsw.Connection) -> None:
    db.execute("SELECT at FROM pulse").fetchall()
