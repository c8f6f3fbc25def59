"""A session whose agent, sandbox or files failed: it is tried again, waits, or rests.

What its agent was given is in the log, so whoever goes on takes the same turn again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple, TypeGuard

import anyio

from roost.core.work.inputs import interrupts_in
from roost.core.work.leased_log import LeasedLog, Leaves
from roost.core.work.phases import RunnerPhase
from roost.core.work.start_limit import StartLimit
from roost.core.work.turn import Turns
from roost.core.write.intake import inbox
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Status
from roost.errors import (
    BlobsFailed,
    RoostError,
    SandboxFailed,
    SnapshotCorrupt,
    WorkspaceDeleted,
)
from roost.ports.drafts import trouble
from roost.ports.harness import Trouble
from roost.ports.notifier import Notifier
from roost.ports.sessions import Sessions

_log = logging.getLogger(__name__)
_PAUSES: Final = (0.1, 1.0, 5.0)  # seconds before a turn whose sandbox broke is taken again
_STORE_LOOKS: Final = 5.0  # seconds between two tries to have the files while the blob store fails
_OPENING: Final = 0  # no input's seq: what is counted is sandboxes that could not be opened


class Failure(NamedTuple):
    """What went wrong. `was_up`: the agent had been started; then it had begun `turns` in its sandbox."""

    error: Exception
    was_up: bool
    turns: int


class FailureHandler:
    """Decides what a runner does after a failure. There is one for each lease: it counts what was lost."""

    def __init__(
        self,
        sessions: Sessions,
        notifier: Notifier,
        turns: Turns,
        limit: StartLimit,
        log: LeasedLog,
        leaving: Callable[[], bool],
    ) -> None:
        self._sessions = sessions
        self._notifier = notifier
        self._turns = turns
        self._limit = limit
        self._log = log
        self._leaving = leaving
        self._lost: Counter[int] = Counter()  # sandboxes, by the first input of the turn
        self._store_failed = False

    def rested(self) -> None:
        """The session has come to rest: if the store fails again, that is logged again."""
        self._store_failed = False

    async def phase_after(self, failure: Failure) -> RunnerPhase:
        """Where the runner goes on.

        :raises Leaves: another runner is to go on, or the session can never go on
        """
        error = failure.error
        if _is_store_away(error):
            return await self._wait_for_store(error)
        about = {"session": self._log.session_id}
        _log.error("harness failed", exc_info=error, extra=about)
        if isinstance(error, SandboxFailed) and await self._may_try_again(error, failure):
            return RunnerPhase.OPENING
        return await self._give_up(error, was_up=failure.was_up)

    async def _wait_for_store(self, error: BlobsFailed) -> RunnerPhase:
        """Wait some time before the files are tried again, unless it is interrupted.

        That is said once. Until the store is right again the inputs wait in the queue, and a turn that
        names files is under way: an agent without its files will not do.
        """
        session_id = self._log.session_id
        with self._notifier.subscribe(inbox(session_id)) as subscription:
            session, inputs = await self._sessions.with_inputs(session_id)
            if session.state.status is Status.IDLE or interrupts_in(inputs):
                return RunnerPhase.INTERRUPTED
            if not self._store_failed:
                text = f"{error.message}. {error.hint or ''}".strip()
                await self._log.fail(Trouble(error.code, text, "retrying"))
            self._store_failed = True
            self._log.waits = True
            self._limit.end(session_id)  # others need not wait with it
            if self._leaving():
                raise Leaves("others go on with the session")
            await subscription.wait(_STORE_LOOKS)
        return RunnerPhase.OPENING

    async def _may_try_again(self, error: SandboxFailed, failure: Failure) -> bool:
        """Whether it is tried again in a new sandbox: the old one broke at work, or was not to be had
        though it could be a moment before. If it still cannot, the starter waits.
        """
        found = await self._sessions.find(self._log.session_id)
        turn = found.state.turn if failure.was_up else [_OPENING]
        if not turn or self._lost[turn[0]] == len(_PAUSES):
            return False
        await self._log.fail(Trouble(error.code, error.message, "retrying"))
        await anyio.sleep(_PAUSES[self._lost[turn[0]]])
        # One that an earlier turn has worked in may have died while the session was idle. It is not
        # counted: nothing says that this turn has broken it.
        if failure.turns < 2:
            self._lost[turn[0]] += 1
        return True

    async def _give_up(self, error: Exception, *, was_up: bool) -> RunnerPhase:
        """Say that the agent cannot be driven, and wait; unless there is something to go on with.

        If it broke at work, its turn is lost, and what is queued behind that is not. If it could not
        even be started, everything waits for the next input: the queue, and a turn that was cut off.
        """
        if isinstance(error, WorkspaceDeleted):  # for good: there is nothing to wait for
            await self._log.fail(Trouble(error.code, _in_words(error), "terminal"))
        said = trouble(_name_of(error), _in_words(error), "exhausted")
        mark = TurnMark.END if was_up else TurnMark.NONE
        await self._log.append(Batch(drafts=[said], turn=mark))
        waits = TurnMark.END if was_up else TurnMark.SUSPEND
        stop_reason = {"type": "retries_exhausted"}
        if await self._turns.rest_unless_ready(self._log, stop_reason, waits, goes_on=was_up):
            return RunnerPhase.LEFT
        return RunnerPhase.OPENING


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
