"""Which workers have asked for work lately: a record for each, which is due when it was not heard of for long."""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import suppress
from typing import Final

from roost.domain.events import Micros
from roost.errors import Conflict, NotFound, QuotaExceeded
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery

_LATELY: Final[Micros] = 30_000_000
_NOTED_EVERY: Final[Micros] = 10_000_000  # each poll would be a write otherwise
_REMEMBERED: Final = 10_000
_PAGE: Final = 100


class WorkerPresence:
    """Notes polls of workers, by the ids that they give themselves."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._noted: OrderedDict[tuple[str, str], Micros] = OrderedDict()

    async def saw(self, tenant: str, environment_id: str, worker: str) -> None:
        """A worker has polled. One without an id is not counted."""
        now = _now()
        if not worker or self._noted.get((environment_id, worker), 0) + _NOTED_EVERY > now:
            return
        self._noted[environment_id, worker] = now
        if len(self._noted) > _REMEMBERED:
            self._noted.popitem(last=False)
        kind, due = _kind(environment_id), now + _LATELY
        found = await self._catalog.named(kind, tenant, worker)
        with suppress(Conflict, NotFound, QuotaExceeded):  # it is counted with its next poll
            if found is None:
                await self._catalog.add(
                    kind, tenant, mint("wrk"), {"name": worker}, unique_name=True, due_at=due
                )
            else:
                await self._catalog.change(
                    kind, tenant, found.id, lambda record: record.body, due_at=due
                )
        for old in await self._catalog.due(kind, now, limit=_PAGE):
            await self._delete(old)

    async def count(self, tenant: str, environment_id: str) -> int:
        """How many have polled in the last 30 seconds."""
        now, count, after = _now(), 0, None
        while True:
            query = RecordQuery(kind=_kind(environment_id), tenant=tenant, after=after, limit=_PAGE)
            page = await self._catalog.page(query)
            count += sum((record.due_at or 0) > now for record in page)
            if len(page) < _PAGE:
                return count
            after = page[-1].id

    async def forget(self, tenant: str, environment_id: str) -> None:
        """The environment is gone."""
        while page := await self._catalog.page(
            RecordQuery(kind=_kind(environment_id), tenant=tenant, limit=_PAGE)
        ):
            for record in page:
                await self._delete(record)

    async def _delete(self, record: Record) -> None:
        with suppress(NotFound):
            await self._catalog.delete(record.kind, record.tenant, record.id)


def _kind(environment_id: str) -> str:
    return f"worker:{environment_id}"


def _now() -> Micros:
    return time.time_ns() // 1000
