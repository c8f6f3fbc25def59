"""Leg 2b: one session, owned under one lease, until nothing is left to do.

Killed at any point, the session is claimed again and this same code goes on: the log says which
inputs wait, and which had been handed over for a turn that did not end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from roost.core.turn import Terminated, Turn
from roost.domain.events import Draft, Entry
from roost.domain.ledger import Batch, requires_action
from roost.domain.session import Lease, Session
from roost.errors import LeaseLost, NotFound, RoostError, Unavailable
from roost.ports.bell import Bell
from roost.ports.harness import Brief, Conversation, Harness
from roost.ports.log import Log
from roost.ports.sessions import Sessions

_log = logging.getLogger(__name__)
_PAGE = 1000


class Runner:
    """Works on sessions that were claimed."""

    def __init__(
        self, log: Log, sessions: Sessions, bell: Bell, harnesses: Mapping[str, Harness]
    ) -> None:
        self._log = log
        self._sessions = sessions
        self._bell = bell
        self._harnesses = harnesses

    async def run(self, lease: Lease) -> None:
        """Work until the session rests, ends, or is somebody else's."""
        try:
            resumed = lease.generation > 1
            while not await self._run_in_a_conversation(lease, resumed=resumed):
                resumed = True
        except (LeaseLost, NotFound, Terminated) as reason:
            _log.info(
                "runner leaves: %s",
                "the session is over" if isinstance(reason, Terminated) else reason,
                extra={"action": "leave", "session": lease.session_id},
            )

    async def _run_in_a_conversation(self, lease: Lease, *, resumed: bool) -> bool:
        """Whether the session rests; if not, its agent broke and there are inputs to go on with."""
        session = await self._sessions.find(lease.session_id)
        turn = Turn(self._log, self._bell, lease, session.state.status, session.state.head)
        brief = Brief(session, lambda: self._history(session.id), resumed=resumed)
        opened = rests = False
        try:
            harness = self._harness_of(session)
            async with harness.open(brief) as conversation:
                opened = True
                await self._run_until_rest(lease, session, turn, conversation)
                rests = True
        except (LeaseLost, NotFound, Terminated, Unavailable):
            raise
        except Exception as error:  # noqa: BLE001 - an agent is somebody else's program
            _log.error("harness failed", exc_info=error, extra={"session": lease.session_id})
            return rests or await self._give_up(lease, turn, error, worked=opened)
        return True

    async def _run_until_rest(
        self, lease: Lease, session: Session, turn: Turn, conversation: Conversation
    ) -> None:
        stop_reason: dict[str, Any] = {"type": "end_turn"}
        if session.state.turn is not None:
            inputs = await self._handed_over(session)
            stop_reason = await turn.take(conversation, inputs, again=True)
        while True:
            # The session first, the inputs after: whatever is not among them came after `head`.
            session = await self._sessions.find(lease.session_id)
            inputs = await self._log.inputs(session.id)
            if interrupts := [entry for entry in inputs if entry.type == "user.interrupt"]:
                await self._close_what_waits(turn, session, interrupts)
                stop_reason = {"type": "end_turn"}
            elif ready := _ready(session, inputs):
                await turn.begin(ready)
                stop_reason = await turn.take(conversation, ready, again=False)
            elif await self._rest(lease, session, Batch(), stop_reason):
                return

    async def _rest(
        self, lease: Lease, session: Session, batch: Batch, stop_reason: dict[str, Any]
    ) -> bool:
        if pending := session.state.pending:
            stop_reason = requires_action(pending)
        # The lease is kept until the agent is closed: nobody may open another one beside it.
        head = session.state.head
        written = await self._log.finish(lease, head, batch, stop_reason, keep=True)
        if written is None:
            return False
        self._bell.ring(session.id)
        return True

    async def _close_what_waits(
        self, turn: Turn, session: Session, interrupts: Sequence[Entry]
    ) -> None:
        waiting = [pending.event_id for pending in session.state.pending]
        await turn.append(Batch(takes=interrupts, unblocks=waiting, turn=False))

    async def _give_up(self, lease: Lease, turn: Turn, error: Exception, *, worked: bool) -> bool:
        """Say that the agent cannot be driven, and wait; False if there is something to go on with.

        If it broke at work, its turn is lost, and what is queued behind that is not. If it could not
        even be opened, everything waits for the next wake: the queue, and a turn that was cut off.
        """
        hint = error.hint if isinstance(error, RoostError) else None
        text = f"{error} {hint or ''}".strip() or type(error).__name__
        body = {"type": "unknown_error", "message": text, "retry_status": {"type": "exhausted"}}
        said = [Draft.of("session.error", error=body)]
        await turn.append(Batch(drafts=said, turn=False if worked else None))
        while True:
            session = await self._sessions.find(lease.session_id)
            if worked and _ready(session, await self._log.inputs(session.id)):
                return False
            waits = Batch(turn=not worked)
            if await self._rest(lease, session, waits, {"type": "retries_exhausted"}):
                return True

    def _harness_of(self, session: Session) -> Harness:
        try:
            return self._harnesses[session.spec.harness]
        except KeyError:
            known = ", ".join(sorted(self._harnesses))
            raise RoostError(
                f"this server has no harness {session.spec.harness!r}",
                hint=f"It has: {known}. Start a server that has it; the session waits.",
            ) from None

    async def _handed_over(self, session: Session) -> list[Entry]:
        found = []
        for seq in session.state.turn or ():
            found += await self._log.read(session.id, seq - 1, 1)
        return found

    async def _history(self, session_id: str) -> AsyncIterator[Entry]:
        after = 0
        while page := await self._log.read(session_id, after, _PAGE):
            for entry in page:
                yield entry
            after = page[-1].seq


def _ready(session: Session, inputs: Sequence[Entry]) -> list[Entry]:
    """The inputs to hand over now: while answers are outstanding, only answers."""
    if session.state.pending:
        return [entry for entry in inputs if entry.type in _ANSWERS]
    if any(entry.type in _ANSWERS or entry.type == "user.message" for entry in inputs):
        return list(inputs)
    return []


_ANSWERS = {"user.tool_confirmation", "user.custom_tool_result"}
