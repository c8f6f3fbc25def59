"""Executions in pools: an input of the identifier's session, and the event that answers it.

An execution is accepted before anybody is told of it, and is begun once at most, whoever dies meanwhile. Its answer
is read from the log, so it can be asked for at any time and at any node.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec

from roost.core.write.intake import Intake
from roost.domain.events import Draft, Entry
from roost.domain.execution import (
    FIELD,
    ExecutionError,
    ExecutionRequest,
    ExecutionResult,
    answer_id,
    explained,
    result_in,
)
from roost.domain.session import Session, Status
from roost.errors import NotFound, SandboxFailed
from roost.ports.log import EventQuery, Log, Receipt
from roost.ports.notifier import Notifier
from roost.ports.sessions import Sessions

_PAGE: Final = 100
_PAGE_BYTES: Final = 1024**2
_LOOK_AGAIN: Final = 2.0  # seconds; an answer whose notification was lost is found this late


class PoolExecutions:
    """Has code run in sessions of pools, and reads what came of it."""

    def __init__(self, log: Log, sessions: Sessions, intake: Intake, notifier: Notifier) -> None:
        self._log = log
        self._sessions = sessions
        self._intake = intake
        self._notifier = notifier

    async def begin(self, session: Session, request: ExecutionRequest, code: str) -> int:
        """Accept an execution, and say where in the log it is. One whose id is known is not begun again.

        :raises IdempotencyMismatch: the same id with another request :raises QueueFull: :raises NotFound:
        """
        asked = msgspec.to_builtins(request)
        content = [{"type": "text", "text": code}]
        fields = {"content": content, FIELD: asked}
        draft = Draft.of_fields("user.message", input_id(session.id, request.id), fields)
        mark = blake2b(draft.body, digest_size=16).hexdigest()
        receipt = Receipt(f"execution:{request.id}", mark)
        accepted = await self._intake.accept(session.id, [draft], [receipt])
        return accepted.entries[0].seq

    async def finished(self, session_id: str, execution_id: str) -> ExecutionResult | None:
        """What came of an execution; None: it is not over. :raises NotFound: there is none"""
        asked = input_id(session_id, execution_id)
        if (result := await self._answer(session_id, asked)) is not None:
            return result
        at = await self._log.seq_of(session_id, asked)
        if at is None:
            raise NotFound(f"execution {execution_id[:100]} was not found")
        for entry in await self._log.read(session_id, at - 1, 1):
            if entry.withdrawn:
                return _stopped(execution_id)
        return None

    async def told(self, session_id: str, execution_id: str) -> ExecutionResult | None:
        """The same; of one that will never be answered, as its session rests, why. :raises NotFound: there is none"""
        result = await self.finished(session_id, execution_id)
        if result is not None or not await self._rests(session_id):
            return result
        result = await self.finished(session_id, execution_id)  # it may have been answered just now
        if result is None:
            error = ExecutionError("SandboxFailed", await self._why(session_id))
            result = ExecutionResult(status="aborted", error=error)
            return explained(ExecutionRequest(id=execution_id), result)
        return result

    async def result(self, session_id: str, execution_id: str, at: int) -> ExecutionResult:
        """Wait for what comes of an execution that is there in the log. Only what follows is read, however much
        was run before.

        :raises SandboxFailed: nothing will come :raises NotFound: the session was deleted
        """
        asked = input_id(session_id, execution_id)
        with self._notifier.subscribe(session_id) as subscription:
            while True:
                while page := await self._log.read(session_id, at, _PAGE, _PAGE_BYTES):
                    for entry in page:
                        result = _told(entry, asked, execution_id)
                        if result is not None:
                            return result
                    at = page[-1].seq
                session = await self._sessions.find(session_id)
                if session.state.head > at:
                    continue  # something was written between the two looks
                if session.state.status in (Status.IDLE, Status.TERMINATED):
                    raise SandboxFailed(await self._why(session_id))
                await subscription.until_notified(_LOOK_AGAIN)

    async def _rests(self, session_id: str) -> bool:
        session = await self._sessions.find(session_id)
        return session.state.status in (Status.IDLE, Status.TERMINATED)

    async def _answer(self, session_id: str, asked: str) -> ExecutionResult | None:
        at = await self._log.seq_of(session_id, answer_id(asked))
        if at is None:
            return None
        [entry] = await self._log.read(session_id, at - 1, 1)
        return result_in(entry)

    async def _why(self, session_id: str) -> str:
        query = EventQuery(types=["session.error"], order="desc", limit=1)
        for entry in await self._log.page(session_id, query):
            return str(entry.fields["error"].get("message", ""))
        return "the execution was not begun"


def _told(entry: Entry, asked: str, execution_id: str) -> ExecutionResult | None:
    """What an entry says of an execution, if it is its answer, or says that it was withdrawn."""
    if entry.id == answer_id(asked):
        return result_in(entry)
    return _stopped(execution_id) if entry.id == asked and entry.withdrawn else None


def _stopped(execution_id: str) -> ExecutionResult:
    return explained(ExecutionRequest(id=execution_id), ExecutionResult(status="stopped"))


def input_id(session_id: str, execution_id: str) -> str:
    """The id of the event that asks for an execution."""
    named = f"{session_id} {execution_id}".encode()
    return f"sevt_{blake2b(named, digest_size=13).hexdigest()}"
