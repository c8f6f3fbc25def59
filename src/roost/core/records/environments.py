"""Environments: created, changed in place, archived, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from roost.core.access.permissions import check_owner
from roost.domain import environment
from roost.errors import EnvironmentArchived, EnvironmentNotFound, NotFound
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.keys import Key


class EnvironmentPackages(Protocol):
    """Installs the packages of environments."""

    async def check(self, environment: Mapping[str, Any]) -> None:
        """:raises FieldNotServed: they cannot be installed here, naming the manager
        :raises SandboxUnavailable: nobody can say now
        """
        ...

    async def build_ahead(self, tenant: str, environment: Mapping[str, Any]) -> None:
        """Begin to install what the sessions of a tenant's environment will need. Never fails."""
        ...


class Environments:
    """Environments are changed in place; their names are unique among those not archived.

    `choices` are what of this server they may name.
    """

    def __init__(
        self,
        catalog: Catalog,
        choices: environment.EnvironmentChoices,
        packages: EnvironmentPackages,
    ) -> None:
        self._catalog = catalog
        self._choices = choices
        self._packages = packages

    async def create(self, caller: Key, params: Mapping[str, Any]) -> Record:
        """A new environment, the caller's.

        :raises InvalidRequest: naming the field :raises Conflict: its name
        :raises SandboxUnavailable: nobody can say now whether its packages can be installed
        """
        body = environment.created(params, self._choices)
        await self._packages.check(body)
        made = await self._catalog.add(
            "environment",
            caller.tenant,
            mint("env"),
            body,
            unique_name=True,
            created_by=caller.principal,
            ceiling=caller.trust_ceiling,
        )
        await self._packages.build_ahead(caller.tenant, body)
        return made

    async def get(self, tenant: str, environment_id: str) -> Record:
        """The environment of that id, if it is the tenant's.

        :raises EnvironmentNotFound: absent, or another tenant's
        """
        try:
            return await self._catalog.get("environment", tenant, environment_id)
        except NotFound:
            raise EnvironmentNotFound(f"environment {environment_id} was not found") from None

    async def page(self, query: RecordQuery) -> list[Record]:
        """A page of environments."""
        return await self._catalog.page(query)

    async def update(self, caller: Key, environment_id: str, params: Mapping[str, Any]) -> Record:
        """Change what is given; sandboxes made from now on have it.

        :raises EnvironmentNotFound: :raises NotTheOwner: :raises EnvironmentArchived: :raises InvalidRequest:
        :raises SandboxUnavailable: nobody can say now whether its new packages can be installed
        """

        def change(record: Record) -> dict[str, Any]:
            if record.archived_at is not None:
                raise EnvironmentArchived(
                    f"environment {environment_id} is archived and cannot be updated"
                )
            return environment.updated(record.body, params, self._choices)

        found = await self.get(caller.tenant, environment_id)
        check_owner(caller, found)
        wanted = change(found)
        if _system_of(wanted) != _system_of(found.body):
            await self._packages.check(wanted)
        changed = await self._catalog.change(
            "environment",
            caller.tenant,
            environment_id,
            change,
            unique_name=True,
            ceiling=caller.trust_ceiling,
        )
        await self._packages.build_ahead(caller.tenant, changed.body)
        return changed

    async def archive(self, caller: Key, environment_id: str) -> Record:
        """No new sessions on it; one way. :raises EnvironmentNotFound: :raises NotTheOwner:"""
        check_owner(caller, await self.get(caller.tenant, environment_id))
        return await self._catalog.archive("environment", caller.tenant, environment_id)

    async def delete(self, caller: Key, environment_id: str) -> None:
        """Remove an environment that no session uses.

        :raises EnvironmentNotFound:
        :raises NotTheOwner:
        :raises Conflict: a session uses it
        """
        check_owner(caller, await self.get(caller.tenant, environment_id))
        await self._catalog.delete("environment", caller.tenant, environment_id)


def _system_of(body: Mapping[str, Any]) -> tuple[Any, str | None]:
    """What its sandboxes are to have installed, and over which image."""
    return body["config"].get("packages"), environment.image_of(body)
