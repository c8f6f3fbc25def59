"""Events that are larger than a page are held by a few readers at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import anyio

from roost.domain.events import Entry
from roost.ports.log import EventQuery, Log

_LARGE: Final = 1024 * 1024
_AT_ONCE: Final = 4
_LARGE_LISTING: Final = 2 * 1024 * 1024  # a page has one megabyte, and the event that made it full


class LargeEvents:
    """Counts those who hold a large page: one of `over` bytes, which is more than pages usually have."""

    def __init__(self, over: int = _LARGE) -> None:
        self._over = over
        self._reading = anyio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def page(
        self, read: Callable[[], Awaitable[list[Entry]]]
    ) -> AsyncGenerator[list[Entry], None]:
        """What `read` gives, for the body; if that is large, it waits for a place and reads again."""
        entries = await read()
        if sum(len(entry.body) for entry in entries) < self._over:
            yield entries
            return
        del entries
        async with self._reading:
            yield await read()


class EventPages:
    """Pages of logs for listings; of those with large events, a few are put together at a time."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._large = LargeEvents(over=_LARGE_LISTING)

    def page(self, session_id: str, query: EventQuery) -> AbstractAsyncContextManager[list[Entry]]:
        """A page, which is held as long as the context."""
        return self._large.page(partial(self._log.page, session_id, query))

    async def seq_of(self, session_id: str, event_id: str) -> int | None:
        """Where an event is in the log, if it is there."""
        return await self._log.seq_of(session_id, event_id)

    async def read(self, session_id: str, query: EventQuery) -> list[Entry]:
        """A page for one who looks at it and lets it go at once."""
        return await self._log.page(session_id, query)
