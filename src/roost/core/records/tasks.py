"""Tasks: kept, changed, and changed by the agents that work on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from roost.core.access.permissions import check_owner, may_see
from roost.domain import task
from roost.domain.session import Session
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

    def __init__(self, catalog: Catalog, notifier: Notifier) -> None:
        self._catalog = catalog
        self._notifier = notifier

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
        self._notifier.notify(topic(task_id))
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
        """Remove a task that does not run.

        :raises NotFound:
        :raises NotTheOwner:
        :raises Conflict: it runs
        """
        record = await self.seen(caller, task_id)
        check_owner(caller, record)
        if record.body["status"] == "running":
            raise Conflict("the task is running", hint="Interrupt its session first.")
        await self._catalog.delete("task", caller.tenant, task_id)
