"""What has to be there before the agent of a session can be started: its sandbox, and its environment's packages.

Until then its inputs wait in the queue, and other agents are started in its place.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from roost.core.sandbox.planner import SandboxSystem
from roost.core.sandbox.reports import OnLack
from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.work.leased_log import LeasedLog
from roost.core.work.start_limit import StartLimit
from roost.core.write.intake import inbox
from roost.domain.session import Session
from roost.errors import SandboxUnavailable
from roost.ports.harness import Trouble
from roost.ports.notifier import Notifier

_LOOK_AGAIN: Final = 5.0  # seconds between two tries to have a sandbox
_TOLD: Final = 5  # reasons, of one wait: an engine may have a new one each time


class Prerequisites:
    """Waits for what agents need. One that waits does not count as starting, by `limit`."""

    def __init__(self, notifier: Notifier, sandboxes: Sandboxes, limit: StartLimit) -> None:
        self._notifier = notifier
        self._sandboxes = sandboxes
        self._limit = limit

    async def met(self, session: Session, log: LeasedLog, say: OnLack) -> SandboxSystem:
        """Wait until all of it is there, and say what system that is. Whoever follows the session is told what
        is missing.

        :raises PackagesFailed: its environment's packages cannot be installed
        :raises SandboxFailed: nothing can be installed now
        """
        said: set[str] = set()
        with self._notifier.subscribe(inbox(session.id)) as subscription:
            while True:
                try:
                    # Nothing else will do: a session keeps the trust level and the kind of sandbox it was given, and
                    # works in no other system than its environment's.
                    await self._sandboxes.offered.check(session.spec)
                    return await self._packages(session, say)
                except SandboxUnavailable as missing:
                    text = f"{missing.message}. {missing.hint or ''}".strip()
                    if text not in said and len(said) < _TOLD:
                        said.add(text)
                        await log.fail(Trouble(missing.code, text, "retrying"))
                    self._limit.end(session.id)  # others need not wait with it
                await subscription.until_notified(_LOOK_AGAIN)

    async def _packages(self, session: Session, say: OnLack) -> SandboxSystem:
        """Wait until they are installed, which may take minutes; others do not wait with it."""
        provider = self._sandboxes.offered.provider_for(session.spec)
        waits = partial(self._limit.end, session.id)
        return await self._sandboxes.packages.of(session, provider, say, waits)
