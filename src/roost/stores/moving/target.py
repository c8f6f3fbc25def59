"""The PostgreSQL database that is filled. How far that is, is a row in it, written with what it speaks of."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import asyncpg
import msgspec

from roost.errors import StartupError
from roost.stores.moving.tables import Row, Table, tables_of
from roost.stores.postgres import driver, opening
from roost.stores.postgres.driver import NOW, Connection

_NAME: Final = "roost migrate"
_PATIENCE: Final = 15.0  # for what is left of a run that was killed
_PAGE: Final = 2000

_ALONE = "SELECT pg_try_advisory_lock(hashtextextended('move', 5))"
_OTHERS = f"""
SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid() AND application_name LIKE 'roost%' AND application_name <> $1)
     + (SELECT count(*) FROM nodes WHERE expires > {NOW})
"""
_MAKE = """
CREATE TABLE IF NOT EXISTS moves (
    id       INTEGER PRIMARY KEY,
    source   TEXT    NOT NULL,  -- what the old database looked like when its move began
    finished BOOLEAN NOT NULL,  -- while it is not, no server starts here
    table_   TEXT    NOT NULL,  -- the rows of this table up to this key are here, and all tables before
    upto     TEXT    NOT NULL
)
"""
_FOUND = "SELECT source, finished, table_, upto FROM moves WHERE id = 1"
_BEGIN = """
INSERT INTO moves VALUES (1, $1, false, '', '[]')
ON CONFLICT (id) DO UPDATE SET source = excluded.source, finished = false, table_ = '', upto = '[]'
"""
_ADVANCE = "UPDATE moves SET table_ = $1, upto = $2 WHERE id = 1"
_FINISH = "UPDATE moves SET finished = true WHERE id = 1"
_SPOILT = "UPDATE moves SET source = '' WHERE id = 1"
_NUMBER_ON = "SELECT setval(pg_get_serial_sequence($1, $2), $3)"


class PostgresTarget:
    """One connection to it, and the only one that moves."""

    def __init__(self, connection: Connection, tables: Sequence[Table]) -> None:
        self._connection = connection
        self.tables = tables

    async def check_alone(self) -> None:
        """Refuse a database that running servers use. :raises StartupError: servers use it"""
        if await self._connection.fetchval(_OTHERS, _NAME):
            raise StartupError(
                "a Roost server uses the target database",
                hint="Move into an empty database, and start servers on it when that is done.",
            )

    async def found(self) -> tuple[str, bool, str, list[Any]] | None:
        """What a move that began here came to: its source, whether it ended, its last table and key."""
        row = await self._connection.fetchrow(_FOUND)
        if row is None:
            return None
        source, finished, table, upto = row
        return source, finished, table, msgspec.json.decode(upto)

    async def filled(self) -> list[str]:
        """The tables that have rows."""
        return [
            table.name
            for table in self.tables
            if await self._connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {table.name})")
        ]

    async def begin(self, source: str) -> None:
        """From nothing. What a former move has left is removed."""
        async with self._connection.transaction():
            names = ", ".join(table.name for table in self.tables)
            await self._connection.execute(f"TRUNCATE {names}")
            await self._connection.execute(_BEGIN, source)

    async def add(self, table: Table, rows: Sequence[Row]) -> None:
        """Some more rows, and the note that they are here, in one commit."""
        upto = msgspec.json.encode(table.key_of(rows[-1])).decode()
        try:
            async with self._connection.transaction():
                await self._connection.copy_records_to_table(
                    table.name, records=rows, columns=table.columns
                )
                await self._connection.execute(_ADVANCE, table.name, upto)
        except asyncpg.DataError as error:
            where = f"{table.name}, in the {len(rows)} rows up to {upto}"
            raise StartupError(
                f"PostgreSQL cannot store a row of {where}: {driver.first_line(error)}",
                hint="A text with a zero byte in it, most likely; rename or delete what has it.",
            ) from error

    async def rows(self, table: Table) -> AsyncIterator[Row]:
        """All rows in the order of keys: texts by their bytes, as SQLite has them."""
        names = ", ".join(table.columns)
        sql = f"SELECT {names} FROM {table.name} ORDER BY {await self._order(table)}"
        async with self._connection.transaction():
            async for row in self._connection.cursor(sql, prefetch=_PAGE):
                yield tuple(row)

    async def _order(self, table: Table) -> str:
        texts = await self._connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = "
            "current_schema() AND table_name = $1 AND data_type = 'text'",
            table.name,
        )
        text = {name for (name,) in texts}
        return ", ".join(f'{c} COLLATE "C"' if c in text else c for c in table.key)

    async def number_on(self, table: Table, last: int) -> None:
        """New rows get numbers after the last one that was ever given."""
        if table.identity is not None and last:
            await self._connection.fetchval(_NUMBER_ON, table.name, table.identity, last)

    async def finish(self) -> None:
        """From here on servers may start."""
        await self._connection.execute("ANALYZE")
        await self._connection.execute(_FINISH)

    async def spoil(self) -> None:
        """What is here is not what it should be: the next move begins anew."""
        await self._connection.execute(_SPOILT)


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[PostgresTarget]:
    """The database, with this version's tables; nobody else moves into it meanwhile.

    :raises StartupError: it cannot be reached or used, or went away in the middle
    """
    await opening.prepare(url, unfinished=True)
    try:
        connection = await driver.connect(url, _NAME)
        try:
            await _lock(connection)
            await connection.execute(_MAKE)
            yield PostgresTarget(connection, await tables_of(connection))
        finally:
            await driver.close(connection)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StartupError(
            f"the move was cut off by the database: {driver.first_line(error)}",
            hint="Give the same command again: it goes on where it was.",
        ) from error


async def _lock(connection: Connection) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not await connection.fetchval(_ALONE):
        if time.monotonic() > deadline:
            raise StartupError("another move into the target database is under way")
        await anyio.sleep(0.2)
