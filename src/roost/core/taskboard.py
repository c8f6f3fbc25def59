"""Tasks: kept, changed, and changed by the agents that work on them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from roost.core.access import check_owner, may_see
from roost.core.intake import Intake
from roost.domain import task
from roost.domain.events import Draft, Entry
from roost.domain.ids import mint
from roost.domain.session import Session
from roost.errors import Conflict, InvalidRequest, NotFound
from roost.ports.bell import Bell
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.keys import Key
from roost.ports.log import EventQuery, Log, Receipt

_MOST_CALLS: Final = 200


def topic(task_id: str) -> str:
    """The topic that is rung when somebody has changed a task."""
    return f"task:{task_id}"


class Taskboard:
    """The tasks of all tenants."""

    def __init__(self, catalog: Catalog, bell: Bell) -> None:
        self._catalog = catalog
        self._bell = bell

    async def create(self, caller: Key, params: Mapping[str, Any]) -> Record:
        """A new task, the caller's."""
        return await self._catalog.add(
            "task",
            caller.tenant,
            mint("task"),
            task.created(params),
            unique_name=False,
            created_by=caller.principal,
            ceiling=caller.trust_ceiling,
        )

    async def seen(self, caller: Key, task_id: str) -> Record:
        """A task that the caller may see. :raises NotFound: absent, or not the caller's to see"""
        record = await self.get(caller.tenant, task_id)
        if not may_see(caller, record.created_by):
            raise NotFound(f"task {task_id} was not found")
        return record

    async def get(self, tenant: str, task_id: str) -> Record:
        """For the server itself; requests ask for `seen`. :raises NotFound: absent, or another tenant's"""
        try:
            return await self._catalog.get("task", tenant, task_id)
        except NotFound:
            raise NotFound(f"task {task_id} was not found") from None

    async def page(self, caller: Key, query: RecordQuery) -> list[Record]:
        """A page of those that the caller may see."""
        own = None if may_see(caller, "") else caller.principal
        return await self._catalog.page(replace(query, created_by=own))

    async def update(self, caller: Key, task_id: str, params: Mapping[str, Any]) -> Record:
        """Change what is given.

        :raises NotFound: :raises NotTheOwner: :raises Conflict: its status, while it runs
        """
        check_owner(caller, await self.seen(caller, task_id))
        record = await self._catalog.change(
            "task",
            caller.tenant,
            task_id,
            lambda record: task.updated(record.body, params),
            ceiling=caller.trust_ceiling,
        )
        self._bell.ring(topic(task_id))
        return record

    async def apply(
        self, session: Session, task_id: str, event_id: str, fields: Mapping[str, str]
    ) -> Record:
        """What its agent changes by one call, once. :raises NotFound:"""
        return await self._catalog.change(
            "task",
            session.tenant,
            task_id,
            lambda record: task.applied(record.body, event_id, fields),
            ceiling=session.spec.trust_level,  # a later run with more trust is not to be told what to do by it
        )

    async def delete(self, caller: Key, task_id: str) -> None:
        """:raises NotFound: :raises NotTheOwner: :raises Conflict: it runs"""
        record = await self.seen(caller, task_id)
        check_owner(caller, record)
        if record.body["status"] == "running":
            raise Conflict("the task is running", hint="Interrupt its session first.")
        await self._catalog.delete("task", caller.tenant, task_id)


class Errands:
    """Carries out the calls that an agent makes to the server itself.

    Called by the runner before its session rests. So a call that was logged is answered, whatever
    crashes in between: the session is still running, is claimed again, and this is done again. The
    change counts once (by the call's event), and so does the answer (by its receipt).
    """

    def __init__(self, log: Log, intake: Intake, board: Taskboard) -> None:
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
        draft = Draft.of("user.custom_tool_result", custom_tool_use_id=call.id, **said)
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
