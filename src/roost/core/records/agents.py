"""Agents: created, versioned, archived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roost.core.access.permissions import check_owner
from roost.core.records.skills import Skills
from roost.domain import agent
from roost.domain.environment import RESERVED
from roost.domain.upstream import Upstreams
from roost.errors import InvalidRequest, NotFound
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.keys import Key


class Agents:
    """Agents have versions; a session keeps the one it was created with."""

    def __init__(self, catalog: Catalog, skills: Skills | None, upstreams: Upstreams) -> None:
        self._catalog = catalog
        self._skills = skills
        self._upstreams = upstreams

    async def pinned(
        self, tenant: str, params: Mapping[str, Any], at: str = ""
    ) -> Mapping[str, Any]:
        """The params with the versions that the skills in them now stand for.

        :raises InvalidRequest: a skill does not exist
        """
        if self._skills is None or not params.get("skills"):
            return params
        skills = await self._skills.pinned(tenant, params["skills"], f"{at}skills")
        return {**params, "skills": skills}

    async def create(self, caller: Key, params: Mapping[str, Any]) -> Record:
        """A new agent at version 1, the caller's.

        :raises InvalidRequest: naming the field :raises ModelNotServed: no server has its model
        """
        _check_metadata(params.get("metadata") or {})
        body = agent.created(await self.pinned(caller.tenant, params))
        self._upstreams.check(body["model"]["id"])
        return await self._catalog.add(
            "agent",
            caller.tenant,
            mint("agent"),
            body,
            unique_name=False,
            created_by=caller.principal,
            ceiling=caller.trust_ceiling,
        )

    async def get(self, tenant: str, agent_id: str, version: int | None = None) -> Record:
        """The newest version, or the one asked for. :raises NotFound:"""
        try:
            return await self._catalog.get("agent", tenant, agent_id, version)
        except NotFound:
            which = agent_id if version is None else f"{agent_id} version {version}"
            raise NotFound(f"agent {which} was not found") from None

    async def page(self, query: RecordQuery) -> list[Record]:
        """A page of agents at their newest versions."""
        return await self._catalog.page(query)

    async def versions(
        self, tenant: str, agent_id: str, *, before: int | None, limit: int
    ) -> list[Record]:
        """An agent's versions below `before`, newest first. :raises NotFound:"""
        await self.get(tenant, agent_id)
        return await self._catalog.versions("agent", tenant, agent_id, before=before, limit=limit)

    async def update(self, caller: Key, agent_id: str, params: Mapping[str, Any]) -> Record:
        """A new version, if anything changes. `version` in the params guards against overwriting.

        :raises NotFound: :raises NotTheOwner: :raises InvalidRequest: archived, or a field that is wrong
        :raises ModelNotServed: no server has its new model
        :raises Conflict: the version is another one by now
        """

        _check_metadata(params.get("metadata") or {})

        def change(record: Record) -> dict[str, Any]:
            if record.archived_at is not None:
                raise InvalidRequest(f"agent {agent_id} is archived and cannot be updated")
            body = agent.updated(record.body, params)
            if body["model"] != record.body["model"]:  # what it has may have been served once
                self._upstreams.check(body["model"]["id"])
            return body

        check_owner(caller, await self.get(caller.tenant, agent_id))
        params = await self.pinned(caller.tenant, params)
        return await self._catalog.change(
            "agent",
            caller.tenant,
            agent_id,
            change,
            expected=params.get("version"),
            ceiling=caller.trust_ceiling,
        )

    async def archive(self, caller: Key, agent_id: str) -> Record:
        """One way; again: the same answer. :raises NotFound: :raises NotTheOwner:"""
        check_owner(caller, await self.get(caller.tenant, agent_id))
        return await self._catalog.archive("agent", caller.tenant, agent_id)


def _check_metadata(metadata: Mapping[str, str | None]) -> None:
    """Refuse a key of ours that means nothing, which nobody would notice. :raises InvalidRequest:"""
    for key in metadata:
        if key.startswith(RESERVED) and key != agent.HARNESS:
            raise InvalidRequest(f"metadata.{key}: unknown; `{RESERVED}` is reserved")
