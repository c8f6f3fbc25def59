"""Hibernation: which agents stay started while their sessions are idle.

An agent that is kept started answers at once, and costs memory. So those used last are kept, for a
while, and no more than so many; the others are ended. A session that sleeps has no process and no
memory: rows and files only. The next input wakes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager

from roost.core.intake import inbox
from roost.ports.bell import Bell


class Warmth:
    """The idle agents of this node that are still started."""

    def __init__(self, bell: Bell, *, seconds: float, most: int) -> None:
        self.seconds = seconds
        self._bell = bell
        self._most = most
        self._closed = False
        self._resting: OrderedDict[str, bool] = OrderedDict()

    def __len__(self) -> int:
        return len(self._resting)

    def may_stay(self, session_id: str) -> bool:
        """Whether its agent may stay started; not once others needed the place."""
        return not self._closed and self._resting.get(session_id, False)

    def give_up_one(self) -> None:
        """Send the one that idled for longest to sleep."""
        for session_id, stays in self._resting.items():
            if stays:
                self._resting[session_id] = False
                self._bell.ring(inbox(session_id))
                return

    def close(self, closed: bool) -> None:
        """Keep nobody any more: every agent that idles is to end. Or keep them again."""
        self._closed = closed
        for session_id in self._resting if closed else ():
            self._bell.ring(inbox(session_id))

    @contextmanager
    def resting(self, session_id: str) -> Generator[None, None, None]:
        """While its agent idles. One that idled for longer is sent to sleep if there are too many."""
        self._resting[session_id] = True
        staying = [other for other, stays in self._resting.items() if stays]
        for other in staying[: max(0, len(staying) - self._most)]:
            self._resting[other] = False
            self._bell.ring(inbox(other))
        try:
            yield
        finally:
            self._resting.pop(session_id, None)  # an older runner may have gone first
