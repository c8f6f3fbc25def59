"""How often a key may call: one token bucket for writes and one for reads, per key."""

from __future__ import annotations

import math
import time
from typing import Literal

import anyio

from roost.domain.events import iso
from roost.errors import RateLimited
from roost.ports.keys import Key

Kind = Literal["writes", "reads"]

_PREFIX = "anthropic-ratelimit-requests"


class Rates:
    """Counts requests. In memory: after a restart every key starts with a full bucket."""

    def __init__(self, *, writes_per_minute: int, reads_per_minute: int) -> None:
        self._defaults: dict[Kind, int] = {"writes": writes_per_minute, "reads": reads_per_minute}
        self._buckets: dict[tuple[str, Kind], _Bucket] = {}

    def count(self, key: Key, kind: Kind, headers: dict[str, str]) -> None:
        """Take one request from the key's bucket, and note in `headers` how many are left.

        :raises RateLimited: none is left; says when the next one will be
        """
        own = key.limits.writes_per_minute if kind == "writes" else key.limits.reads_per_minute
        limit = self._defaults[kind] if own is None else own
        if limit == 0:
            return
        bucket = self._buckets.get((key.id, kind))
        if bucket is None or bucket.limit != limit:
            bucket = self._buckets[key.id, kind] = _Bucket(limit)
        wait = bucket.take()
        headers.update(bucket.headers())
        if wait:
            raise RateLimited(f"this key may make {limit} {kind} a minute", retry_after=wait)

    def forget(self, key_id: str) -> None:
        """The key is gone, and its buckets with it."""
        for name in [name for name in self._buckets if name[0] == key_id]:
            del self._buckets[name]


class _Bucket:
    __slots__ = ("_at", "_left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = float(limit)
        self._at = anyio.current_time()

    def take(self) -> float:
        """0, or for how many seconds there is nothing to take."""
        now = anyio.current_time()
        self._left = min(self.limit, self._left + (now - self._at) * self.limit / 60)
        self._at = now
        if self._left < 1:
            return (1 - self._left) * 60 / self.limit
        self._left -= 1
        return 0.0

    def headers(self) -> dict[str, str]:
        refill = (self.limit - self._left) * 60 / self.limit
        reset = iso(time.time_ns() // 1000 + math.ceil(refill * 1_000_000))
        return {
            f"{_PREFIX}-limit": str(self.limit),
            f"{_PREFIX}-remaining": str(int(self._left)),
            f"{_PREFIX}-reset": reset,
        }
