"""Runs of deployments. A run is followed to its session's rest only if the deployment says what is to happen
meanwhile (`overlap`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from roost.core.access.permissions import may_see
from roost.core.sessions.deployments import Deployments, drafts_of
from roost.core.sessions.scheduled_runs import (
    LEASE_SECONDS,
    Consequence,
    RunParts,
    ScheduledRuns,
    rests,
)
from roost.domain import deployment
from roost.domain.deployment import Body, Fault
from roost.domain.events import Micros
from roost.domain.schedule import SECOND
from roost.domain.session import Session
from roost.errors import InvalidRequest, NotFound
from roost.ids import mint
from roost.ports.catalog import Kind, Record
from roost.ports.keys import Key
from roost.ports.log import Receipt
from roost.ports.runs import Run, RunQuery


class DeploymentRuns(ScheduledRuns):
    """Starts sessions for deployments."""

    kind: ClassVar[Kind] = "deployment"
    prefix: ClassVar[str] = "drun"
    follow_again: ClassVar[Micros] = 5 * SECOND

    def __init__(self, deployments: Deployments, parts: RunParts) -> None:
        super().__init__(parts)
        self._deployments = deployments

    async def start(self, caller: Key, deployment_id: str, key: str | None) -> Run:
        """A run by hand, also of a deployment that is paused. With a known idempotency key, the one begun then.

        :raises NotFound: :raises InvalidRequest: it is archived
        """
        record = await self._deployments.seen(caller, deployment_id)
        if record.archived_at is not None:
            raise InvalidRequest(f"deployment {deployment_id} is archived and runs no more")
        slot = f"manual:{mint('drun')}" if key is None else f"key:{caller.principal} {key}"
        look_at = self._clock() + LEASE_SECONDS * SECOND
        who = (caller.id, caller.principal, caller.trust_ceiling)
        run = await self._runs.begin(self.new_run(record, slot, *who, look_at=look_at))
        if run.state == "open":
            await self.advance(run)
        return await self._runs.get(self.kind, caller.tenant, run.id)

    async def seen(self, caller: Key, run_id: str) -> Run:
        """A run that has a session or an error, of a deployment that the caller may see. :raises NotFound:"""
        run = await self._runs.get(self.kind, caller.tenant, run_id)
        if not may_see(caller, run.created_by) or run.state not in ("started", "failed"):
            raise NotFound(f"run {run_id} was not found")
        return run

    async def page(self, caller: Key, query: RunQuery) -> list[Run]:
        """A page of those that the caller may see."""
        own = None if may_see(caller, "") else caller.principal
        return await self._runs.page(replace(query, created_by=own))

    async def record_of(self, run: Run) -> Record:
        """The deployment."""
        return await self._deployments.get(run.tenant, run.owner)

    def noted(self, record: Record) -> dict[str, Any]:
        """The agent, at the version that the deployment has now."""
        return {"agent": record.body["agent"]}

    async def look(self, caller: Key, run: Run, record: Record) -> Fault | None:
        """What the deployment refers to that is gone."""
        return await self._faults.look(caller, record.body)

    async def make(self, caller: Key, run: Run, record: Record) -> Session:
        """Its session."""
        if record.archived_at is not None:
            raise InvalidRequest("the deployment was archived before the run began")
        asked = deployment.session_params(record.id, record.body, run.body["agent"])
        kept = record.body["resources"]
        asked["resources"] = self._lifecycle.given.opened(run.tenant, record.id, kept)
        return await self._lifecycle.create(
            caller, asked, drafts_of(record.body), Receipt(f"run:{run.id}", "")
        )

    async def has_started(self, run: Run, record: Record) -> bool:
        """Over with that, unless the deployment says what happens while it works."""
        now = run.started_at
        after = replace(run, look_at=0, ended_at=now)
        if record.body["overlap"] != "allow":
            after = replace(run, look_at=self._clock() + self.follow_again)
        return await self._runs.settle(after, "open") is not None

    def has_failed(self, run: Run, fault: Fault, *, passing: bool) -> Consequence:
        """After some faults the deployment is paused; without its agent it ends."""

        def ended(record: Record) -> Body:
            return deployment.ended(record.body)

        def failed(record: Record) -> Body:
            return deployment.failed(record.body, fault)

        if fault["type"] == deployment.ENDS:
            return Consequence(change=ended, archive=True)
        lasts = run.scheduled_at is not None and not passing
        if lasts and fault["type"] in deployment.PAUSES:
            return Consequence(change=failed, pauses=True)
        return Consequence()

    async def follow(self, run: Run, record: Record, session: Session | None) -> bool:
        """It is over when its session rests."""
        now = self._clock()
        if session is None or rests(session):
            await self._runs.settle(replace(run, look_at=0, ended_at=now), "started")
            return False
        await self._runs.settle(replace(run, look_at=now + self.follow_again), "started")
        return True
