"""The first connection: whether there is a database, whether it will do, and its schema.

What goes wrong here is said to a person. A URL has a password in it, so it is never repeated.
"""

from __future__ import annotations

import logging
import time
from typing import Final
from urllib.parse import parse_qs

import anyio
import asyncpg

from roost.errors import StartupError
from roost.stores.postgres import driver
from roost.stores.postgres.driver import Connection
from roost.stores.postgres.migrate import migrate

_log = logging.getLogger(__name__)
_OLDEST: Final = 14

_WHAT = """
SELECT current_setting('server_version_num')::int / 10000, current_setting('server_encoding'),
       current_setting('fsync')
"""

_HALF_MOVED = "SELECT EXISTS (SELECT 1 FROM moves WHERE NOT finished)"


async def prepare(url: str, *, unfinished: bool = False) -> None:
    """Make sure that the database can be used, and bring it up to date.

    `unfinished`: also if not everything has been moved here yet.

    :raises StartupError: it cannot be; waits a while for one that does not answer yet
    """
    connection = await _connected(url)
    try:
        await _check(connection)
        if not unfinished:
            await _check_whole(connection)
        await migrate(connection)
    except asyncpg.PostgresError as error:
        raise _unfit(url, error) from None
    finally:
        await driver.close(connection)


async def examine(url: str) -> str:
    """What database that is, for a person. :raises StartupError: it cannot be used"""
    connection = await _connected(url)
    try:
        await _check(connection)
        version = await connection.fetchval("SHOW server_version")
        return f"PostgreSQL {version.split()[0]} at {place_of(url)}"
    finally:
        await driver.close(connection)


async def _connected(url: str) -> Connection:
    deadline = time.monotonic() + driver.PATIENCE
    while True:
        try:
            return await asyncpg.connect(url, **driver.options("roost starting"))
        except Exception as error:  # noqa: BLE001 - each becomes a sentence for a person
            if not driver.is_lost(error) or time.monotonic() > deadline:
                raise _refused(url, error) from None
        await anyio.sleep(0.2)


async def _check(connection: Connection) -> None:
    version, encoding, fsync = await connection.fetchrow(_WHAT)
    if version < _OLDEST:
        raise StartupError(
            f"the database is PostgreSQL {version}, and Roost needs {_OLDEST} or newer",
            hint="Upgrade the database server.",
        )
    if encoding != "UTF8":
        raise StartupError(
            f"the database's encoding is {encoding}, and Roost needs UTF8",
            hint="Make a new one: createdb --encoding UTF8 --template template0 NAME",
        )
    if fsync != "on":
        _log.warning(
            "this database does not sync its disk: a power cut loses what was acknowledged"
        )


async def _check_whole(connection: Connection) -> None:
    moved = await connection.fetchval("SELECT to_regclass('moves') IS NOT NULL")
    if moved and await connection.fetchval(_HALF_MOVED):
        raise StartupError(
            "not everything has been moved to this database yet",
            hint="Give the command `roost migrate` again, until it says that it is done.",
        )


def _refused(url: str, error: Exception) -> StartupError:
    place = place_of(url)
    match error:
        case asyncpg.InvalidAuthorizationSpecificationError():
            said = f"the database at {place} refused the user or the password"
            hint = "Look at ROOST_DATABASE_URL, and at the server's pg_hba.conf."
        case asyncpg.InvalidCatalogNameError():
            said = f"there is no database as in {place}"
            hint = "Make it with createdb, or correct ROOST_DATABASE_URL."
        case asyncpg.TargetServerAttributeNotMatched():
            said = f"the database at {place} is read-only: a standby"
            hint = "Name the primary, or all servers: postgresql://USER@ONE,OTHER/NAME"
        case OSError() | asyncpg.PostgresError():
            said = f"cannot connect to the database at {place}: {driver.first_line(error)}"
            hint = "Look whether the server runs, and whether this machine may reach it."
        case _:
            said = "ROOST_DATABASE_URL is not a URL that PostgreSQL understands"
            hint = "postgresql://USER:PASSWORD@HOST:PORT/NAME, with %-escapes in the password."
    return StartupError(said, hint=hint)


def _unfit(url: str, error: asyncpg.PostgresError) -> StartupError:
    hint = None
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        hint = "Let the user own the database, or: GRANT CREATE ON SCHEMA public TO user"
    said = f"cannot set up the database at {place_of(url)}: {driver.first_line(error)}"
    return StartupError(said, hint=hint)


def place_of(url: str) -> str:
    """Where the database is: nothing from before the last `@`, also if a password was not escaped."""
    if "password=" in url:
        return "the address in ROOST_DATABASE_URL"
    place, _, query = url.partition("://")[2].rpartition("@")[2].partition("?")
    host, slash, name = place.partition("/")
    hosts = host or parse_qs(query).get("host", [""])[0]
    return f"{hosts or 'the local server'}{slash}{name}"
