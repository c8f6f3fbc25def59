"""Tasks: kept, changed, and changed by the agents that work on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from roost.core.access.permissions import check_owner, may_see
from roost.core.records.timetable import SCHEDULES, Times, Timetable
from roost.domain import task
from roost.domain.events import Micros
from roost.domain.session import Session, TrustLevel
from roost.errors import Conflict, NotFound
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.keys import Key
from roost.ports.notifier import Notifier

_MOST_CALLS: Final = 200


def topic(task_id: str) -> str:
    """The topic that is notified when somebody has changed a task."""
    return f"task:{task_id}"


class Tasks:
    """The tasks of all tenants."""

    def __init__(self, catalog: Catalog, notifier: Notifier, timetable: Timetable) -> None:
        self._catalog = catalog
        self._notifier = notifier
        self._timetable = timetable

    async def create(self, caller: Key, params: Mapping[str, Any]) -> Record:
        """A new task, the caller's. :raises InvalidRequest: naming the field of its schedule"""
        body = task.created(params, caller.id)
        self._check(body)
        record = await self._catalog.add(
            "task",
            caller.tenant,
            mint("task"),
            body,
            unique_name=False,
            created_by=caller.principal,
            ceiling=caller.trust_ceiling,
            due_at=self._timetable.due(body),
        )
        self._notifier.notify(SCHEDULES)
        return record

    async def seen(self, caller: Key, task_id: str) -> Record:
        """A task that the caller may see. :raises NotFound: absent, or not the caller's to see"""
        record = await self.get(caller.tenant, task_id)
        if not may_see(caller, record.created_by):
            raise NotFound(f"task {task_id} was not found")
        return record

    async def get(self, tenant: str, task_id: str) -> Record:
        """For the server itself; requests ask for `seen`. :raises NotFound: absent, or another tenant's"""
        try:
            return _whole(await self._catalog.get("task", tenant, task_id))
        except NotFound:
            raise NotFound(f"task {task_id} was not found") from None

    async def page(self, caller: Key, query: RecordQuery) -> list[Record]:
        """A page of those that the caller may see."""
        own = None if may_see(caller, "") else caller.principal
        found = await self._catalog.page(replace(query, created_by=own))
        return [_whole(record) for record in found]

    async def times(self, records: Sequence[Record]) -> list[Times]:
        """When each has run by its schedule, and runs next."""
        return await self._timetable.times(records)

    async def update(self, caller: Key, task_id: str, params: Mapping[str, Any]) -> Record:
        """Change what is given.

        :raises NotFound: :raises NotTheOwner: :raises Conflict: its status, while it runs
        :raises InvalidRequest: naming the field of its schedule
        """
        before = await self._owned(caller, task_id)
        after = task.updated(before.body, params)
        self._check(after)

        def change(record: Record) -> task.Body:
            body = task.updated(task.whole(record.body), params)
            task.check_schedule(body)
            # Whoever it acts for may have another key by now.
            own = caller.principal == record.created_by or body["key_id"] is None
            return {**body, "key_id": caller.id} if own else body

        due_at = self._timetable.due(after) if "schedule" in params else UNSET
        return await self._change(caller, task_id, change, due_at, caller.trust_ceiling)

    async def pause(self, caller: Key, task_id: str) -> Record:
        """Start nothing by itself; again: the same answer. :raises NotFound: :raises NotTheOwner:"""
        await self._owned(caller, task_id)

        def change(record: Record) -> task.Body:
            body = task.whole(record.body)
            return task.paused(body, body["paused_reason"] or {"type": "manual"})

        return await self._change(caller, task_id, change, None)

    async def unpause(self, caller: Key, task_id: str) -> Record:
        """Go on with the next time; what came meanwhile is not made up for. Raises as `pause`."""
        record = await self._owned(caller, task_id)
        due_at = self._timetable.due(task.paused(record.body, None))

        def change(record: Record) -> task.Body:
            return task.paused(task.whole(record.body), None)

        return await self._change(caller, task_id, change, due_at)

    async def _owned(self, caller: Key, task_id: str) -> Record:
        record = await self.seen(caller, task_id)
        check_owner(caller, record)
        return record

    def _check(self, body: task.Body) -> None:
        task.check_schedule(body)
        self._timetable.check(body)

    async def _change(
        self,
        caller: Key,
        task_id: str,
        change: Callable[[Record], task.Body],
        due_at: Micros | UnsetType | None,
        ceiling: TrustLevel | None = None,
    ) -> Record:
        record = await self._catalog.change(
            "task", caller.tenant, task_id, change, ceiling=ceiling, due_at=due_at
        )
        self._notifier.notify(topic(task_id))
        self._notifier.notify(SCHEDULES)
        return _whole(record)

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
        """Remove a task that does not run.

        :raises NotFound:
        :raises NotTheOwner:
        :raises Conflict: it runs
        """
        record = await self._owned(caller, task_id)
        if record.body["status"] == "running":
            raise Conflict("the task is running", hint="Interrupt its session first.")
        await self._catalog.delete("task", caller.tenant, task_id)


def _whole(record: Record) -> Record:
    return replace(record, body=task.whole(record.body))
