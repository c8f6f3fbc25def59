"""Pools: created, changed, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roost.core.access.permissions import check_owner
from roost.core.records.environments import Environments
from roost.domain import pool
from roost.errors import NotFound
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.keys import Key
from roost.ports.notifier import Notifier

KIND: Final = "pool"
CHANGED: Final = "pools"
"""The topic that is notified when a pool was changed."""
_ALWAYS: Final = 1  # since when a pool is due that has something kept ready: it stays due


class Pools:
    """The pools of all tenants, by their names, which are unique within a tenant."""

    def __init__(self, catalog: Catalog, environments: Environments, notifier: Notifier) -> None:
        self._catalog = catalog
        self._environments = environments
        self._notifier = notifier

    async def create(self, caller: Key, params: Mapping[str, Any]) -> Record:
        """A new pool. :raises InvalidRequest: naming the field :raises Conflict: its name :raises NotFound:"""
        body = pool.created(params)
        await self._environments.get(caller.tenant, body["environment_id"])
        made = await self._catalog.add(
            KIND,
            caller.tenant,
            mint("pool"),
            body,
            unique_name=True,
            created_by=caller.principal,
            ceiling=caller.trust_ceiling,
            due_at=_due(body),
        )
        self._notifier.notify(CHANGED)
        return made

    async def named(self, tenant: str, name: str) -> Record:
        """The pool of that name, if it is the tenant's. :raises NotFound: absent, or another tenant's"""
        found = await self._catalog.named(KIND, tenant, name) if "\0" not in name else None
        if found is None:
            raise NotFound(f"pool {name[:100]} was not found")
        return found

    async def of(self, tenant: str, pool_id: str) -> Record | None:
        """The pool of that id; None: it is gone."""
        try:
            return await self._catalog.get(KIND, tenant, pool_id)
        except NotFound:
            return None

    async def page(self, query: RecordQuery) -> list[Record]:
        """A page of pools."""
        return await self._catalog.page(query)

    async def update(self, caller: Key, name: str, params: Mapping[str, Any]) -> Record:
        """Change what is given; it holds for identifiers that are used from now on.

        :raises NotFound: :raises NotTheOwner: :raises InvalidRequest:
        """
        found = await self.named(caller.tenant, name)
        check_owner(caller, found)
        if "environment_id" in params:
            await self._environments.get(caller.tenant, params["environment_id"])
        changed = await self._catalog.change(
            KIND,
            caller.tenant,
            found.id,
            lambda record: pool.updated(record.body, params),
            ceiling=caller.trust_ceiling,
            due_at=_due(pool.updated(found.body, params)),
        )
        self._notifier.notify(CHANGED)
        return changed

    async def delete(self, caller: Key, name: str) -> Record:
        """Remove it: nobody can use it from now on; what it has left is removed by `PoolSessions`.

        :raises NotFound: :raises NotTheOwner:
        """
        found = await self.named(caller.tenant, name)
        check_owner(caller, found)
        await self._catalog.delete(KIND, caller.tenant, found.id)
        self._notifier.notify(CHANGED)
        return found


def _due(body: pool.Body) -> int | None:
    return _ALWAYS if body["ready_sessions"] else None
