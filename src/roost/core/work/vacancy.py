"""Waiting for a sandbox, for as long as there is none to be had."""

from __future__ import annotations

from typing import Final

from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.work.start_limit import StartLimit
from roost.core.work.turn import LeasedLog
from roost.core.write.intake import inbox
from roost.domain.session import Session
from roost.errors import HarnessUnavailable, SandboxUnavailable
from roost.ports.harness import Trouble
from roost.ports.notifier import Notifier

_LOOK_AGAIN: Final = 5.0  # seconds between two tries


class Vacancy:
    """Places that sessions can be worked on in, if this server has any."""

    def __init__(self, places: Sandboxes | None, notifier: Notifier, wakes: StartLimit) -> None:
        self._places = places
        self._notifier = notifier
        self._wakes = wakes

    async def places(self, turn: LeasedLog, session: Session) -> Sandboxes:
        """Once they can be had. Until then the inputs wait in the queue: nothing else will do, because a
        session keeps the trust level and the kind of place it was given.

        :raises HarnessUnavailable: this server has none
        """
        if self._places is None:
            raise HarnessUnavailable("this server has no sandboxes", hint=SandboxUnavailable.hint)
        said = False
        with self._notifier.subscribe(inbox(session.id)) as subscription:
            while True:
                try:
                    await self._places.check(session.spec)
                    return self._places
                except SandboxUnavailable as missing:
                    if not said:
                        text = f"{missing.message}. {missing.hint or ''}".strip()
                        await turn.fail(Trouble(missing.code, text, "retrying"))
                    said = True
                    self._wakes.end(session.id)  # others need not wait with it
                await subscription.wait(_LOOK_AGAIN)
                subscription.notified()
