"""Token buckets that all servers of a database share: how often somebody may do something.

They are no record of anything: a bucket that is lost is full again.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class TokensTaken(msgspec.Struct, frozen=True):
    """What was got out of a bucket: so many `tokens`, and how many are `left` in it."""

    tokens: int
    left: float


class Buckets(Protocol):
    """All buckets, by name. One that nobody has used is full."""

    async def take(self, name: str, limit: int, most: int) -> TokensTaken:
        """Take up to `most` tokens out of a bucket that holds `limit` and fills up in a minute.

        Called by `api/access/rates` when a server has used up what it took the last time. Two who take at the
        same time never get the same token.
        """
        ...
