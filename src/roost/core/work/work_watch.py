"""When to look at work items: a record for each, of one kind for all environments, so that whoever looks for lost
workers asks one question.

It says when to look at the latest. What is to be done then, the item says. It is set before a worker gets the item,
so no item that somebody has is without one; heartbeats do not change it, and whoever looks too early sets it again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from roost.domain.events import Micros
from roost.domain.work_item import WorkItem
from roost.errors import Conflict, NotFound
from roost.ports.catalog import Catalog, Record

_KIND: Final = "work_watch"
_AT_ONCE: Final = 1000


class WorkWatch:
    """Notes when to look at which work item."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def set(self, tenant: str, item: WorkItem, at: Micros) -> None:
        """Have the item looked at then, whoever is about to put that off."""
        try:
            await self._advance(tenant, item, at)
        except NotFound:
            await self.ensure(tenant, item, at)
            await self._advance(tenant, item, at)  # somebody else may have added it just now

    async def ensure(self, tenant: str, item: WorkItem, at: Micros) -> None:
        """Have the item looked at then, unless it is looked at anyway."""
        body = {"name": item.name, "environment_id": item.environment_id, "set": 1}
        with suppress(Conflict):
            await self._catalog.add(
                _KIND, tenant, _id(item.name), body, unique_name=True, due_at=at
            )

    async def due(self, before: Micros) -> list[Record]:
        """The records of items to look at: each has the `name` of the item's session, and its `environment_id`."""
        return await self._catalog.due(_KIND, before, limit=_AT_ONCE)

    async def put_off(self, record: Record, at: Micros) -> None:
        """Look again then, unless it was set since the record was read."""
        with suppress(Conflict, NotFound):
            await self._catalog.change(
                _KIND,
                record.tenant,
                record.id,
                lambda record: record.body,
                expected=record.version,
                due_at=at,
            )

    async def forget(self, tenant: str, session_id: str) -> None:
        """The environment of a session's item is gone."""
        with suppress(NotFound):
            await self._catalog.delete(_KIND, tenant, _id(session_id))

    async def drop(self, record: Record) -> None:
        """The item is gone: look no more, unless it was set since the record was read."""
        with suppress(Conflict, NotFound):
            await self._catalog.delete(_KIND, record.tenant, record.id, expected=record.version)

    async def _advance(self, tenant: str, item: WorkItem, at: Micros) -> None:
        # Another version: what was read before does not put it off.
        await self._catalog.change(
            _KIND,
            tenant,
            _id(item.name),
            lambda record: {**record.body, "set": record.body["set"] + 1},
            due_at=at,
        )


def _id(session_id: str) -> str:
    return f"watch_{session_id.removeprefix('sesn_')}"
