"""Removes what nobody needs any more, a slice at a time: the logs of deleted sessions, and the marks of
connections and nodes that are long gone. Any node does it; two never at once. What a crash cuts off goes on
when the next one looks.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio

from roost.errors import RoostError
from roost.stores.postgres.database import Database
from roost.stores.postgres.driver import NOW, Connection, worded
from roost.stores.sql.sessions import SLICES

_log = logging.getLogger(__name__)
_SLICE: Final = 1000
_LOOK_AGAIN: Final = 600.0

_ALONE = "SELECT pg_try_advisory_xact_lock(hashtextextended('sweep', 2))"

# One deleted session whose log is still there.
_NEXT = "SELECT num FROM graves WHERE swept = 0 LIMIT 1"

# Nothing of it is left.
_DONE = "UPDATE graves SET swept = 1 WHERE kind = 'session' AND num = $1"

# A connection that has been silent for a day has long learnt how its last transaction ended, a node whose
# time ran out a day ago owns nothing, a bucket that was not used for a day is
# full, and what was shown a day ago is nobody's next turn.
_FORGET: Final = (
    f"DELETE FROM commits WHERE at < {NOW} - 86400000000",
    f"DELETE FROM nodes WHERE expires < {NOW} - 86400000000",
    "DELETE FROM buckets WHERE at < extract(epoch FROM now()) - 86400",
    "DELETE FROM shown WHERE at < extract(epoch FROM now()) - 86400",
)


class Sweeper:
    """One for each process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wanted = anyio.Event()

    def soon(self) -> None:
        """There is something to remove."""
        self._wanted.set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self._database.write(_forget)
                while await self._database.write(_sweep):
                    pass
            except RoostError as error:
                _log.warning("cannot sweep now: %s", error.message, extra={"action": "sweep"})
            with anyio.move_on_after(_LOOK_AGAIN):
                await self._wanted.wait()
            self._wanted = anyio.Event()


async def _forget(connection: Connection) -> None:
    for statement in _FORGET:
        await connection.execute(statement)


async def _sweep(connection: Connection) -> bool:
    """Remove one slice; whether there may be more."""
    if not await connection.fetchval(_ALONE):
        return False
    num = await connection.fetchval(_NEXT)
    if num is None:
        return False
    for a_slice in SLICES:
        if await connection.fetch(worded(a_slice), num, _SLICE):
            return True
    await connection.execute(_DONE, num)
    return True
