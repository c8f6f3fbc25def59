"""Starts the agent of a session: in a sandbox if it is a program, or takes one that was started before.

Until its sandbox and its environment's packages are there, its inputs wait in the queue, and other agents are
started in its place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from msgspec.structs import replace

from roost.core.concurrency import alongside
from roost.core.sandbox.available import once_available
from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.planner import SandboxSystem
from roost.core.sandbox.reports import LoggedReports, OnLack
from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.work.inputs import can_start_ahead, history
from roost.core.work.leased_log import LeasedLog
from roost.core.work.prestart import Prestart
from roost.core.work.start_limit import StartLimit
from roost.core.write.intake import inbox
from roost.domain.session import Lease, Session
from roost.errors import HarnessUnavailable
from roost.ports.harness import Brief, Conversation, Harness, StartMode
from roost.ports.harness_profile import HarnessProfile
from roost.ports.log import Log
from roost.ports.notifier import Notifier
from roost.ports.sessions import Sessions


class AgentStarter:
    """Starts agents on this node, no more at once than `limit` says."""

    def __init__(
        self,
        log: Log,
        sessions: Sessions,
        notifier: Notifier,
        harnesses: Mapping[str, Harness],
        sandboxes: Sandboxes,
        limit: StartLimit,
        prestart: Prestart,
        budgets: Budgets,
    ) -> None:
        self.limit = limit
        self._log = log
        self._sessions = sessions
        self._notifier = notifier
        self._harnesses = harnesses
        self._sandboxes = sandboxes
        self._prestart = prestart
        self._budgets = budgets

    def profile(self, session: Session) -> HarnessProfile:
        """What its harness declares. :raises HarnessUnavailable: this server has no such harness"""
        return self._harness_of(session).profile

    @asynccontextmanager
    async def open(
        self, lease: Lease, log: LeasedLog, session: Session, *, resumed: bool
    ) -> AsyncGenerator[Conversation, None]:
        """The session's agent, until the context ends. `resumed`: it may have worked before.

        :raises HarnessUnavailable: this server has no such harness
        :raises PackagesFailed: its environment's packages cannot be installed
        :raises SandboxFailed: the sandbox cannot be opened though there should be one
        """
        past = partial(history, self._log, session)
        brief = Brief(session, past, StartMode.of(resumed=resumed))
        harness = self._harness_of(session)
        if not harness.profile.needs_sandbox:
            self.limit.end(session.id)  # there is nothing to start
            async with harness.open(brief) as conversation:
                yield conversation
            return
        reports = LoggedReports(log.append, session.id, self._sessions, self._budgets)
        await self._sandboxes.belongings.check(session, reports.lacks)
        system = None
        if self._sandboxes.is_lazy(session, harness):
            self.limit.end(session.id)
        else:
            async with self._prestart.taken(lease, session, reports) as prestarted:
                if prestarted is not None:
                    self.limit.end(session.id)
                    yield prestarted
                    return
            system = await self._system(session, log, reports.lacks)
            ahead = can_start_ahead(session, await self._log.inputs(session.id))
            brief = replace(brief, start=StartMode.of(resumed=resumed, ahead=ahead))
            await self.limit.begin(session.id)
        try:
            async with (
                self._sandboxes.open(lease, brief, harness, reports, system) as ready,
                harness.open(ready) as conversation,
                alongside(self._see_it_up, conversation, session.id),
            ):
                yield conversation
        finally:
            self.limit.end(session.id)

    async def _system(self, session: Session, log: LeasedLog, say: OnLack) -> SandboxSystem:
        """Wait until what it needs is there, and say what system that is. Whoever follows the session is told
        what is missing.
        """
        waits = partial(self.limit.end, session.id)  # others need not wait with it
        with self._notifier.subscribe(inbox(session.id)) as subscription:

            async def pause(seconds: float) -> None:
                waits()
                await subscription.until_notified(seconds)

            look = partial(self._sandboxes.system, session, say, waits)
            return await once_available(look, log.fail, pause)

    async def _see_it_up(self, conversation: Conversation, session_id: str) -> None:
        await conversation.up()
        self.limit.end(session_id)

    def _harness_of(self, session: Session) -> Harness:
        try:
            return self._harnesses[session.spec.harness]
        except KeyError:
            known = ", ".join(sorted(self._harnesses))
            raise HarnessUnavailable(
                f"this server has no harness {session.spec.harness!r}",
                hint=f"It has: {known}. Start a server that has it; the session waits.",
            ) from None
