"""A session at rest whose agent stays started: until there is something to do, or it is to sleep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from roost.core.handover import Handover
from roost.core.intake import inbox
from roost.core.readiness import is_changed
from roost.core.warmth import Warmth
from roost.domain.events import Entry
from roost.domain.session import Lease, Session, Status
from roost.ports.bell import WORK, Bell
from roost.ports.sessions import Sessions

_LOOK_AGAIN = 30.0  # seconds; a wake whose ring was lost is found this late


class Work(NamedTuple):
    """A session, and the inputs it has not taken up; or those that its turn has `begun` with."""

    session: Session
    inputs: Sequence[Entry]
    begun: bool = False


class Rest:
    """Waits for work, in the warmth."""

    def __init__(
        self, sessions: Sessions, bell: Bell, warmth: Warmth, handover: Handover | None
    ) -> None:
        self._sessions = sessions
        self._bell = bell
        self._warmth = warmth
        self._handover = handover or Handover()

    async def until_work(self, lease: Lease, before: Session) -> Work | None:
        """What there is to do when it has work again; None when its agent is to sleep, or to start anew."""
        with self._bell.listen(inbox(before.id)) as ear, self._warmth.resting(before.id):
            self._bell.ring(WORK)  # a place to work has become free
            until = anyio.current_time() + self._warmth.seconds
            while self._warmth.may_stay(before.id) and anyio.current_time() < until:
                session, inputs = await self._sessions.with_inputs(before.id)
                if session.state.status is Status.TERMINATED or is_changed(before, session):
                    return None
                if session.state.status is not Status.IDLE:
                    return Work(session, inputs)
                async with self._handover.standing_by(lease, session) as hands:
                    await ear.wait(min(_LOOK_AGAIN, until - anyio.current_time()))
                    ear.rung()
                if hands.begun is not None:
                    return Work(replace(session, state=hands.begun), hands.inputs, begun=True)
        return None
