"""Brings a database up to this code's schema, all or nothing, however many nodes start at once.

Nodes of the version before may be at work meanwhile: a step adds, and takes nothing away that they use.
"""

from __future__ import annotations

from roost.stores.postgres.driver import Connection, numbered
from roost.stores.sql.steps import APPLIED, HISTORY, RECORD, Migration, missing, steps

# The first one does it, the others wait; and then look what is left to do.
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended('migrate', 4))"


def migrations() -> list[Migration]:
    """The steps this code knows, in order."""
    return steps("roost.stores.postgres")


async def migrate(connection: Connection) -> None:
    """Apply what is missing.

    :raises SchemaTooNew: the database has steps this code does not know
    """
    async with connection.transaction():
        await connection.execute(_ONE_AT_A_TIME)
        await connection.execute(HISTORY)
        for step in missing(migrations(), await connection.fetchval(APPLIED)):
            await connection.execute(step.script)
            await connection.execute(numbered(RECORD), step.number, step.name)
