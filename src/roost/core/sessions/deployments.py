"""Deployments: made, changed, paused, archived. Their runs are in `deployment_runs.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from roost.core.access.permissions import check_owner, may_see
from roost.core.records.timetable import SCHEDULES, Times, Timetable
from roost.core.sessions.lifecycle import Lifecycle
from roost.domain import deployment
from roost.domain.deployment import Body
from roost.domain.events import Draft
from roost.errors import InvalidRequest, NotFound
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.notifier import Notifier

_STEP = 100


class Deployments:
    """The deployments of all tenants."""

    def __init__(
        self, catalog: Catalog, lifecycle: Lifecycle, notifier: Notifier, timetable: Timetable
    ) -> None:
        self._catalog = catalog
        self._lifecycle = lifecycle
        self._notifier = notifier
        self._timetable = timetable

    async def create(self, caller: Key, params: Mapping[str, Any]) -> Record:
        """A new deployment, the caller's. All that a session of it would be refused for is refused now.

        :raises InvalidRequest: naming the field :raises NotFound: what it names
        :raises Forbidden: more trust than the key may ask for
        """
        made = mint("depl")
        params = self._sealed(caller, made, params)
        body = deployment.created(
            params, {"type": "agent", **_reference(params["agent"])}, caller.id
        )
        body["agent"] = await self._checked(caller, body)
        record = await self._catalog.add(
            "deployment",
            caller.tenant,
            made,
            body,
            unique_name=False,
            created_by=caller.principal,
            ceiling=caller.trust_ceiling,
            due_at=self._timetable.due(body),
        )
        self._notifier.notify(SCHEDULES)
        return record

    async def seen(self, caller: Key, deployment_id: str) -> Record:
        """One that the caller may see. :raises NotFound: absent, or not the caller's to see"""
        record = await self.get(caller.tenant, deployment_id)
        if not may_see(caller, record.created_by):
            raise _absent(deployment_id)
        return record

    async def get(self, tenant: str, deployment_id: str) -> Record:
        """For the server itself; requests ask for `seen`. :raises NotFound: absent, or another tenant's"""
        try:
            return await self._catalog.get("deployment", tenant, deployment_id)
        except NotFound:
            raise _absent(deployment_id) from None

    async def page(
        self, caller: Key, query: RecordQuery, agent_id: str | None, status: str | None
    ) -> list[Record]:
        """A page of those that the caller may see; only of an agent, or with a status, if that is given."""
        own = None if may_see(caller, "") else caller.principal
        found: list[Record] = []
        asked = replace(query, created_by=own, limit=max(query.limit, _STEP))
        while True:
            some = await self._catalog.page(asked)
            found += [each for each in some if _fits(each, agent_id, status)]
            if len(found) >= query.limit or len(some) < asked.limit:
                return found[: query.limit]
            asked = replace(asked, after=some[-1].id)

    async def times(self, records: Sequence[Record]) -> list[Times]:
        """When each has run, and runs next."""
        return await self._timetable.times(records)

    async def update(self, caller: Key, deployment_id: str, params: Mapping[str, Any]) -> Record:
        """Change what is given, for the runs to come.

        :raises NotFound: :raises NotTheOwner: :raises InvalidRequest: archived, or naming the field
        """
        before = await self._owned(caller, deployment_id)
        params = self._sealed(caller, deployment_id, params)
        agent = params.get("agent")
        reference = None if agent is None else {"type": "agent", **_reference(agent)}
        after = deployment.updated(before.body, params, reference)
        pinned = await self._checked(caller, after)

        def change(record: Record) -> Body:
            body = deployment.updated(record.body, params, pinned if agent is not None else None)
            # Whoever it acts for may have another key by now.
            return {**body, "key_id": caller.id} if caller.principal == record.created_by else body

        due_at = self._timetable.due(after) if "schedule" in params else UNSET
        record = await self._catalog.change(
            *("deployment", caller.tenant, deployment_id, change),
            ceiling=caller.trust_ceiling,
            due_at=due_at,
        )
        self._notifier.notify(SCHEDULES)
        return record

    async def pause(self, caller: Key, deployment_id: str) -> Record:
        """Start nothing by itself; again: the same answer. :raises NotFound: :raises NotTheOwner: :raises InvalidRequest:"""
        await self._owned(caller, deployment_id)

        def change(record: Record) -> Body:
            reason = record.body["paused_reason"] or {"type": "manual"}
            return deployment.paused(record.body, reason)

        return await self._catalog.change(
            "deployment", caller.tenant, deployment_id, change, due_at=None
        )

    async def unpause(self, caller: Key, deployment_id: str) -> Record:
        """Go on with the next time; what came meanwhile is not made up for. Raises as `pause`."""
        record = await self._owned(caller, deployment_id)
        if record.body["paused_reason"] is None:
            return record

        def change(record: Record) -> Body:
            return deployment.paused(record.body, None)

        due_at = self._timetable.due({**record.body, "paused_reason": None})
        record = await self._catalog.change(
            "deployment", caller.tenant, deployment_id, change, due_at=due_at
        )
        self._notifier.notify(SCHEDULES)
        return record

    async def archive(self, caller: Key, deployment_id: str) -> Record:
        """One way, and its tokens go; again: the same answer. :raises NotFound: :raises NotTheOwner:"""
        check_owner(caller, await self.seen(caller, deployment_id))
        return await self._catalog.archive(
            "deployment", caller.tenant, deployment_id, lambda record: deployment.ended(record.body)
        )

    async def _owned(self, caller: Key, deployment_id: str) -> Record:
        record = await self.seen(caller, deployment_id)
        check_owner(caller, record)
        if record.archived_at is not None:
            raise InvalidRequest(f"deployment {deployment_id} is archived and cannot be changed")
        return record

    def _sealed(
        self, caller: Key, deployment_id: str, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """What is asked for, with the tokens of its repositories sealed."""
        if not params.get("resources"):
            return params
        kept = self._lifecycle.given.sealed(caller.tenant, deployment_id, params["resources"])
        return {**params, "resources": kept}

    async def _checked(self, caller: Key, body: Body) -> Body:
        """The agent at the version that is meant now, if a session could be made so. Raises as `create`."""
        self._timetable.check(body)
        asked = deployment.session_params("", body, body["agent"])
        spec = await self._lifecycle.specs.of(caller, asked)
        self._lifecycle.specs.choice.check_inputs(spec.harness, drafts_of(body), "initial_events")
        self._lifecycle.given.check(spec, body["resources"])
        await self._lifecycle.given.look(caller, body["resources"])
        return {"type": "agent", "id": spec.agent["id"], "version": spec.agent["version"]}


def drafts_of(body: Body) -> list[Draft]:
    """The first inputs of a session of it."""
    return [
        new_draft(each["type"], **{name: each[name] for name in each if name != "type"})
        for each in body["initial_events"]
    ]


def _reference(agent: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"id": agent} if isinstance(agent, str) else dict(agent)


def _fits(record: Record, agent_id: str | None, status: str | None) -> bool:
    shown = "active" if record.body["paused_reason"] is None else "paused"
    return agent_id in (None, record.body["agent"]["id"]) and status in (None, shown)


def _absent(deployment_id: str) -> NotFound:
    return NotFound(f"deployment {deployment_id} was not found")
