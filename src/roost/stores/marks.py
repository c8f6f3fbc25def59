"""How far sessions were shown, within one process."""

from __future__ import annotations

from collections import OrderedDict

_MOST_REMEMBERED = 10_000


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
