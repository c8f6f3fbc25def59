"""Bytes of requests that are held in memory until they are sent: bounded for each session, and for all."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from roost.egress.refusal import Refusal

_RETRY_SECONDS = 2


class Share:
    """So many bytes at a time, perhaps out of a larger share."""

    def __init__(self, most: int, of: Share | None = None) -> None:
        self._most = most
        self._of = of
        self._taken = 0

    @contextmanager
    def holding(self) -> Generator[Holding, None, None]:
        """What one request holds, until the context ends."""
        holding = Holding(self)
        try:
            yield holding
        finally:
            self.give_back(holding.size)

    def take(self, size: int) -> bool:
        """Whether there is room for so many bytes more; then they are taken."""
        if self._taken + size > self._most or (self._of is not None and not self._of.take(size)):
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        """So many bytes are not held any more."""
        self._taken -= size
        if self._of is not None:
            self._of.give_back(size)


class Holding:
    """What one request holds of a share."""

    def __init__(self, share: Share) -> None:
        self.size = 0
        self._share = share

    def add(self, size: int) -> None:
        """Hold so many bytes more. :raises Refusal: there is no room for them"""
        if not self._share.take(size):
            raise Refusal(
                429, "too many large requests at the same time", retry_after=_RETRY_SECONDS
            )
        self.size += size
