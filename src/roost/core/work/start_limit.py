"""How many agents come up at once.

Starting an agent takes most of a second of a processor. After a restart a thousand sessions may have
work; started at the same moment, all of them would be late, and the machine of no use meanwhile. So a
few start at a time, those that waited longest first. The others wait where they are, in the log, with
the status they have, and any node with room may claim them.
"""

from __future__ import annotations

from contextlib import suppress

import anyio

from roost.ports.notifier import WORK, Notifier


class StartLimit:
    """The agents of this node that are being started."""

    def __init__(self, notifier: Notifier, most: int) -> None:
        self._notifier = notifier
        self._starting = anyio.CapacityLimiter(most)  # first come, first served

    def __len__(self) -> int:
        return int(self._starting.borrowed_tokens)

    @property
    def free(self) -> int:
        """How many more may be started now."""
        return max(0, int(self._starting.available_tokens))

    def expect(self, session_id: str) -> None:
        """It was claimed, and counts from now on: what is free is not claimed for twice."""
        with suppress(anyio.WouldBlock, RuntimeError):
            self._starting.acquire_on_behalf_of_nowait(session_id)

    async def begin(self, session_id: str) -> None:
        """Wait until its agent may be started."""
        if session_id not in self._starting.statistics().borrowers:
            await self._starting.acquire_on_behalf_of(session_id)

    def end(self, session_id: str) -> None:
        """Its agent is up, or has to wait; the next one may be started. Again: nothing happens."""
        if session_id in self._starting.statistics().borrowers:
            self._starting.release_on_behalf_of(session_id)
            self._notifier.notify(WORK)
