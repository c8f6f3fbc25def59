"""Before a session's turn begins in a shared workspace: is it its turn, and is there room.

A workspace whose writers are `serialised` has one turn at a time. Whoever waits has a row there, in the
order in which their inputs were accepted; the one that is in has it marked. A row counts only while its
session has work, so what a killed server leaves behind holds up nobody: a session that was in goes on when
it is claimed again, and one that came to rest is passed over. The row goes before the session rests.
"""

from __future__ import annotations

from typing import Final

from roost.core.work.leased_log import LeasedLog
from roost.core.workspaces.shared import SharedWorkspaces
from roost.core.write.intake import inbox
from roost.domain.events import Micros
from roost.domain.session import Session
from roost.domain.workspace import WorkspacePolicy
from roost.ports.drafts import trouble
from roost.ports.harness import Trouble
from roost.ports.log import Log
from roost.ports.notifier import Notifier
from roost.ports.workspaces import Workspaces

_LOOK_AGAIN: Final = 5.0  # seconds; a change whose notification was lost is found this late


class WorkspaceQueue:
    """Lets the turns of sessions into the workspaces that they share, for the runners of this node."""

    def __init__(
        self,
        log: Log,
        notifier: Notifier,
        rows: Workspaces,
        shared: SharedWorkspaces,
    ) -> None:
        self._log = log
        self._notifier = notifier
        self._rows = rows
        self._shared = shared

    async def passed(self, session: Session, log: LeasedLog, since: Micros) -> bool:
        """Whether its turn may begin. If not, that has been said, and some time was waited.

        `since`: when what it is to work on was accepted. Called again until it may, or something else is
        to be done.

        :raises WorkspaceDeleted:
        """
        workspace_id = session.spec.workspace
        if workspace_id is None:
            return True
        with self._notifier.subscribe_many() as subscriptions:
            subscriptions.add(workspace_id)
            subscriptions.add(inbox(session.id))
            why = await self._refusal(session, workspace_id, since)
            if why is None:
                return True
            if not log.waits:
                await log.fail(Trouble(*why, "retrying"))
            await subscriptions.wait(_LOOK_AGAIN)
        return False

    async def reopened(self, session: Session, log: LeasedLog) -> bool:
        """Whether a turn that was cut off is taken again, once it may be; not if it is interrupted."""
        while not await self.passed(session, log, 0):
            if interrupts := await self._log.inputs(session.id, ["user.interrupt"]):
                await log.interrupted(session, interrupts)
                return False
        return True

    async def left(self, session: Session, log: LeasedLog, end: int) -> None:
        """Its turn is over, at this place in its log; 0: it only waits for an answer. The next one may
        begin, and what it made of the quota is said.
        """
        workspace_id = session.spec.workspace
        if workspace_id is None:
            return
        if end:
            self._shared.ended(workspace_id, session.id, end)  # before anybody else is let in
        else:
            self._shared.changed(workspace_id)
        await self.gave_up(session)
        settings = await self._shared.settings(session.tenant, workspace_id)
        if over := await self._over(workspace_id, settings):
            await log.say(trouble(*over, "exhausted"))

    async def gave_up(self, session: Session) -> None:
        """Take the session off the queue: it neither has its turn nor waits for one."""
        if session.spec.workspace is not None:
            await self._rows.exit(session.id)
            self._notifier.notify(session.spec.workspace)

    async def _refusal(
        self, session: Session, workspace_id: str, since: Micros
    ) -> tuple[str, str] | None:
        """What a `session.error` calls it, and says."""
        settings = await self._shared.settings(session.tenant, workspace_id)
        if over := await self._over(workspace_id, settings):
            return over
        if settings.writers == "allowed":
            return None
        if await self._rows.enter(workspace_id, session.id, since):
            return None
        return (
            "workspace_busy",
            "another session has its turn in the workspace; this one is queued behind it",
        )

    async def _over(self, workspace_id: str, settings: WorkspacePolicy) -> tuple[str, str] | None:
        quota = settings.quota_bytes
        if quota is None or (size := await self._shared.size(workspace_id)) <= quota:
            return None
        return (
            "workspace_quota_reached",
            f"the workspace has {size:,} bytes, and its quota is {quota:,}: no turn begins until files "
            "are removed or the quota is raised",
        )
