"""WORK, second: one session, owned under one lease, until nothing is left to do.

A runner is in one phase at a time; `core/work/phases` has every move between them. Killed at any point, the
session is claimed again and this same code goes on: the log says which inputs wait, and which had been
handed over for a turn that did not end.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from anyio import CancelScope

from roost.core.concurrency import alongside
from roost.core.sandbox.budgets import BUDGET_REACHED
from roost.core.work.failures import Failure, FailureHandler
from roost.core.work.idle import IdleAgents
from roost.core.work.inputs import Work, handed_over, interrupts_in, is_changed, ready_of
from roost.core.work.leased_log import LeasedLog, Leaves
from roost.core.work.phases import PHASES, RunnerPhase
from roost.core.work.server_tools import ServerTools
from roost.core.work.starter import AgentStarter
from roost.core.work.turn import Turns
from roost.core.write.intake import inbox
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease, Session, Status
from roost.errors import FilesElsewhere, LeaseLost, NotFound, Unavailable
from roost.ports.harness import Conversation, Trouble
from roost.ports.log import Log
from roost.ports.notifier import Notifier
from roost.ports.sessions import Sessions

_log = logging.getLogger(__name__)
_LOOK_AGAIN: Final = 5.0  # seconds; an interrupt whose notification was lost is found this late
_END_TURN: Final[dict[str, Any]] = {"type": "end_turn"}
_Step = Callable[[], Awaitable[RunnerPhase]]


@dataclass(frozen=True, kw_only=True)
class RunnerParts:
    """What runners need, the same for all of a node."""

    log: Log
    sessions: Sessions
    notifier: Notifier
    starter: AgentStarter
    turns: Turns
    idle: IdleAgents
    server_tools: ServerTools


class Runner:
    """One session under one lease. `phase` says where it is; the methods stand in the order of phases."""

    def __init__(self, parts: RunnerParts, lease: Lease, leaving: Callable[[], bool]) -> None:
        self.phase = RunnerPhase.OPENING
        self.log = LeasedLog(parts.log, parts.notifier, lease)
        self._parts = parts
        self._sessions = parts.sessions
        self._lease = lease
        self._leaving = leaving
        self._resumed = lease.generation > 1
        self._work: Work | None = None  # what to take up, or to look at first
        self._turn: Work  # set when one has begun
        self._stop_reason = _END_TURN
        self._was_up = False
        self._turns_taken = 0  # in the sandbox that is open
        self._failure: Failure  # set when it broke
        self._failures = FailureHandler(
            parts.sessions, parts.notifier, parts.turns, parts.starter.limit, self.log, leaving
        )

    async def until_left(self) -> None:
        """Go from phase to phase.

        :raises LeaseLost: :raises NotFound: the session was deleted
        :raises Leaves: it is over, or another runner is to go on
        """
        while self.phase is not RunnerPhase.LEFT:
            match self.phase:
                case RunnerPhase.OPENING:
                    await self._with_agent()
                    self._resumed = True
                case RunnerPhase.INTERRUPTED:
                    is_idle = await self._parts.turns.rest_unless_ready(self.log, _END_TURN)
                    self._move(RunnerPhase.LEFT if is_idle else RunnerPhase.OPENING)
                case _:
                    failure = self._failure
                    del self._failure  # it holds on to the agent that failed
                    self._move(await self._failures.phase_after(failure))

    def _move(self, to: RunnerPhase) -> None:
        if to not in PHASES[self.phase]:
            raise RuntimeError(f"a runner cannot go from {self.phase} to {to}")
        self.phase = to

    # Opening

    async def _with_agent(self) -> None:
        """Start the agent, and go through the phases that need one."""
        session = await self._sessions.find(self._lease.session_id)
        self.log.look(session.state)
        self._was_up, self._turns_taken = False, 0
        try:
            async with self._agent_of(session) as conversation:
                if conversation is None:
                    self._move(RunnerPhase.INTERRUPTED)
                    return
                self._was_up = True
                self._move(await self._opened(session))
                steps: dict[RunnerPhase, _Step] = {
                    RunnerPhase.TAKING_UP: self._take_up,
                    RunnerPhase.FEEDING: self._feed,
                    RunnerPhase.IN_TURN: partial(self._take_turn, conversation),
                    RunnerPhase.IDLE: partial(self._idle, session),
                }
                while step := steps.get(self.phase):
                    self._move(await step())
        except (LeaseLost, NotFound, Leaves, Unavailable):
            raise
        except FilesElsewhere as elsewhere:  # the node that has its workspace is to claim it
            await self.log.fail(Trouble(elsewhere.code, elsewhere.message, "retrying"))
            raise Leaves(elsewhere.message) from None
        except Exception as error:  # noqa: BLE001 - an agent is somebody else's program
            self._broke(error)

    @asynccontextmanager
    async def _agent_of(self, session: Session) -> AsyncGenerator[Conversation | None, None]:
        """The agent; None if it was interrupted while it started, or there is nothing to do for it."""
        agent = self._parts.starter.open(self._lease, self.log, session, resumed=self._resumed)
        watch, opening = CancelScope(), CancelScope()
        with opening:
            async with alongside(self._watch, watch, opening), agent as conversation:
                watch.cancel()
                if not opening.cancel_called:
                    yield conversation
                    return
        yield None

    async def _watch(self, watch: CancelScope, opening: CancelScope) -> None:
        session_id = self._lease.session_id
        with watch, self._parts.notifier.subscribe(inbox(session_id)) as subscription:
            while True:
                session, inputs = await self._sessions.with_inputs(session_id)
                if watch.cancel_called:  # it is open by now: nobody may end what it does from here
                    return None
                if session.state.status is Status.IDLE or interrupts_in(inputs):
                    return opening.cancel()
                await subscription.until_notified(_LOOK_AGAIN)

    async def _opened(self, session: Session) -> RunnerPhase:
        found, inputs = await self._sessions.with_inputs(session.id)
        if is_changed(session, found):  # it rested meanwhile, and became another one
            return RunnerPhase.OPENING
        self._work = Work(found, inputs)
        return RunnerPhase.TAKING_UP

    # Taking up

    async def _take_up(self) -> RunnerPhase:
        """A turn that has begun goes on: with what woke the session, after the server that began it has
        died, or after its budget was raised.
        """
        work = self._work or await self._look()
        session, inputs = work.session, work.inputs
        self.log.look(session.state)
        self._stop_reason = _END_TURN
        if session.state.turn is None or interrupts_in(inputs):
            return RunnerPhase.FEEDING
        self._work = None
        if work.begun:
            self._turn = work
        elif await self._parts.turns.queue.reopened(session, self.log):
            given = await handed_over(self._parts.log, session)
            self._turn = Work(session, given, begun=True, again=True)
        else:
            return RunnerPhase.FEEDING
        return RunnerPhase.IN_TURN

    # Feeding

    async def _feed(self) -> RunnerPhase:
        """What to do next. An interrupt comes before everything else."""
        session, inputs, *_ = await self._look()
        turns, stopped = self._parts.turns, self._stop_reason == BUDGET_REACHED
        if interrupts := interrupts_in(inputs):
            self._stop_reason = _END_TURN
            await self.log.interrupted(session, interrupts)
        elif stopped and session.state.turn and turns.may_spend(session):
            await self._stay_for_another_turn(is_over=False)
            return RunnerPhase.TAKING_UP
        elif not stopped and (ready := ready_of(session, inputs)):
            await self._stay_for_another_turn(is_over=True)
            if await turns.may_begin(session, self.log, ready):
                self._turn = Work(session, ready, begun=True)
                return RunnerPhase.IN_TURN
        elif not await self._parts.server_tools.carry_out(session) and (
            await turns.rest(session, self.log, self._stop_reason)
        ):
            await turns.keep_outputs(session, self.log)
            return RunnerPhase.IDLE
        return RunnerPhase.FEEDING

    async def _look(self) -> Work:
        if (work := self._work) is not None:
            self._work = None
            return work
        work = Work(*await self._sessions.with_inputs(self._lease.session_id))
        if work.session.state.status is Status.RUNNING:
            self.log.waits = False  # it was interrupted and woken: what it waits for is said again
        return work

    async def _stay_for_another_turn(self, *, is_over: bool) -> None:
        """Begin no turn on a node that hands its sessions over: end the turn, if it is over, and leave.

        :raises Leaves: another node takes the next turn
        """
        if self._leaving():
            await self.log.append(Batch(turn=TurnMark.END if is_over else TurnMark.NONE))
            raise Leaves("others go on with the session")

    # In a turn, and idle after it

    async def _take_turn(self, conversation: Conversation) -> RunnerPhase:
        self._turns_taken += 1
        self._stop_reason = await self._parts.turns.take(self._turn, self.log, conversation)
        return RunnerPhase.FEEDING

    async def _idle(self, session: Session) -> RunnerPhase:
        """Wait for the next input beside the agent, which was started for the session as it was then."""
        self._failures.rested()
        profile = self._parts.starter.profile(session)
        seconds = math.inf if profile.stays else self._parts.idle.seconds
        if not profile.needs_sandbox or not seconds:  # no process, or none is kept
            return RunnerPhase.LEFT
        self._work = await self._parts.idle.until_work(self._lease, session, seconds)
        return RunnerPhase.LEFT if self._work is None else RunnerPhase.TAKING_UP

    # Broken

    def _broke(self, error: Exception) -> None:
        # If the session rests, nobody has to be told.
        if self.phase in (RunnerPhase.IDLE, RunnerPhase.LEFT):
            _log.error("harness failed", exc_info=error, extra={"session": self._lease.session_id})
            self.phase = RunnerPhase.LEFT
            return
        self._failure = Failure(error, self._was_up, self._turns_taken)
        self._move(RunnerPhase.BROKEN)
