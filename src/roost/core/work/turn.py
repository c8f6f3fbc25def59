"""WORK, third: one turn of an agent. What it does is logged, then shown, in the order it does it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

from msgspec.structs import replace

from roost.core.concurrency import alongside, done_first
from roost.core.sandbox.budgets import BUDGET_REACHED, Budgets
from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.work.inputs import Work, interrupts_in, ready_of
from roost.core.work.leased_log import LeasedLog
from roost.core.work.work_items import WorkItems
from roost.core.work.workspace_queue import WorkspaceQueue
from roost.core.write.intake import inbox
from roost.domain.events import Entry
from roost.domain.ledger import Batch, TurnMark, requires_action
from roost.domain.session import Session
from roost.errors import NotWaiting
from roost.ports.harness import Conversation, Emit, Output, Show, Trouble, TurnEnd
from roost.ports.log import Log
from roost.ports.notifier import Notifier
from roost.ports.sessions import Sessions

_MOST_WRITTEN: Final = 1024**3  # bytes that one turn adds to the log
_ENTRY: Final = 200  # bytes that an entry takes besides its body
_MOST_ASKED: Final = 10_000  # answers that an agent waits for, of one turn
_LOOK_AGAIN: Final = 5.0  # seconds; an interrupt whose notification was lost is found this late


class Turns:
    """Takes turns of the sessions of this node, with their files, their budget and their queue."""

    def __init__(
        self,
        log: Log,
        sessions: Sessions,
        notifier: Notifier,
        sandboxes: Sandboxes,
        queue: WorkspaceQueue,
        budgets: Budgets,
        items: WorkItems,
    ) -> None:
        self.queue = queue
        self._items = items
        self._log = log
        self._sessions = sessions
        self._notifier = notifier
        self._sandboxes = sandboxes
        self._budgets = budgets

    async def may_begin(self, session: Session, log: LeasedLog, inputs: Sequence[Entry]) -> bool:
        """Whether a turn may begin now; then it has, also after a crash."""
        if not await self.queue.passed(session, log, inputs[0].at):
            return False
        try:  # from here on they are the agent's, also after a crash
            await log.append(Batch(takes=inputs, turn=TurnMark.BEGIN))
        except NotWaiting:  # an interrupt was faster, and has withdrawn them
            return False
        return True

    def may_spend(self, session: Session) -> bool:
        """Whether there is something left of its budget."""
        return self._budgets.reached(session) is None

    async def take(self, work: Work, log: LeasedLog, conversation: Conversation) -> dict[str, Any]:
        """One turn that has begun, and why the agent rests after it.

        What it finds of files is stored before it begins, and what it leaves when it ends.

        :raises LeaseLost: another runner has the session :raises Leaves: the session is over
        :raises SandboxFailed: what it leaves cannot be had: its sandbox, on another machine, is lost
        """
        session = work.session
        await self._items.want(session)
        await self._sandboxes.files.begun(session)
        stop_reason = await _Turn(self._log, self._notifier, log, conversation).take(work)
        end = 0 if stop_reason["type"] == "requires_action" else log.head
        if not end:
            await self._items.say_if_awaited(session, log.say)
        if await self._sandboxes.running.brought_back(session.id, log.say):
            self._sandboxes.files.rested(session.id, end)
        await self.queue.left(session, log, end)
        spent = stop_reason["type"] == "retries_exhausted" and await self._is_spent(session)
        return BUDGET_REACHED if spent else stop_reason

    async def keep_outputs(self, session: Session, log: LeasedLog) -> None:
        """Keep what its agent has put out as files, and log what was left out."""
        await self._sandboxes.belongings.keep_outputs(session, log.say)

    async def rest(
        self,
        session: Session,
        log: LeasedLog,
        stop_reason: dict[str, Any],
        turn: TurnMark = TurnMark.NONE,
    ) -> bool:
        """Make the session idle; whether it is. It is not if something was said since it was looked at."""
        if pending := session.state.pending:
            stop_reason = requires_action(pending)
        elif stop_reason == BUDGET_REACHED:
            turn = TurnMark.SUSPEND  # it goes on when that is raised
        await self.queue.gave_up(session)
        batch = Batch(budget=session.spec.budget, turn=turn)
        return await log.finish(session.state.head, batch, stop_reason)

    async def rest_unless_ready(
        self,
        log: LeasedLog,
        stop_reason: dict[str, Any],
        turn: TurnMark = TurnMark.NONE,
        *,
        goes_on: bool = True,
    ) -> bool:
        """Make the session idle without an agent; whether it is. It is not if it `goes_on` with inputs."""
        while True:
            session, inputs = await self._sessions.with_inputs(log.session_id)
            if interrupts := interrupts_in(inputs):
                await log.interrupted(session, interrupts)
            elif goes_on and ready_of(session, inputs):
                return False
            elif await self.rest(session, log, stop_reason, turn):
                return True

    async def _is_spent(self, before: Session) -> bool:
        """Whether a turn had nothing left to spend, as its budget was when it began."""
        now = await self._sessions.find(before.id)
        return not self.may_spend(replace(now, spec=before.spec))


class _Turn:
    def __init__(
        self, log: Log, notifier: Notifier, leased: LeasedLog, conversation: Conversation
    ) -> None:
        self._log = log
        self._notifier = notifier
        self._leased = leased
        self._conversation = conversation
        self._written = self._asked = 0

    async def take(self, work: Work) -> dict[str, Any]:
        """Give the inputs, log what comes of it, and say why the agent rests."""
        self._leased.waits = False
        try:
            async with alongside(self._pass_on_interrupts):
                return await self._log_outputs(work)
        finally:
            self._leased.waits = False

    async def _pass_on_interrupts(self) -> None:
        session_id = self._leased.session_id
        with self._notifier.subscribe(inbox(session_id)) as subscription:
            while True:
                if await self._log.inputs(session_id, ["user.interrupt"]):
                    return await self._conversation.interrupt()
                await subscription.until_notified(_LOOK_AGAIN)

    async def _log_outputs(self, work: Work) -> dict[str, Any]:
        turn = self._conversation.turn(work.inputs, again=work.again)
        async with aclosing(turn) as outputs:
            output = await anext(outputs, None)
            while output is not None:
                if excess := self._excess(output):
                    return await self._failed(excess)  # before the turn is closed, which may fail
                self._leased.waits = False
                if isinstance(output, TurnEnd):
                    return output.stop_reason
                if isinstance(output, Emit) and output.meanwhile:
                    async with done_first(self._tell, output):
                        output = await anext(outputs, None)
                else:
                    await self._tell(output)
                    output = await anext(outputs, None)
        return await self._failed("the agent ended without a result")

    async def _tell(self, output: Emit | Show | Trouble) -> None:
        match output:
            case Show():
                self._leased.show(output)
            case Emit(drafts, aside=True):
                await self._leased.say(*drafts)
            case Emit():
                await self._leased.work(output)
            case Trouble():
                await self._leased.fail(output)

    async def _failed(self, problem: str) -> dict[str, Any]:
        await self._leased.fail(Trouble("agent_failed", problem, "exhausted"))
        return {"type": "retries_exhausted"}

    def _excess(self, output: Output) -> str | None:
        """Why this must not be logged: what runs in a sandbox must not fill the log."""
        if isinstance(output, Emit):
            self._written += sum(len(draft.body) + _ENTRY for draft in output.drafts)
            self._asked += len(output.blocks)
        if self._written > _MOST_WRITTEN:
            return f"the agent has said more than {_MOST_WRITTEN} bytes in one turn"
        if self._asked > _MOST_ASKED:
            return f"the agent has asked for more than {_MOST_ASKED} answers in one turn"
        return None
