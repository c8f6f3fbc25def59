"""Token buckets within one process, where one is all there is."""

from __future__ import annotations

import anyio

from roost.ports.buckets import TokensTaken


class LocalBuckets:
    """`ports.buckets.Buckets`. After a restart every bucket is full."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}

    async def take(self, name: str, limit: int, most: int) -> TokensTaken:
        now = anyio.current_time()
        before, at = self._buckets.get(name, (float(limit), now))
        filled = min(float(limit), before + (now - at) * limit / 60)
        tokens = min(most, int(filled))
        self._buckets[name] = filled - tokens, now
        return TokensTaken(tokens, filled - tokens)
