"""Bounds on what takes long to count: it is counted seldom while there is much room."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

_SHARE: Final = 16  # servers that may each take a share of the room before one counts again


class Allowance:
    """How much of something there may be under each name; `most` 0: any amount."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._free: dict[str, int] = {}

    async def take(self, name: str, size: int, count: Callable[[], Awaitable[int]]) -> int | None:
        """None if there is room for so much more, which is then taken; else how much there is."""
        if not self.most:
            return None
        if size > self._free.get(name, 0):
            used = await count()
            if used + size > self.most:
                self._free.pop(name, None)
                return used
            self._free[name] = max(size, (self.most - used) // _SHARE)
        self._free[name] -= size
        return None
