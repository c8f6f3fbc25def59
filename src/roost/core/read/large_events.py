"""Events that are larger than a page are held by a few readers at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio

from roost.domain.events import Entry

_LARGE: Final = 1024 * 1024
_AT_ONCE: Final = 4


class LargeEvents:
    """Counts those who hold a large page: one of `over` bytes, which is more than pages usually have."""

    def __init__(self, over: int = _LARGE) -> None:
        self._over = over
        self._places = anyio.Semaphore(_AT_ONCE)

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
        async with self._places:
            yield await read()
