"""Limits how often a key may call: one token bucket for writes and one for reads, per key, for all servers.

A server takes tokens out of the shared bucket a second's worth at a time. So a request costs no question
to the database, or one for each second's worth; and at most that much lies unused at each server.
"""

from __future__ import annotations

import math
from time import monotonic, time_ns
from typing import Literal

from roost.domain.events import iso
from roost.errors import RateLimited
from roost.ports.buckets import Buckets
from roost.ports.keys import Key

RequestKind = Literal["writes", "reads"]

_LIMIT = "anthropic-ratelimit-requests-limit"
_REMAINING = "anthropic-ratelimit-requests-remaining"
_RESET = "anthropic-ratelimit-requests-reset"


class RateLimiter:
    """Counts the requests of each key, and refuses those above its limit."""

    def __init__(self, buckets: Buckets, *, writes_per_minute: int, reads_per_minute: int) -> None:
        self._buckets = buckets
        self._defaults: dict[RequestKind, int] = {
            "writes": writes_per_minute,
            "reads": reads_per_minute,
        }
        self._tokens: dict[tuple[str, RequestKind], _LocalTokens] = {}

    def count_held(self, key: Key, kind: RequestKind, headers: dict[str, str]) -> bool:
        """As `count`, if the request needs no token or one is here, which mostly is so; else it is False."""
        tokens = self._tokens_of(key, kind)
        if tokens is None:
            return True
        if not tokens.spend_held():
            return False
        tokens.tell(headers)
        return True

    async def count(self, key: Key, kind: RequestKind, headers: dict[str, str]) -> None:
        """Take one request from the key's bucket, and note in `headers` how many are left.

        :raises RateLimited: none is left; says when the next one will be
        """
        tokens = self._tokens_of(key, kind)
        if tokens is None:
            return
        wait = 0.0 if tokens.spend_held() else await tokens.spend(self._buckets)
        tokens.tell(headers)
        if wait:
            raise RateLimited(f"this key may make {tokens.limit} {kind} a minute", retry_after=wait)

    def _tokens_of(self, key: Key, kind: RequestKind) -> _LocalTokens | None:
        """None: there is no limit."""
        own = key.limits.writes_per_minute if kind == "writes" else key.limits.reads_per_minute
        limit = self._defaults[kind] if own is None else own
        if limit == 0:
            return None
        tokens = self._tokens.get((key.id, kind))
        if tokens is None or tokens.limit != limit:
            tokens = self._tokens[key.id, kind] = _LocalTokens(f"{key.id} {kind}", limit)
        return tokens

    def forget(self, key_id: str) -> None:
        """Forget the tokens of a key that is gone, or has other limits now."""
        for name in [name for name in self._tokens if name[0] == key_id]:
            del self._tokens[name]


class _LocalTokens:
    """The tokens that this server has taken out of a bucket and not used yet, and how full that was then."""

    __slots__ = ("_at", "_held", "_left", "_name", "_said", "limit")

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self.limit = limit
        self._said = str(limit)
        self._held = 0
        self._left = float(limit)
        self._at = monotonic()

    def spend_held(self) -> bool:
        """Use one token, if one is here; mostly one is."""
        if not self._held:
            return False
        self._held -= 1
        return True

    async def spend(self, buckets: Buckets) -> float:
        """Use one token of those in the bucket. Gives 0, or the seconds until there is one."""
        if wait := self._wait():
            return wait
        taken = await buckets.take(self._name, self.limit, max(1, self.limit // 60))
        self._held += taken.tokens
        self._left, self._at = taken.left, monotonic()
        return 0.0 if self.spend_held() else self._wait()

    def _wait(self) -> float:
        """How long it takes until the bucket has something; 0 if it may have."""
        return max(0.0, (1 - self._filled()) * 60 / self.limit)

    def _filled(self) -> float:
        return min(self.limit, self._left + (monotonic() - self._at) * self.limit / 60)

    def tell(self, headers: dict[str, str]) -> None:
        left = min(float(self.limit), self._filled() + self._held)
        refill = (self.limit - left) * 60 / self.limit
        headers[_LIMIT] = self._said
        headers[_REMAINING] = str(int(left))
        headers[_RESET] = iso(time_ns() // 1000 + math.ceil(refill * 1_000_000))
