"""What a server that has its database for itself keeps in its memory: token buckets, and how far sessions were shown."""

from __future__ import annotations

from collections import OrderedDict

import anyio

from roost.ports.buckets import TokensTaken

_MOST_REMEMBERED = 10_000


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


class LocalMarks:
    """The `ports.marks.Marks` of a server that has its database for itself."""

    def __init__(self) -> None:
        self._up_to: OrderedDict[str, int] = OrderedDict()

    async def note(self, session_id: str, seq: int) -> None:
        self._up_to[session_id] = max(seq, self._up_to.get(session_id, 0))
        self._up_to.move_to_end(session_id)
        if len(self._up_to) > _MOST_REMEMBERED:
            self._up_to.popitem(last=False)

    async def up_to(self, session_id: str) -> int:
        return self._up_to.get(session_id, 0)
