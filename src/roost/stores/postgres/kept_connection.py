"""Connections that are kept for themselves: for locks, and for listening. They are made again when lost."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from roost.ids import mint
from roost.stores.postgres import driver
from roost.stores.postgres.driver import Connection

_log = logging.getLogger(__name__)
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0


class KeptConnection:
    """A connection that is made again, to the same address, whenever it is lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = mint("roost")

    async def keep_up(self, use: Callable[[Connection], Awaitable[None]]) -> None:
        """Call `use` with a connection, and with a new one each time it is lost; for ever."""
        pause = _PAUSE
        while True:
            try:
                connection = await driver.connect(self._url, self._name)
                pause = _PAUSE
                try:
                    await _while_there(connection, use)
                finally:
                    await driver.close(connection)
            except Exception as error:  # noqa: BLE001 - whatever it is, there is another try
                if not driver.is_passing(error):
                    _log.exception("unexpected on a connection that is kept")
                _log.debug("connecting again, because of: %s", error)
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


async def _while_there(
    connection: Connection, use: Callable[[Connection], Awaitable[None]]
) -> None:
    """Ends when the connection does, also while nothing is asked over it."""
    with anyio.CancelScope() as scope:
        connection.add_termination_listener(lambda _: scope.cancel())
        await use(connection)
