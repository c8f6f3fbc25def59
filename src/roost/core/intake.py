"""Leg 1, the write: an input is durable before anybody is told that it was accepted."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

from roost.domain.events import Draft
from roost.ports.bell import WORK, Bell
from roost.ports.log import Accepted, Log, Receipt

_log = logging.getLogger(__name__)
_MOST_REMEMBERED = 10_000


class Attendance:
    """Which inputs were sent while somebody watched. A hint for `follow.start_of`: may be lost."""

    def __init__(self) -> None:
        self._watched: OrderedDict[str, int] = OrderedDict()

    def note(self, session_id: str, seq: int) -> None:
        """The input at `seq` was sent while a stream was open on its session."""
        self._watched[session_id] = seq
        self._watched.move_to_end(session_id)
        if len(self._watched) > _MOST_REMEMBERED:
            self._watched.popitem(last=False)

    def watched(self, session_id: str) -> int:
        """The seq of the last input that was; 0 if none is remembered."""
        return self._watched.get(session_id, 0)


class Intake:
    """Accepts what clients send."""

    def __init__(self, log: Log, bell: Bell, attendance: Attendance, *, max_queued: int) -> None:
        self._log = log
        self._bell = bell
        self._attendance = attendance
        self._max_queued = max_queued

    async def accept(
        self,
        session_id: str,
        drafts: Sequence[Draft],
        receipts: Sequence[Receipt | None] = (),
    ) -> Accepted:
        """Commit the inputs, then ring. :raises RoostError: see `Log.accept`; nothing was kept"""
        watched = self._bell.heard(session_id)
        accepted = await self._log.accept(
            session_id, drafts, receipts=receipts, max_queued=self._max_queued
        )
        if watched:
            self._attendance.note(session_id, accepted.entries[-1].seq)
        if not accepted.repeated:
            self._ring(session_id, accepted)
        return accepted

    def _ring(self, session_id: str, accepted: Accepted) -> None:
        self._bell.ring(session_id)
        self._bell.ring(inbox(session_id))
        if accepted.woke:
            self._bell.ring(WORK)
        _log.info(
            "accepted %d inputs",
            len(accepted.entries),
            extra={"action": "accept", "session": session_id, "seq": accepted.entries[-1].seq},
        )


def inbox(session_id: str) -> str:
    """The topic that a session's runner listens at: not its followers', who count as watching."""
    return f"inbox:{session_id}"
