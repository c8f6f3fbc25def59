"""Leg 2b: one session, owned under one lease, until nothing is left to do.

Killed at any point, the session is claimed again and this same code goes on: the log says which
inputs wait, and which had been handed over for a turn that did not end.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeGuard

import anyio
from anyio import CancelScope
from msgspec.structs import replace

from roost.core.concurrency import alongside
from roost.core.sandbox.budgets import BUDGET_REACHED, Budgets
from roost.core.sandbox.reports import SandboxReports
from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.work.history import handed_over, history
from roost.core.work.idle import Idle, WarmAgents, Work
from roost.core.work.inputs import (
    can_start_ahead,
    interrupts_in,
    is_changed,
    placed,
    ready_of,
)
from roost.core.work.lacks import keep_outputs, tell_what_is_gone
from roost.core.work.prestart import Prestart
from roost.core.work.reports import notes_of
from roost.core.work.server_tools import ServerTools
from roost.core.work.start_limit import StartLimit
from roost.core.work.turn import LeasedLog, Terminated
from roost.core.work.vacancy import Vacancy
from roost.core.work.workspace_queue import WorkspaceQueue
from roost.core.write.intake import inbox
from roost.core.write.standby import StandbyRunners
from roost.domain.events import Entry, trouble
from roost.domain.ledger import Batch, TurnMark, requires_action
from roost.domain.session import Lease, Session, Status
from roost.errors import (
    BlobsFailed,
    FilesElsewhere,
    HarnessUnavailable,
    LeaseLost,
    NotFound,
    NotWaiting,
    RoostError,
    SandboxFailed,
    SnapshotCorrupt,
    Unavailable,
    WorkspaceDeleted,
)
from roost.ports.harness import Brief, Conversation, Harness, StartMode, Trouble
from roost.ports.log import Log
from roost.ports.notifier import Notifier
from roost.ports.sessions import Sessions

_log = logging.getLogger(__name__)
_PAUSES = (0.1, 1.0, 5.0)  # seconds before a turn whose sandbox broke is taken again in a new one
_LOOK_AGAIN = 5.0  # seconds; an interrupt whose notification was lost is found this late
_OPENING = 0  # no input's seq: what is counted is sandboxes that could not be opened
_STORE = -1  # nor this: it counts tries to have the files while the blob store fails
_STORE_LOOKS = 5.0  # seconds between two of them


class HandedOver(Exception):
    """The session has work, and another runner is to do it."""


class Runner:
    """Works on sessions that were claimed."""

    def __init__(
        self,
        log: Log,
        sessions: Sessions,
        notifier: Notifier,
        harnesses: Mapping[str, Harness],
        places: Sandboxes | None = None,
        warmth: WarmAgents | None = None,
        wakes: StartLimit | None = None,
        pool: Prestart | None = None,
        errands: ServerTools | None = None,
        budgets: Budgets | None = None,
        gate: WorkspaceQueue | None = None,
        handover: StandbyRunners | None = None,
    ) -> None:
        self._log = log
        self._sessions = sessions
        self._notifier = notifier
        self._harnesses = harnesses
        self._places = places
        self._errands = errands
        self._budgets = budgets or Budgets()
        self._warmth = WarmAgents(notifier, seconds=0, most=1) if warmth is None else warmth
        self.wakes = StartLimit(notifier, most=64) if wakes is None else wakes
        self._rest = Idle(sessions, notifier, self._warmth, handover)
        self._pool = pool
        self._gate = gate or WorkspaceQueue(log, notifier)
        self._vacancy = Vacancy(places, notifier, self.wakes)
        self._turns: set[LeasedLog] = set()
        self._leaving = False

    def leaving(self, leaving: bool) -> None:
        """From now on, begin no turn, and let agents at rest end: others go on. Or stay, after all."""
        self._leaving = leaving
        self._warmth.close(leaving)

    def make_room(self) -> None:
        """Let one agent that only rests end: its memory is needed."""
        self._warmth.give_up_one()

    @property
    def resting(self) -> int:
        """How many of its runs only keep an agent warm."""
        return len(self._warmth)

    @property
    def waiting(self) -> int:
        """How many of its runs only wait: for a model that asked for a pause, or for a sandbox."""
        return sum(turn.waits for turn in self._turns)

    async def run(self, lease: Lease) -> None:
        """Work until the session rests, ends, or is somebody else's."""
        try:
            resumed = lease.generation > 1
            broken: Counter[int] = Counter()
            while not await self._run_in_a_conversation(lease, broken, resumed=resumed):
                resumed = True
        except (LeaseLost, NotFound, Terminated, HandedOver) as reason:
            _log.info(
                "runner leaves: %s",
                "the session is over" if isinstance(reason, Terminated) else reason,
                extra={"action": "leave", "session": lease.session_id},
            )

    async def _run_in_a_conversation(
        self, lease: Lease, broken: Counter[int], *, resumed: bool
    ) -> bool:
        """Whether the session rests; if not, its agent broke and there are inputs to go on with.

        `broken` counts the sandboxes that each turn, named by its first input, has lost.
        """
        session = await self._sessions.find(lease.session_id)
        turn = LeasedLog(self._log, self._notifier, lease, session.state)
        brief = Brief(session, partial(history, self._log, session), StartMode.of(resumed=resumed))
        self._turns.add(turn)
        opened = rests = False
        try:
            async with self._unless_stopped(
                self._agent(lease, turn, brief), session
            ) as conversation:
                if conversation is None:
                    return await self._stopped(lease, turn)
                opened = True
                found, inputs = await self._sessions.with_inputs(session.id)
                if is_changed(session, found):  # it rested meanwhile, and became another one
                    return False
                woken: Work | None = Work(found, inputs)
                while woken is not None:
                    rests = False
                    await self._run_until_rest(woken, lease, turn, conversation)
                    rests = True
                    del broken[_STORE]
                    woken = await self._woken_while_warm(lease, session)
        except (LeaseLost, NotFound, Terminated, HandedOver, Unavailable):
            raise
        except FilesElsewhere as elsewhere:  # the node that has its workspace is to claim it
            await turn.fail(Trouble(elsewhere.code, elsewhere.message, "retrying"))
            raise HandedOver from None
        except Exception as error:  # noqa: BLE001 - an agent is somebody else's program
            return await self._failed(lease, turn, error, broken, opened=opened, rests=rests)
        finally:
            self._turns.discard(turn)
        return True

    async def _failed(
        self,
        lease: Lease,
        turn: LeasedLog,
        error: Exception,
        broken: Counter[int],
        *,
        opened: bool,
        rests: bool,
    ) -> bool:
        """Whether the session rests; if not, it is tried again."""
        if not rests and _is_store_away(error):
            return await self._waited_for_store(lease, turn, error, broken)
        _log.error("harness failed", exc_info=error, extra={"session": lease.session_id})
        if rests or await self._goes_on_elsewhere(lease, turn, error, broken, opened=opened):
            return rests
        return await self._give_up(lease, turn, error, worked=opened)

    @asynccontextmanager
    async def _unless_stopped(
        self, agent: AbstractAsyncContextManager[Conversation], session: Session
    ) -> AsyncGenerator[Conversation | None, None]:
        """The agent, opened; None if it was interrupted before that, or there is nothing to do for it."""
        watch, opening = CancelScope(), CancelScope()
        with opening:
            async with alongside(self._watch, session.id, watch, opening), agent as conversation:
                watch.cancel()
                if not opening.cancel_called:
                    yield conversation
                    return
        yield None

    async def _watch(self, session_id: str, watch: CancelScope, opening: CancelScope) -> None:
        with watch, self._notifier.subscribe(inbox(session_id)) as subscription:
            while True:
                session, inputs = await self._sessions.with_inputs(session_id)
                if watch.cancel_called:  # it is open by now: nobody may end what it does from here
                    return None
                if session.state.status is Status.IDLE or interrupts_in(inputs):
                    return opening.cancel()
                await subscription.wait(_LOOK_AGAIN)
                subscription.notified()

    async def _stopped(self, lease: Lease, turn: LeasedLog) -> bool:
        """Whether it rests, without an agent; if not, something was said after the interrupt."""
        while True:
            session, inputs = await self._sessions.with_inputs(lease.session_id)
            if interrupts := interrupts_in(inputs):
                await self._close_what_waits(turn, session, interrupts)
            elif ready_of(session, inputs):
                return False
            elif await self._go_idle(lease, session, Batch(), {"type": "end_turn"}):
                return True

    @asynccontextmanager
    async def _agent(
        self, lease: Lease, turn: LeasedLog, brief: Brief
    ) -> AsyncGenerator[Conversation, None]:
        """The session's agent, started; in a place of its own if it is a program."""
        harness = self._harness_of(brief.session)
        if not harness.profile.needs_sandbox:
            self.wakes.end(lease.session_id)  # there is nothing to start
            async with harness.open(brief) as conversation:
                yield conversation
            return
        session, notes = brief.session, notes_of(turn, self._sessions, self._budgets)
        await tell_what_is_gone(self._places, turn, session)
        async with self._started_before(lease, session, notes) as ready:
            if ready is not None:
                self.wakes.end(session.id)
                yield ready
                return
        places = await self._vacancy.places(turn, session)
        ahead = can_start_ahead(session, await self._log.inputs(session.id))
        await self.wakes.begin(session.id)
        try:
            async with (
                places.open(lease, session, harness, notes) as sandbox,
                harness.open(placed(brief, sandbox, places, ahead=ahead)) as conversation,
                alongside(self._see_it_up, conversation, session.id),
            ):
                yield conversation
        finally:
            self.wakes.end(session.id)

    def _started_before(
        self, lease: Lease, session: Session, notes: SandboxReports
    ) -> AbstractAsyncContextManager[Conversation | None]:
        if self._pool is None:
            return nullcontext(None)
        return self._pool.taken(lease, session, notes)

    async def _see_it_up(self, conversation: Conversation, session_id: str) -> None:
        await conversation.up()
        self.wakes.end(session_id)

    async def _woken_while_warm(self, lease: Lease, before: Session) -> Work | None:
        harness = self._harness_of(before)
        if not harness.profile.needs_sandbox or not self._warmth.seconds:
            return None
        return await self._rest.until_work(lease, before)

    async def _run_until_rest(
        self, work: Work, lease: Lease, turn: LeasedLog, conversation: Conversation
    ) -> None:
        session, inputs, _ = work
        stop_reason: dict[str, Any] = {"type": "end_turn"}
        turn.look(session.state)
        if session.state.turn is not None and not interrupts_in(inputs):
            stop_reason = await self._gone_on(work, turn, conversation) or stop_reason
            session, inputs = await self._sessions.with_inputs(lease.session_id)
        while True:
            stopped = stop_reason == BUDGET_REACHED
            if interrupts := interrupts_in(inputs):
                stop_reason = {"type": "end_turn"}
                await self._close_what_waits(turn, session, interrupts)
            elif ready := await self._ready(session, inputs, stopped=stopped):
                await self._stay_for_another_turn(turn, over=not stopped)
                if await self._may_begin(session, turn, ready, again=stopped):
                    stop_reason = await self._worked(
                        session, turn, conversation, ready, again=stopped
                    )
            elif not await self._carried_out(session) and (
                await self._go_idle(lease, session, Batch(), stop_reason)
            ):
                return await keep_outputs(self._places, turn, session)
            session, inputs = await self._sessions.with_inputs(lease.session_id)
            if session.state.status is Status.RUNNING:
                turn.waits = False  # it was interrupted and woken: what it waits for is said again

    async def _ready(
        self, session: Session, inputs: Sequence[Entry], *, stopped: bool
    ) -> list[Entry]:
        """What to hand over now. A turn that the budget has `stopped` comes first, once that is raised."""
        if not stopped:
            return ready_of(session, inputs)
        return [] if self._budgets.reached(session) else await handed_over(self._log, session)

    async def _stay_for_another_turn(self, turn: LeasedLog, *, over: bool) -> None:
        """:raises HandedOver: it is for others to take; as the first one, if the one before is over"""
        if self._leaving:
            await turn.append(Batch(turn=TurnMark.END if over else TurnMark.NONE))
            raise HandedOver("others go on with the session")

    async def _gone_on(
        self, work: Work, turn: LeasedLog, conversation: Conversation
    ) -> dict[str, Any] | None:
        """A turn that has begun: with what woke the session, or in a server that is gone."""
        session, inputs, begun = work
        if begun:
            return await self._worked(session, turn, conversation, inputs, again=False)
        if not await self._gate.reopened(session, turn):
            return None
        given = await handed_over(self._log, session)
        return await self._worked(session, turn, conversation, given, again=True)

    async def _may_begin(
        self, session: Session, turn: LeasedLog, inputs: Sequence[Entry], *, again: bool
    ) -> bool:
        """Whether a turn may begin now; then it has, also after a crash."""
        if again:
            return await self._gate.reopened(session, turn)
        if not await self._gate.passed(session, turn, inputs[0].at):
            return False
        try:
            await turn.begin(inputs)
        except NotWaiting:  # an interrupt was faster, and has withdrawn them
            return False
        return True

    async def _worked(
        self,
        session: Session,
        turn: LeasedLog,
        conversation: Conversation,
        inputs: Sequence[Entry],
        *,
        again: bool,
    ) -> dict[str, Any]:
        """One turn that has begun, and why the agent rests after it.

        What it finds of files is stored before it begins, and what it leaves when it ends.
        """
        if self._places is not None:
            await self._places.begun(session)
        stop_reason = await turn.take(conversation, inputs, again=again)
        end = 0 if stop_reason["type"] == "requires_action" else turn.head
        if self._places is not None:
            self._places.rested(session.id, end)
        await self._gate.left(session, turn, end)
        spent = stop_reason["type"] == "retries_exhausted" and await self._is_spent(session)
        return BUDGET_REACHED if spent else stop_reason

    async def _is_spent(self, before: Session) -> bool:
        """Whether a turn had nothing left to spend, as its budget was when it began."""
        now = await self._sessions.find(before.id)
        return self._budgets.reached(replace(now, spec=before.spec)) is not None

    async def _carried_out(self, session: Session) -> bool:
        """Whether the agent waited for the server itself, and need not any more."""
        return self._errands is not None and await self._errands.carry_out(session)

    async def _go_idle(
        self, lease: Lease, session: Session, batch: Batch, stop_reason: dict[str, Any]
    ) -> bool:
        batch = replace(batch, budget=session.spec.budget)
        if pending := session.state.pending:
            stop_reason = requires_action(pending)
        elif stop_reason == BUDGET_REACHED:
            batch = replace(batch, turn=TurnMark.SUSPEND)  # it goes on when that is raised
        await self._gate.gave_up(session)
        # The lease is kept until the agent is closed: nobody may open another one beside it.
        head = session.state.head
        written = await self._log.finish(lease, head, batch, stop_reason, keep=True)
        if written is None:
            return False
        self._notifier.notify(session.id)
        return True

    async def _close_what_waits(
        self, turn: LeasedLog, session: Session, interrupts: Sequence[Entry]
    ) -> None:
        waiting = [pending.event_id for pending in session.state.pending]
        with suppress(NotWaiting):  # another interrupt has ended all of it in the meantime
            await turn.append(Batch(takes=interrupts, unblocks=waiting, turn=TurnMark.END))

    async def _goes_on_elsewhere(
        self, lease: Lease, turn: LeasedLog, error: Exception, broken: Counter[int], *, opened: bool
    ) -> bool:
        """Whether it is tried again in a new sandbox: the old one broke at work, or was not to be had
        though it could be a moment before. If it still cannot, `Vacancy` waits.
        """
        if not isinstance(error, SandboxFailed):
            return False
        inputs = (await self._sessions.find(lease.session_id)).state.turn if opened else [_OPENING]
        if not inputs or broken[inputs[0]] == len(_PAUSES):
            return False
        await turn.fail(Trouble(error.code, error.message, "retrying"))
        await anyio.sleep(_PAUSES[broken[inputs[0]]])
        broken[inputs[0]] += 1
        return True

    async def _waited_for_store(
        self, lease: Lease, turn: LeasedLog, error: BlobsFailed, broken: Counter[int]
    ) -> bool:
        """Whether the session rests; if not, some time was waited, and its files are tried again.

        That is said once. Until the store is right again the inputs wait in the queue, and a turn that names
        files is under way: an agent without its files will not do.
        """
        with self._notifier.subscribe(inbox(lease.session_id)) as subscription:
            session, inputs = await self._sessions.with_inputs(lease.session_id)
            if session.state.status is Status.IDLE or interrupts_in(inputs):
                return await self._stopped(lease, turn)
            if not broken[_STORE]:
                text = f"{error.message}. {error.hint or ''}".strip()
                await turn.fail(Trouble(error.code, text, "retrying"))
            broken[_STORE] += 1
            turn.waits = True
            self.wakes.end(lease.session_id)  # others need not wait with it
            await self._stay_for_another_turn(turn, over=False)
            await subscription.wait(_STORE_LOOKS)
        return False

    async def _give_up(
        self, lease: Lease, turn: LeasedLog, error: Exception, *, worked: bool
    ) -> bool:
        """Say that the agent cannot be driven, and wait; False if there is something to go on with.

        If it broke at work, its turn is lost, and what is queued behind that is not. If it could not
        even be opened, everything waits for the next wake: the queue, and a turn that was cut off.

        :raises Terminated: it can never go on
        """
        if isinstance(error, WorkspaceDeleted):  # for good: there is nothing to wait for
            await turn.fail(Trouble(error.code, _in_words(error), "terminal"))
        said = trouble(_name_of(error), _in_words(error), "exhausted")
        await turn.append(Batch(drafts=[said], turn=TurnMark.END if worked else TurnMark.NONE))
        while True:
            session, inputs = await self._sessions.with_inputs(lease.session_id)
            if interrupts := interrupts_in(inputs):
                await self._close_what_waits(turn, session, interrupts)
                continue
            if worked and ready_of(session, inputs):
                return False
            waits = Batch(turn=TurnMark.END if worked else TurnMark.SUSPEND)
            if await self._go_idle(lease, session, waits, {"type": "retries_exhausted"}):
                return True

    def _harness_of(self, session: Session) -> Harness:
        try:
            return self._harnesses[session.spec.harness]
        except KeyError:
            known = ", ".join(sorted(self._harnesses))
            raise HarnessUnavailable(
                f"this server has no harness {session.spec.harness!r}",
                hint=f"It has: {known}. Start a server that has it; the session waits.",
            ) from None


def _is_store_away(error: Exception) -> TypeGuard[BlobsFailed]:
    """Whether its files can be had later; what is damaged in the store stays so."""
    return isinstance(error, BlobsFailed) and not isinstance(error, SnapshotCorrupt)


def _name_of(error: Exception) -> str:
    """What a `session.error` calls it: by its code, unless nobody knows what it is."""
    known = isinstance(error, RoostError) and error.code != RoostError.code
    return error.code if isinstance(error, RoostError) and known else "unknown_error"


def _in_words(error: Exception) -> str:
    hint = error.hint if isinstance(error, RoostError) else None
    return f"{str(error).removesuffix('.')}. {hint}" if hint else str(error) or type(error).__name__
