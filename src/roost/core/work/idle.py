"""Idle sessions: which agents stay started, and waiting for the next input beside one.

An agent that is kept started answers at once, and costs memory. So those used last are kept, for a
while, and no more than so many; the others are ended. A session whose agent was ended has no process and
no memory: rows and files only. The next input starts it again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from roost.core.work.inputs import is_changed
from roost.core.write.intake import inbox
from roost.core.write.standby import StandbyRunners
from roost.domain.events import Entry
from roost.domain.session import Lease, Session, Status
from roost.ports.notifier import WORK, Notifier
from roost.ports.sessions import Sessions


class WarmAgents:
    """The idle agents of this node that are still started."""

    def __init__(self, notifier: Notifier, *, seconds: float, most: int) -> None:
        self.seconds = seconds
        self._notifier = notifier
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
                self._notifier.notify(inbox(session_id))
                return

    def close(self, closed: bool) -> None:
        """Keep nobody any more: every agent that idles is to end. Or keep them again."""
        self._closed = closed
        for session_id in self._resting if closed else ():
            self._notifier.notify(inbox(session_id))

    @contextmanager
    def resting(self, session_id: str) -> Generator[None, None, None]:
        """While its agent idles. One that idled for longer is sent to sleep if there are too many."""
        self._resting[session_id] = True
        staying = [other for other, stays in self._resting.items() if stays]
        for other in staying[: max(0, len(staying) - self._most)]:
            self._resting[other] = False
            self._notifier.notify(inbox(other))
        try:
            yield
        finally:
            self._resting.pop(session_id, None)  # an older runner may have gone first


_LOOK_AGAIN = 30.0  # seconds; a wake whose notification was lost is found this late


class Work(NamedTuple):
    """A session, and the inputs it has not taken up; or those that its turn has `begun` with."""

    session: Session
    inputs: Sequence[Entry]
    begun: bool = False


class Idle:
    """Waits for the next input of sessions whose agents stay started."""

    def __init__(
        self, sessions: Sessions, notifier: Notifier, warm: WarmAgents, standby: StandbyRunners
    ) -> None:
        self._sessions = sessions
        self._notifier = notifier
        self.warm = warm
        self._standby = standby

    async def until_work(self, lease: Lease, before: Session) -> Work | None:
        """What there is to do when it has work again; None when its agent is to sleep, or to start anew."""
        with (
            self._notifier.subscribe(inbox(before.id)) as subscription,
            self.warm.resting(before.id),
        ):
            self._notifier.notify(WORK)  # a place to work has become free
            until = anyio.current_time() + self.warm.seconds
            while self.warm.may_stay(before.id) and anyio.current_time() < until:
                session, inputs = await self._sessions.with_inputs(before.id)
                if session.state.status is Status.TERMINATED or is_changed(before, session):
                    return None
                if session.state.status is not Status.IDLE:
                    return Work(session, inputs)
                async with self._standby.standing_by(lease, session) as handoff:
                    await subscription.wait(min(_LOOK_AGAIN, until - anyio.current_time()))
                    subscription.notified()
                if handoff.begun is not None:
                    return Work(replace(session, state=handoff.begun), handoff.inputs, begun=True)
        return None
