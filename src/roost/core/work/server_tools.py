"""Calls that an agent makes to the server itself, carried out before its session rests."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec

from roost.core.records.tasks import Tasks
from roost.core.write.intake import Intake
from roost.domain import task
from roost.domain.events import Entry
from roost.domain.session import Session
from roost.errors import InvalidRequest, NotFound
from roost.ports.drafts import new_draft
from roost.ports.log import EventQuery, Log, Receipt

_MOST_CALLS: Final = 200


class ServerTools:
    """Carries out the calls that an agent makes to the server itself.

    Called by the runner before its session rests. So a call that was logged is answered, whatever
    crashes in between: the session is still running, is claimed again, and this is done again. The
    change counts once (by the call's event), and so does the answer (by its receipt).
    """

    def __init__(self, log: Log, intake: Intake, board: Tasks) -> None:
        self._log = log
        self._intake = intake
        self._board = board

    async def carry_out(self, session: Session) -> bool:
        """Whether there was something to do."""
        waiting = {p.event_id for p in session.state.pending if p.kind == "custom_tool"}
        if session.spec.task_id is None or not waiting:
            return False
        query = EventQuery(types=["agent.custom_tool_use"], order="desc", limit=_MOST_CALLS)
        calls = [
            entry
            for entry in await self._log.page(session.id, query)
            if entry.id in waiting and entry.fields["name"] == task.TOOL["name"]
        ]
        for call in reversed(calls):
            await self._answer(session, session.spec.task_id, call)
        return bool(calls)

    async def _answer(self, session: Session, task_id: str, call: Entry) -> None:
        said = await self._result(session, task_id, call)
        draft = new_draft("user.custom_tool_result", custom_tool_use_id=call.id, **said)
        with suppress(InvalidRequest):  # a client has answered it, or interrupted: it waits no more
            await self._intake.accept(session.id, [draft], [Receipt(f"task:{call.id}", "")])

    async def _result(self, session: Session, task_id: str, call: Entry) -> dict[str, Any]:
        fields = task.fields_in(call.fields["input"])
        if isinstance(fields, str):
            return _said(fields, is_error=True)
        try:
            record = await self._board.apply(session, task_id, call.id, fields)
        except NotFound:
            return _said("The task was deleted.", is_error=True)
        body = record.body
        shown = {name: body[name] for name in (*task.FIELDS, "status")}
        text = msgspec.json.encode({"updated": sorted(fields)}).decode()
        return _said(text) | {"task": {"taskId": task_id, **shown}}


def _said(text: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "is_error": is_error}
