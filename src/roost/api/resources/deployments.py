"""The resources `/v1/deployments` and `/v1/deployment_runs`: sessions made by hand or on a schedule."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, TypedDict

from msgspec.structs import replace
from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.bounds import DESCRIPTION, METADATA, NAME, PAGE_OF_100
from roost.api.framework.call import ApiCall
from roost.api.framework.paging import (
    Cursor,
    collect_page,
    page,
    record_query,
)
from roost.api.framework.query import span_of
from roost.api.framework.replies import reply, times
from roost.api.framework.resource import Resource
from roost.api.framework.runs import MissedRunsParams, run_page, schedule_view, skip_view
from roost.api.resources.session_events import drafts_of
from roost.core.records.timetable import Times
from roost.core.sessions.deployment_runs import DeploymentRuns
from roost.core.sessions.deployments import Deployments
from roost.domain.deployment import OPTIONS
from roost.domain.events import iso
from roost.domain.resource import shown
from roost.domain.schedule import Overlap
from roost.domain.session import MountScope, TrustLevel
from roost.domain.vault import MOST_VAULTS
from roost.errors import InvalidRequest
from roost.ports.catalog import Record
from roost.ports.runs import Run, RunQuery

_DEPLOYMENT = "beta.BetaManagedAgentsDeployment"
_RUN = "beta.BetaManagedAgentsDeploymentRun"
_EVENTS = Field(min_length=1, max_length=50)
_RESOURCES = Field(max_length=500)
_VAULTS = Field(max_length=MOST_VAULTS)
_SHOWN = ("started", "failed")
"""The official API shows runs that have a session or an error, and no others."""


class RunListParams(TypedDict, total=False):
    """Which runs of a deployment to list."""

    state: Literal["open", "queued", "started", "failed", "skipped"]
    limit: int
    page: str


_OWN: dict[str, Any] = {
    "trust_level": TrustLevel | None,
    "workspace": Annotated[str, Field(max_length=256)] | None,
    "mount_scope": MountScope | None,
    "harness": Annotated[str, Field(min_length=1, max_length=64)] | None,
    "sandbox_fallback": Annotated[str, Field(min_length=1, max_length=64)] | None,
    "missed_runs": MissedRunsParams,
    "overlap": Overlap,
}

RESOURCE: Final = Resource(
    bounds={
        "DeploymentCreateParams.name": NAME,
        "DeploymentCreateParams.description": DESCRIPTION,
        "DeploymentCreateParams.metadata": METADATA,
        "DeploymentCreateParams.initial_events": _EVENTS,
        "DeploymentCreateParams.resources": _RESOURCES,
        "DeploymentCreateParams.vault_ids": _VAULTS,
        "DeploymentUpdateParams.name": NAME,
        "DeploymentUpdateParams.description": DESCRIPTION,
        "DeploymentUpdateParams.initial_events": _EVENTS,
        "DeploymentUpdateParams.resources": _RESOURCES,
        "DeploymentUpdateParams.vault_ids": _VAULTS,
        "DeploymentListParams.limit": PAGE_OF_100,
        "BetaManagedAgentsScheduleParams.expression": Field(min_length=1, max_length=256),
        "BetaManagedAgentsScheduleParams.timezone": Field(min_length=1, max_length=64),
    },
    fields={"DeploymentCreateParams": _OWN, "DeploymentUpdateParams": _OWN},
)


@RESOURCE.post(
    "deployments.create", "/v1/deployments", "beta.DeploymentCreateParams", reply=_DEPLOYMENT
)
async def create(call: ApiCall, deployments: Deployments) -> ASGIApp:
    """A new deployment."""
    _check(call.body)
    record = await deployments.create(call.key, call.body)
    return reply(await _shown(deployments, record))


@RESOURCE.get(
    "deployments.list",
    "/v1/deployments",
    "beta.DeploymentListParams",
    reply=_DEPLOYMENT,
    form="page",
)
async def list_(call: ApiCall, deployments: Deployments) -> ASGIApp:
    """Deployments, newest first."""
    asked = call.query
    status, agent_id = asked.get("status"), asked.get("agent_id")
    if status is not None and "include_archived" in asked:
        raise InvalidRequest("status: cannot be combined with include_archived")
    query = record_query(asked, "deployment", call.tenant)

    async def some(after: Record | None, count: int) -> list[Record]:
        place = query.after if after is None else after.id
        wanted = replace(query, after=place, limit=count)
        return await deployments.page(call.key, wanted, agent_id, status)

    found, more = await collect_page(some, query.limit - 1, lambda record: record.body)
    last = None
    if more:
        end = found[-1]
        last = Cursor(of="deployment", order="desc", after=end.id, at=end.created_at)
    when = await deployments.times(found)
    return reply(page([_view(*each) for each in zip(found, when, strict=True)], last))


@RESOURCE.get("deployments.retrieve", "/v1/deployments/{deployment_id}", reply=_DEPLOYMENT)
async def retrieve(call: ApiCall, deployments: Deployments) -> ASGIApp:
    """A deployment as it stands."""
    record = await deployments.seen(call.key, call.params["deployment_id"])
    return reply(await _shown(deployments, record))


@RESOURCE.post(
    "deployments.update",
    "/v1/deployments/{deployment_id}",
    "beta.DeploymentUpdateParams",
    reply=_DEPLOYMENT,
)
async def update(call: ApiCall, deployments: Deployments) -> ASGIApp:
    """A deployment, changed; sessions that it has made stay as they are."""
    _check(call.body)
    record = await deployments.update(call.key, call.params["deployment_id"], call.body)
    return reply(await _shown(deployments, record))


@RESOURCE.post("deployments.archive", "/v1/deployments/{deployment_id}/archive", reply=_DEPLOYMENT)
async def archive(call: ApiCall, deployments: Deployments) -> ASGIApp:
    """It runs no more."""
    record = await deployments.archive(call.key, call.params["deployment_id"])
    return reply(await _shown(deployments, record))


@RESOURCE.post("deployments.pause", "/v1/deployments/{deployment_id}/pause", reply=_DEPLOYMENT)
async def pause(call: ApiCall, deployments: Deployments) -> ASGIApp:
    """Its schedule starts nothing; runs by hand go on."""
    record = await deployments.pause(call.key, call.params["deployment_id"])
    return reply(await _shown(deployments, record))


@RESOURCE.post("deployments.unpause", "/v1/deployments/{deployment_id}/unpause", reply=_DEPLOYMENT)
async def unpause(call: ApiCall, deployments: Deployments) -> ASGIApp:
    """Its schedule goes on with the next time."""
    record = await deployments.unpause(call.key, call.params["deployment_id"])
    return reply(await _shown(deployments, record))


@RESOURCE.post("deployments.run", "/v1/deployments/{deployment_id}/run", reply=_RUN)
async def run(call: ApiCall, runs: DeploymentRuns) -> ASGIApp:
    """A run now: its session, or why there is none."""
    made = await runs.start(call.key, call.params["deployment_id"], call.idempotency_key)
    return reply(_run_view(made))


@RESOURCE.get(
    "deployment_runs.list",
    "/v1/deployment_runs",
    "beta.DeploymentRunListParams",
    reply=_RUN,
    form="page",
)
async def list_runs(call: ApiCall, runs: DeploymentRuns) -> ASGIApp:
    """Runs that have a session or an error, newest first."""
    asked = call.query
    since, until = span_of(asked)
    states = {None: _SHOWN, True: ("failed",), False: ("started",)}[asked.get("has_error")]
    trigger = asked.get("trigger_type")
    query = RunQuery(
        kind="deployment",
        tenant=call.tenant,
        owner=asked.get("deployment_id"),
        states=states,
        scheduled=None if trigger is None else trigger == "schedule",
        since=since,
        until=until,
    )
    return reply(await _runs_shown(call, runs, query, "deployment_runs"))


@RESOURCE.get("deployment_runs.retrieve", "/v1/deployment_runs/{deployment_run_id}", reply=_RUN)
async def retrieve_run(call: ApiCall, runs: DeploymentRuns) -> ASGIApp:
    """One run."""
    return reply(_run_view(await runs.seen(call.key, call.params["deployment_run_id"])))


@RESOURCE.get(
    "roost.deployments.runs.list", "/roost/v1/deployments/{deployment_id}/runs", RunListParams
)
async def list_all_runs(call: ApiCall, deployments: Deployments, runs: DeploymentRuns) -> ASGIApp:
    """All runs of a deployment, also those that wait and those that were skipped, newest first."""
    record = await deployments.seen(call.key, call.params["deployment_id"])
    state = call.query.get("state")
    query = RunQuery(
        kind="deployment",
        tenant=call.tenant,
        owner=record.id,
        states=() if state is None else (state,),
    )
    return reply(await _runs_shown(call, runs, query, f"runs {record.id}"))


async def _runs_shown(
    call: ApiCall, runs: DeploymentRuns, query: RunQuery, of: str
) -> dict[str, Any]:
    return await run_page(call.query, partial(runs.page, call.key), query, of, _run_view)


def _check(body: dict[str, Any]) -> None:
    """What is wrong beyond its shape."""
    drafts_of(body.get("initial_events") or (), "initial_events")


async def _shown(deployments: Deployments, record: Record) -> dict[str, Any]:
    [when] = await deployments.times([record])
    return _view(record, when)


def _view(record: Record, when: Times) -> dict[str, Any]:
    """The `deployment` object, with what Roost adds to it at the end."""
    body = record.body
    same = ("name", "description", "agent", "environment_id", "initial_events")
    archived = record.archived_at is not None
    reason = None if archived else body["paused_reason"]
    return {
        "type": "deployment",
        "id": record.id,
        **{name: body[name] for name in same},
        "resources": [shown(each) for each in body["resources"]],
        "vault_ids": body["vault_ids"],
        "metadata": body["metadata"],
        "budget": body["budget"],
        "status": "active" if reason is None else "paused",
        "paused_reason": reason,
        "schedule": schedule_view(body["schedule"], when),
        **times(record.created_at, record.updated_at, record.archived_at),
        "missed_runs": body["missed_runs"],
        "overlap": body["overlap"],
        **{name: body[name] for name in OPTIONS},
        "created_by": record.created_by or None,
    }


def _run_view(run: Run) -> dict[str, Any]:
    """The `deployment_run` object, with what Roost adds to it at the end."""
    manual: dict[str, Any] = {"type": "manual"}
    at = run.scheduled_at
    ended = run.ended_at
    return {
        "type": "deployment_run",
        "id": run.id,
        "deployment_id": run.owner,
        "agent": run.body["agent"],
        "trigger_context": manual if at is None else {"type": "schedule", "scheduled_at": iso(at)},
        "session_id": run.session_id,
        "error": run.body.get("error"),
        "created_at": iso(run.created_at),
        "state": run.state,
        "skipped": skip_view(run.body) if run.state == "skipped" else None,
        "ended_at": None if ended is None else iso(ended),
    }
