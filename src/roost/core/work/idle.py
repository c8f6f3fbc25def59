"""Idle sessions: which agents stay started, and waiting for the next input beside one.

An agent that is kept started answers at once, and costs memory. So those used last are kept, for a
while (or, where the agent knows what is nowhere else, as long as there is room), and no more than so
many; the others are ended. A session whose agent was ended has no process and no memory: rows and files
only. The next input starts it again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio
from msgspec.structs import replace

from roost.core.work.inputs import Work, is_changed
from roost.core.write.intake import inbox
from roost.core.write.standby import StandbyRunners
from roost.domain.session import Lease, Session, Status
from roost.ports.notifier import WORK, Notifier
from roost.ports.sessions import Sessions

_LOOK_AGAIN: Final = 30.0  # seconds; an input whose notification was lost is found this late


class IdleAgents:
    """The idle agents of this node that are still started: at most `most`, each for some `seconds`."""

    def __init__(
        self,
        sessions: Sessions,
        notifier: Notifier,
        standby: StandbyRunners,
        *,
        seconds: float,
        most: int,
    ) -> None:
        self.seconds = seconds
        self._sessions = sessions
        self._notifier = notifier
        self._standby = standby
        self._most = most
        self._closed = False
        self._stays: dict[str, bool] = {}  # whether it may; those that idle for longest first

    def __len__(self) -> int:
        return len(self._stays)

    def end_one(self) -> None:
        """End the agent that idles for longest: its memory is needed."""
        self._end(self._staying()[:1])

    def close(self, closed: bool) -> None:
        """Keep nobody any more: every agent that idles is to end. Or keep them again."""
        self._closed = closed
        for session_id in self._stays if closed else ():
            self._notifier.notify(inbox(session_id))

    async def until_work(self, lease: Lease, before: Session, seconds: float) -> Work | None:
        """What there is to do when it has work again; None when its agent is to end, or to start anew. After so
        many seconds it is to end in any case.
        """
        with self._notifier.subscribe(inbox(before.id)) as subscription, self._idling(before.id):
            self._notifier.notify(WORK)  # another session may be worked on now
            until = anyio.current_time() + seconds
            while not self._closed and self._stays.get(before.id) and anyio.current_time() < until:
                session, inputs = await self._sessions.with_inputs(before.id)
                if session.state.status is Status.TERMINATED or is_changed(before, session):
                    return None
                if session.state.status is not Status.IDLE:
                    return Work(session, inputs)
                async with self._standby.standing_by(lease, session) as handoff:
                    await subscription.until_notified(
                        min(_LOOK_AGAIN, until - anyio.current_time())
                    )
                if handoff.begun is not None:
                    return Work(replace(session, state=handoff.begun), handoff.inputs, begun=True)
        return None

    @contextmanager
    def _idling(self, session_id: str) -> Generator[None, None, None]:
        self._stays[session_id] = True
        staying = self._staying()
        self._end(staying[: max(0, len(staying) - self._most)])
        try:
            yield
        finally:
            self._stays.pop(session_id, None)  # an older runner may have gone first

    def _staying(self) -> list[str]:
        return [session_id for session_id, stays in self._stays.items() if stays]

    def _end(self, session_ids: Sequence[str]) -> None:
        for session_id in session_ids:
            self._stays[session_id] = False
            self._notifier.notify(inbox(session_id))
