"""Limits how many bytes of requests a server holds at a time, for one key and for all."""

from __future__ import annotations

from roost.errors import TooMuchAtOnce, Unavailable


class BodyBudget:
    """Counts bytes as they arrive: what a request says that it will send costs nothing yet."""

    def __init__(self, most: int, per_key: int) -> None:
        self._most = most
        self._per_key = per_key
        self._held: dict[str, int] = {}
        self.total = 0

    def take(self, key_id: str, size: int) -> None:
        """Count bytes that are held from now on.

        :raises TooMuchAtOnce: the key holds too much :raises Unavailable: all keys together do
        """
        held = self._held.get(key_id, 0) + size
        if held > self._per_key:
            raise TooMuchAtOnce(retry_after=2)
        if self.total + size > self._most:
            raise Unavailable(
                "this server has too many bytes of requests to handle",
                hint="Send it again in a moment.",
            )
        self.total += size
        self._held[key_id] = held

    def release(self, key_id: str, size: int) -> None:
        """Count bytes that are held no longer."""
        self.total -= size
        left = self._held.get(key_id, 0) - size
        if left:
            self._held[key_id] = left
        else:
            self._held.pop(key_id, None)
