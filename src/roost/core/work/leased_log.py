"""The log of one session, as the runner that has its lease writes it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from roost.domain.events import Draft, Entry, Preview
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease, Move, Session, State, Status
from roost.errors import NotWaiting
from roost.ports import drafts
from roost.ports.harness import Emit, Show, Trouble
from roost.ports.log import Log
from roost.ports.notifier import WORK, Notifier

_log = logging.getLogger(__name__)


class Leaves(Exception):
    """There is nothing left to do for the session's runner: it is over, or another one is to go on."""


class LeasedLog:
    """Every write of one lease's runner goes through here, in order.

    `head` is the last entry it knows of. `waits`: nothing can be done at present but to let time pass.
    """

    def __init__(self, log: Log, notifier: Notifier, lease: Lease) -> None:
        self.session_id = lease.session_id
        self.head = 0
        self.waits = False
        self._log = log
        self._notifier = notifier
        self._lease = lease
        self._status = Status.RUNNING

    def look(self, state: State) -> None:
        """Go on from where the session stands, whoever has brought it there: it may have rested since."""
        self._status = state.status
        self.head = state.head
        self.waits = False

    async def append(self, batch: Batch) -> None:
        """Write, then notify whoever follows the session.

        :raises LeaseLost: another runner has the session
        """
        entries = await self._log.append(self._lease, batch)
        if entries:
            self.head = entries[-1].seq
            self._notifier.notify(self.session_id)

    async def say(self, *drafts: Draft) -> None:
        """Write events that tell nothing of how the agent fares."""
        await self.append(Batch(drafts=drafts))

    async def interrupted(self, session: Session, interrupts: Sequence[Entry]) -> None:
        """End the turn that these interrupts are for, and all that it waits for."""
        waiting = [pending.event_id for pending in session.state.pending]
        with suppress(NotWaiting):  # another interrupt has ended all of it in the meantime
            await self.append(Batch(takes=interrupts, unblocks=waiting, turn=TurnMark.END))

    def show(self, show: Show) -> None:
        """Show text of an event to come to whoever watches now; it is not in the log."""
        preview = Preview(show.event_id, show.type, show.text, self.head)
        self._notifier.publish(self.session_id, preview)

    async def work(self, emit: Emit) -> None:
        """Write what the agent does. A session that was to be retried runs again by it."""
        recovered = self._status is Status.RESCHEDULING
        self._status = Status.RUNNING
        await self.append(
            Batch(
                drafts=emit.drafts,
                spent=emit.spent,
                blocks=emit.blocks,
                unblocks=emit.unblocks,
                move=Move.RECOVER if recovered else None,
            )
        )

    async def finish(self, seen: int, batch: Batch, stop_reason: dict[str, Any]) -> bool:
        """Make the session idle, unless something was written since `seen`; whether it is idle now.

        The lease is kept until the agent is closed: nobody may open another one beside it.
        """
        written = await self._log.finish(self._lease, seen, batch, stop_reason, keep=True)
        if written is not None:
            self._notifier.notify(self.session_id)
        return written is not None

    async def fail(self, trouble: Trouble) -> None:
        """Write a failure, and what it means for the session. :raises Leaves: the end of it"""
        about = {"action": trouble.retry, "session": self.session_id}
        _log.warning("%s: %s", trouble.error, trouble.message, extra=about)
        move = {"retrying": Move.RETRY, "exhausted": None, "terminal": Move.END}[trouble.retry]
        said = drafts.trouble(trouble.error, trouble.message, trouble.retry)
        await self.append(Batch(drafts=[said], move=move))
        if move is Move.RETRY:
            self._status = Status.RESCHEDULING
            self.waits = True
            self._notifier.notify(WORK)  # somebody else can work meanwhile
        if move is Move.END:
            raise Leaves("the session is over")
