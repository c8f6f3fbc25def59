"""WORK, second: one session, owned under one lease, until nothing is left to do.

A runner is in one phase at a time; `core/work/phases` has every move between them. Killed at any point, the
session is claimed again and this same code goes on: the log says which inputs wait, and which had been
handed over for a turn that did not end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from anyio import CancelScope

from roost.core.concurrency import alongside
from roost.core.sandbox.budgets import BUDGET_REACHED
from roost.core.work.failures import Failure, FailureHandler
from roost.core.work.idle import Idle, Work
from roost.core.work.inputs import handed_over, interrupts_in, is_changed, ready_of
from roost.core.work.leased_log import HandedOver, LeasedLog, Terminated
from roost.core.work.phases import PHASES, WITH_AGENT, RunnerPhase
from roost.core.work.server_tools import ServerTools
from roost.core.work.starter import AgentStarter
from roost.core.work.turn import Turns
from roost.core.write.intake import inbox
from roost.domain.events import Entry
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


@dataclass(frozen=True, kw_only=True)
class RunnerParts:
    """What runners need, the same for all of a node."""

    log: Log
    sessions: Sessions
    notifier: Notifier
    starter: AgentStarter
    turns: Turns
    idle: Idle
    server_tools: ServerTools


class Runners:
    """Works on sessions that were claimed, each with a runner of its own."""

    def __init__(self, parts: RunnerParts) -> None:
        self.start_limit = parts.starter.limit
        self._parts = parts
        self._warm = parts.idle.warm
        self._running: set[Runner] = set()
        self._leaving = False

    def leaving(self, leaving: bool) -> None:
        """From now on, begin no turn, and let idle agents end: others go on. Or stay, after all."""
        self._leaving = leaving
        self._warm.close(leaving)

    def make_room(self) -> None:
        """End one agent that only idles: its memory is needed."""
        self._warm.give_up_one()

    @property
    def resting(self) -> int:
        """How many of its sessions only keep an agent warm."""
        return len(self._warm)

    @property
    def waiting(self) -> int:
        """How many of its sessions only wait: for a model that asked for a pause, or for a sandbox."""
        return sum(runner.log.waits for runner in self._running)

    async def run(self, lease: Lease) -> None:
        """Work until the session rests, ends, or is somebody else's."""
        runner = Runner(self._parts, lease, lambda: self._leaving)
        self._running.add(runner)
        try:
            await runner.until_left()
        except (LeaseLost, NotFound, Terminated, HandedOver) as reason:
            _log.info(
                "runner leaves: %s",
                "the session is over" if isinstance(reason, Terminated) else reason,
                extra={"action": "leave", "session": lease.session_id},
            )
        finally:
            self._running.discard(runner)


class _Given(NamedTuple):
    """The inputs of a turn that has begun; `again`: the agent may have been given them before."""

    session: Session
    inputs: Sequence[Entry]
    again: bool


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
        self._given: _Given  # set when a turn has begun
        self._stop_reason = _END_TURN
        self._was_up = False
        self._turns_taken = 0  # in the sandbox that is open
        self._failure: Failure  # set when it broke
        self._failures = FailureHandler(
            parts.sessions, parts.notifier, parts.turns, parts.starter.limit, self.log, leaving
        )

    async def until_left(self) -> None:
        """Go from phase to phase.

        :raises LeaseLost: :raises NotFound: the session was deleted :raises Terminated: it is over
        :raises HandedOver: another runner is to go on
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
                    self._move(await self._recover())

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
            async with self._unless_interrupted(session) as conversation:
                self._move(await self._opened(session, conversation))
                while conversation is not None and self.phase in WITH_AGENT:
                    self._move(await self._step(session, conversation))
        except (LeaseLost, NotFound, Terminated, HandedOver, Unavailable):
            raise
        except FilesElsewhere as elsewhere:  # the node that has its workspace is to claim it
            await self.log.fail(Trouble(elsewhere.code, elsewhere.message, "retrying"))
            raise HandedOver from None
        except Exception as error:  # noqa: BLE001 - an agent is somebody else's program
            self._broke(error)

    @asynccontextmanager
    async def _unless_interrupted(
        self, session: Session
    ) -> AsyncGenerator[Conversation | None, None]:
        """The agent; None if it was interrupted while it started, or there is nothing to do for it."""
        agent: AbstractAsyncContextManager[Conversation] = self._parts.starter.open(
            self._lease, self.log, session, resumed=self._resumed
        )
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
                await subscription.wait(_LOOK_AGAIN)
                subscription.notified()

    async def _opened(self, session: Session, conversation: Conversation | None) -> RunnerPhase:
        if conversation is None:
            return RunnerPhase.INTERRUPTED
        self._was_up = True
        found, inputs = await self._sessions.with_inputs(session.id)
        if is_changed(session, found):  # it rested meanwhile, and became another one
            return RunnerPhase.OPENING
        self._work = Work(found, inputs)
        return RunnerPhase.TAKING_UP

    async def _step(self, session: Session, conversation: Conversation) -> RunnerPhase:
        match self.phase:
            case RunnerPhase.TAKING_UP:
                return await self._take_up()
            case RunnerPhase.FEEDING:
                return await self._feed()
            case RunnerPhase.IN_TURN:
                return await self._take_turn(conversation)
            case _:
                return await self._idle(session)

    # Taking up

    async def _take_up(self) -> RunnerPhase:
        """A turn that has begun goes on: with what woke the session, after the server that began it has
        died, or after its budget was raised.
        """
        session, inputs, begun = self._work or Work(*await self._look())
        self.log.look(session.state)
        self._stop_reason = _END_TURN
        if session.state.turn is None or interrupts_in(inputs):
            return RunnerPhase.FEEDING
        self._work = None
        if begun:
            self._given = _Given(session, inputs, again=False)
        elif await self._parts.turns.queue.reopened(session, self.log):
            self._given = _Given(session, await handed_over(self._parts.log, session), again=True)
        else:
            return RunnerPhase.FEEDING
        return RunnerPhase.IN_TURN

    # Feeding

    async def _feed(self) -> RunnerPhase:
        """What to do next. An interrupt comes before everything else."""
        session, inputs = await self._look()
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
                self._given = _Given(session, ready, again=False)
                return RunnerPhase.IN_TURN
        elif not await self._parts.server_tools.carry_out(session) and (
            await turns.rest(session, self.log, self._stop_reason)
        ):
            await turns.keep_outputs(session, self.log)
            return RunnerPhase.IDLE
        return RunnerPhase.FEEDING

    async def _look(self) -> tuple[Session, Sequence[Entry]]:
        if (work := self._work) is not None:
            self._work = None
            return work.session, work.inputs
        session, inputs = await self._sessions.with_inputs(self._lease.session_id)
        if session.state.status is Status.RUNNING:
            self.log.waits = False  # it was interrupted and woken: what it waits for is said again
        return session, inputs

    async def _stay_for_another_turn(self, *, is_over: bool) -> None:
        """Begin no turn on a node that hands its sessions over: end the turn, if it is over, and leave.

        :raises HandedOver: another node takes the next turn
        """
        if self._leaving():
            await self.log.append(Batch(turn=TurnMark.END if is_over else TurnMark.NONE))
            raise HandedOver("others go on with the session")

    # In a turn, and idle after it

    async def _take_turn(self, conversation: Conversation) -> RunnerPhase:
        session, inputs, again = self._given
        self._turns_taken += 1
        self._stop_reason = await self._parts.turns.take(
            session, self.log, conversation, inputs, again=again
        )
        return RunnerPhase.FEEDING

    async def _idle(self, session: Session) -> RunnerPhase:
        """Wait for the next input beside the agent, which was started for the session as it was then."""
        self._failures.rested()
        idle = self._parts.idle
        if not self._parts.starter.is_program(session) or not idle.warm.seconds:
            return RunnerPhase.LEFT
        self._work = await idle.until_work(self._lease, session)
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

    async def _recover(self) -> RunnerPhase:
        failure = self._failure
        del self._failure  # it holds on to the agent that failed
        return await self._failures.phase_after(failure)
