"""Brings a database up to this code's schema, all or nothing, however many nodes start at once.

Nodes of the version before may be at work meanwhile, and may be started again: a step adds, and takes nothing
away that they use. It says which code it works with in a comment, `-- works with: 2` for code that knows the
steps up to 2; the database remembers that, so that older code can tell.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import anyio
import asyncpg

from roost.errors import StartupError
from roost.stores.postgres.driver import Connection, worded
from roost.stores.sql.steps import APPLIED, HISTORY, RECORD, Migration, missing, steps

_log = logging.getLogger(__name__)
_PATIENCE: Final = 60.0

# The first one does it, the others wait; and then look what is left to do.
_ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(hashtextextended('migrate', 4))"

# Which code each step works with; what is not here works only with code that knows it.
_FLOORS: Final = """
CREATE TABLE IF NOT EXISTS floors (number INTEGER PRIMARY KEY, oldest INTEGER NOT NULL)
"""
_REMEMBER: Final = "INSERT INTO floors (number, oldest) VALUES ($1, $2)"
_FLOOR: Final = """
SELECT max(coalesce(f.oldest, m.number)) FROM migrations m LEFT JOIN floors f USING (number)
WHERE m.number > $1
"""

# Who waits for a table that a backup reads lets nobody past: better to give up, and to come again.
_BRIEFLY: Final = "SET LOCAL lock_timeout = '2s'"


def migrations() -> list[Migration]:
    """The steps this code knows, in order."""
    return steps("roost.stores.postgres")


async def migrate(connection: Connection) -> None:
    """Apply what is missing.

    :raises SchemaTooNew: the database has steps that this code neither knows nor works with
    :raises StartupError: somebody holds a table that is to be changed, for too long
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return await _migrate(connection)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            if time.monotonic() > deadline:
                raise StartupError(
                    "cannot change the database's tables: somebody holds one all the time",
                    hint="Wait for a backup or a long query to end, and start again.",
                ) from None
            _log.warning("a table that is to be changed is in use; trying again")
        await anyio.sleep(0.5)


async def _migrate(connection: Connection) -> None:
    known = migrations()
    async with connection.transaction():
        await connection.execute(_ONE_AT_A_TIME)
        await connection.execute(_BRIEFLY)
        await connection.execute(HISTORY)
        await connection.execute(_FLOORS)
        applied = await connection.fetchval(APPLIED)
        floor = await connection.fetchval(_FLOOR, known[-1].number)
        for step in missing(known, applied, floor):
            await connection.execute(step.script)
            await connection.execute(worded(RECORD), step.number, step.name)
            await connection.execute(_REMEMBER, step.number, step.oldest)
    if floor is not None:
        _log.warning("the database is at schema %d, which is newer than this server", applied)
