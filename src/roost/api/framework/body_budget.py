"""How many bytes of requests a server holds at a time, of one key's and of all."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from roost.errors import TooMuchAtOnce, Unavailable

Take = Callable[[int], None]


class BodyBudget:
    """Counts bytes as they arrive: what a request says that it will send costs nothing yet."""

    def __init__(self, most: int, per_key: int) -> None:
        self._most = most
        self._per_key = per_key
        self._held: dict[str, int] = {}
        self.total = 0

    @contextmanager
    def held(self, key_id: str) -> Generator[Take, None, None]:
        """What is taken is held until the context ends.

        :raises TooMuchAtOnce: the key holds too much :raises Unavailable: all keys together do
        """
        mine = 0

        def take(size: int) -> None:
            nonlocal mine
            if self._held.get(key_id, 0) + size > self._per_key:
                raise TooMuchAtOnce(retry_after=2)
            if self.total + size > self._most:
                raise Unavailable(
                    "this server has as many bytes of requests under way as it may",
                    hint="Send it again in a moment.",
                )
            mine += size
            self.total += size
            self._held[key_id] = self._held.get(key_id, 0) + size

        try:
            yield take
        finally:
            self.total -= mine
            self._held[key_id] = self._held.get(key_id, 0) - mine
            if not self._held[key_id]:
                del self._held[key_id]
