"""`/v1/environments/{id}/work`: what workers of self-hosted environments ask for, and what they say of it."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.access.workers import WorkerAccess
from roost.api.framework.bounds import METADATA, PAGE_OF_100
from roost.api.framework.call import ApiCall
from roost.api.framework.paging import record_page, record_query
from roost.api.framework.replies import JsonBytes, reply
from roost.api.framework.resource import Resource
from roost.core.access.permissions import check_owner
from roost.core.records.environments import Environments
from roost.core.work.work_items import WorkItems, kind_of
from roost.domain.events import Micros, iso
from roost.domain.work_item import RECLAIMED_AFTER, WorkItem
from roost.errors import Forbidden, InvalidRequest
from roost.ports.catalog import Record

_WORK = "beta.environments.BetaSelfHostedWork"
_AT: Final = "/v1/environments/{environment_id}/work"
_ITEM: Final = f"{_AT}/{{work_id}}"
_LONGEST_ID: Final = 256

RESOURCE: Final = Resource(
    bounds={
        "WorkPollParams.block_ms": Field(ge=1, le=999),
        "WorkPollParams.reclaim_older_than_ms": Field(ge=0, le=86_400_000),
        "WorkHeartbeatParams.desired_ttl_seconds": Field(ge=1, le=3600),
        "WorkHeartbeatParams.expected_last_heartbeat": Field(max_length=64),
        "WorkUpdateParams.metadata": METADATA,
        "WorkListParams.limit": PAGE_OF_100,
    },
)


@RESOURCE.get(
    "environments.work.poll", f"{_AT}/poll", "beta.environments.WorkPollParams", form="other"
)
async def poll(
    call: ApiCall, environments: Environments, items: WorkItems, workers: WorkerAccess
) -> ASGIApp:
    """The next item that nobody has, or null."""
    if call.worker is None:
        raise Forbidden(
            "Work is handed out to environment keys only.",
            hint="Make one: `roost environments keys create`.",
        )
    environment_id = await _self_hosted(call, environments)
    worker = call.headers.get("anthropic-worker-id", "")
    if len(worker) > _LONGEST_ID or not worker.isprintable():
        raise InvalidRequest(f"anthropic-worker-id: give up to {_LONGEST_ID} printable characters")
    reclaim = call.query.get("reclaim_older_than_ms")
    item = await items.poll(
        call.tenant,
        environment_id,
        worker,
        block=(call.query.get("block_ms") or 0) / 1000,
        reclaim=RECLAIMED_AFTER if reclaim is None else reclaim * 1000,
    )
    if item is None:
        return JsonBytes(b"null")
    return reply(_view(item) | {"secret": workers.secret(call.worker, item)})


@RESOURCE.get(
    "environments.work.stats",
    f"{_AT}/stats",
    reply="beta.environments.BetaSelfHostedWorkQueueStats",
)
async def stats(call: ApiCall, environments: Environments, items: WorkItems) -> ASGIApp:
    """How many items wait, and how many workers have asked for one lately."""
    return reply(await items.stats(call.tenant, await _self_hosted(call, environments)))


@RESOURCE.get(
    "environments.work.list", _AT, "beta.environments.WorkListParams", reply=_WORK, form="page"
)
async def list_(call: ApiCall, environments: Environments, items: WorkItems) -> ASGIApp:
    """Items, newest first; those that were stopped for 30 days."""
    environment_id = await _self_hosted(call, environments)
    query = record_query(call.query, kind_of(environment_id), call.tenant)
    return reply(await record_page(items.page, query, _of_record))


@RESOURCE.get("environments.work.retrieve", _ITEM, reply=_WORK)
async def retrieve(call: ApiCall, environments: Environments, items: WorkItems) -> ASGIApp:
    """An item."""
    environment_id = await _self_hosted(call, environments)
    return reply(_view(await items.get(call.tenant, environment_id, call.params["work_id"])))


@RESOURCE.post("environments.work.update", _ITEM, "beta.environments.WorkUpdateParams", reply=_WORK)
async def update(call: ApiCall, environments: Environments, items: WorkItems) -> ASGIApp:
    """An item with other metadata."""
    environment_id = await _owned(call, environments)
    metadata = call.body["metadata"]
    work_id = call.params["work_id"]
    return reply(_view(await items.update(call.tenant, environment_id, work_id, metadata)))


@RESOURCE.post("environments.work.ack", f"{_ITEM}/ack", reply=_WORK)
async def ack(call: ApiCall, environments: Environments, items: WorkItems) -> ASGIApp:
    """A worker takes an item that it was handed out."""
    environment_id = await _owned(call, environments)
    claim = None if call.worker is None else call.worker.claim
    work_id = call.params["work_id"]
    return reply(_view(await items.ack(call.tenant, environment_id, work_id, claim=claim)))


@RESOURCE.post(
    "environments.work.heartbeat",
    f"{_ITEM}/heartbeat",
    query="beta.environments.WorkHeartbeatParams",
    reply="beta.environments.BetaSelfHostedWorkHeartbeatResponse",
)
async def heartbeat(call: ApiCall, environments: Environments, items: WorkItems) -> ASGIApp:
    """A worker still works on an item."""
    environment_id = await _owned(call, environments)
    item, extended = await items.heartbeat(
        call.tenant,
        environment_id,
        call.params["work_id"],
        expected=call.query.get("expected_last_heartbeat"),
        seconds=call.query.get("desired_ttl_seconds"),
        claim=None if call.worker is None else call.worker.claim,
    )
    return reply(
        {
            "type": "work_heartbeat",
            "last_heartbeat": item.heartbeat or "",
            "lease_extended": extended,
            "state": item.state,
            "ttl_seconds": max(1, item.lease // 1_000_000),
        }
    )


@RESOURCE.post(
    "environments.work.stop", f"{_ITEM}/stop", "beta.environments.WorkStopParams", reply=_WORK
)
async def stop(call: ApiCall, environments: Environments, items: WorkItems) -> ASGIApp:
    """Ask the worker of an item to stop, or with `force` stop the item at once."""
    environment_id = await _owned(call, environments)
    stopped = await items.stop(
        call.tenant,
        environment_id,
        call.params["work_id"],
        force=bool(call.body.get("force")),
        claim=None if call.worker is None else call.worker.claim,
        by_worker=call.worker is not None,
    )
    return reply(_view(stopped))


async def _self_hosted(call: ApiCall, environments: Environments) -> str:
    """The environment in the path. :raises EnvironmentNotFound: :raises InvalidRequest: it has no workers"""
    environment_id = call.params["environment_id"]
    _check_config(await environments.get(call.tenant, environment_id))
    return environment_id


async def _owned(call: ApiCall, environments: Environments) -> str:
    """The same, for those who may change it: its owner, and its workers. :raises NotTheOwner:"""
    record = await environments.get(call.tenant, call.params["environment_id"])
    if call.worker is None:
        check_owner(call.key, record)
    _check_config(record)
    return record.id


def _check_config(environment: Record) -> None:
    if environment.body["config"]["type"] != "self_hosted":
        raise InvalidRequest(
            f"environment {environment.id} is not self-hosted: it has no work for workers"
        )


def _of_record(record: Record) -> dict[str, Any]:
    return _view(WorkItem.of(record.body))


def _view(item: WorkItem) -> dict[str, Any]:
    """The `work` object, as clients see it."""
    return {
        "type": "work",
        "id": item.id,
        "environment_id": item.environment_id,
        "data": {"type": "session", "id": item.name},
        "state": item.state,
        "metadata": item.metadata,
        "created_at": iso(item.created_at),
        "acknowledged_at": _moment(item.acknowledged_at),
        "started_at": _moment(item.started_at),
        "latest_heartbeat_at": _moment(item.heartbeat_at),
        "stop_requested_at": _moment(item.stop_requested_at),
        "stopped_at": _moment(item.stopped_at),
        "secret": None,
    }


def _moment(moment: Micros | None) -> str | None:
    return None if moment is None else iso(moment)
