"""Leg 2c: one turn of the agent. What it does is logged, then shown, in the order it does it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from roost.core.concurrency import alongside
from roost.core.write.intake import inbox
from roost.domain import events
from roost.domain.events import Entry, Preview
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease, Move, State, Status
from roost.ports.harness import Conversation, Emit, Output, Show, Trouble, TurnEnd
from roost.ports.log import Log
from roost.ports.notifier import WORK, Notifier

_log = logging.getLogger(__name__)
_MOST_WRITTEN = 1024**3  # bytes that one turn adds to the log
_ENTRY = 200  # bytes that an entry takes besides its body
_MOST_ASKED = 10_000  # answers that an agent waits for, of one turn
_LOOK_AGAIN = 5.0  # seconds; an interrupt whose notification was lost is found this late


class Terminated(Exception):
    """The turn ended the session; there is nothing left to do for its runner."""


class LeasedLog:
    """Takes one turn after another of one conversation, under one lease.

    `waits`: nothing can be done at present but to let time pass. `head` is the last entry it knows of.
    """

    def __init__(self, log: Log, notifier: Notifier, lease: Lease, state: State) -> None:
        self._log = log
        self._notifier = notifier
        self._lease = lease
        self._written = self._asked = 0
        self.look(state)

    @property
    def session_id(self) -> str:
        """Whose turns they are."""
        return self._lease.session_id

    def look(self, state: State) -> None:
        """Go on from where the session stands, whoever has brought it there: it may have rested since."""
        self._status = state.status
        self.head = state.head
        self.waits = False

    async def take(
        self, conversation: Conversation, inputs: Sequence[Entry], *, again: bool
    ) -> dict[str, Any]:
        """Give the inputs, log what comes of it, and say why the agent rests.

        :raises LeaseLost: another runner has the session
        :raises Terminated: the session is over
        """
        self.waits = False
        self._written = self._asked = 0
        try:
            async with alongside(self._pass_on_interrupts, conversation):
                return await self._log_outputs(conversation, inputs, again=again)
        finally:
            self.waits = False

    async def begin(self, inputs: Sequence[Entry]) -> None:
        """Take the inputs off the queue: from here on they are the agent's, also after a crash."""
        await self.append(Batch(takes=inputs, turn=TurnMark.BEGIN))

    async def append(self, batch: Batch) -> None:
        """Log, then notify. Every write of this lease's runner goes through here, in order."""
        entries = await self._log.append(self._lease, batch)
        if entries:
            self.head = entries[-1].seq
            self._notifier.notify(self._lease.session_id)

    async def _log_outputs(
        self, conversation: Conversation, inputs: Sequence[Entry], *, again: bool
    ) -> dict[str, Any]:
        async with aclosing(conversation.turn(inputs, again=again)) as outputs:
            async for output in outputs:
                if isinstance(output, TurnEnd):
                    return output.stop_reason
                if problem := self._too_much(output):
                    await self.fail(Trouble("agent_failed", problem, "exhausted"))
                    return {"type": "retries_exhausted"}
                await self._log_one(output)
        await self.fail(Trouble("agent_failed", "the agent stopped without a word", "exhausted"))
        return {"type": "retries_exhausted"}

    def _too_much(self, output: Output) -> str | None:
        """Why this must not be logged: what runs in a sandbox must not fill the log."""
        if isinstance(output, Emit):
            self._written += sum(len(draft.body) + _ENTRY for draft in output.drafts)
            self._asked += len(output.blocks)
        if self._written > _MOST_WRITTEN:
            return f"the agent has said more than {_MOST_WRITTEN} bytes in one turn"
        if self._asked > _MOST_ASKED:
            return f"the agent has asked for more than {_MOST_ASKED} answers in one turn"
        return None

    async def _log_one(self, output: Output) -> None:
        self.waits = False
        match output:
            case Show(event_id, type, text):
                preview = Preview(event_id, type, text, self.head)
                self._notifier.publish(self._lease.session_id, preview)
            case Emit(drafts, aside=True):
                await self.append(Batch(drafts=drafts))
            case Emit():
                await self._log_work(output)
            case Trouble():
                await self.fail(output)
            case TurnEnd():
                pass

    async def _log_work(self, emit: Emit) -> None:
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

    async def fail(self, trouble: Trouble) -> None:
        """Log a failure, and what it means for the session. :raises Terminated: the end of it"""
        _log.warning(
            "%s: %s",
            trouble.error,
            trouble.message,
            extra={"action": trouble.retry, "session": self._lease.session_id},
        )
        move = {"retrying": Move.RETRY, "exhausted": None, "terminal": Move.END}[trouble.retry]
        said = events.trouble(trouble.error, trouble.message, trouble.retry)
        await self.append(Batch(drafts=[said], move=move))
        if move is Move.RETRY:
            self._status = Status.RESCHEDULING
            self.waits = True
            self._notifier.notify(WORK)  # somebody else can work meanwhile
        if move is Move.END:
            raise Terminated

    async def _pass_on_interrupts(self, conversation: Conversation) -> None:
        session_id = self._lease.session_id
        with self._notifier.subscribe(inbox(session_id)) as subscription:
            while True:
                if await self._log.inputs(session_id, ["user.interrupt"]):
                    return await conversation.interrupt()
                await subscription.wait(_LOOK_AGAIN)
                subscription.notified()
