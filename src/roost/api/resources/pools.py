"""`/roost/v1/pools`: pools of interpreters. What is below a pool's own path is served by `roost.pool`."""

from __future__ import annotations

from typing import Any, Final, Required, TypedDict

from starlette.types import ASGIApp

from roost.api.framework.bounds import ID, NAME
from roost.api.framework.call import ApiCall
from roost.api.framework.paging import record_page, record_query
from roost.api.framework.replies import reply, times
from roost.api.framework.resource import Resource
from roost.core.pools.identifiers import PoolSessions
from roost.core.pools.pools import KIND, Pools
from roost.domain import pool
from roost.ports.catalog import Record

_POOLS = "/roost/v1/pools"

RESOURCE: Final = Resource(
    bounds={
        "PoolCreateParams.name": NAME,
        "PoolCreateParams.environment_id": ID,
        "PoolUpdateParams.environment_id": ID,
    },
)


class PoolCreateParams(TypedDict, total=False):
    """What a pool is made with."""

    name: Required[str]
    environment_id: Required[str]
    cooldown_seconds: int
    max_alive_seconds: int | None
    max_sessions: int
    ready_sessions: int


class PoolUpdateParams(TypedDict, total=False):
    """What of a pool can be changed."""

    environment_id: str
    cooldown_seconds: int
    max_alive_seconds: int | None
    max_sessions: int
    ready_sessions: int


class PoolListParams(TypedDict, total=False):
    """Which pools to list."""

    limit: int
    page: str


@RESOURCE.post("roost.pools.create", _POOLS, PoolCreateParams)
async def create(call: ApiCall, pools: Pools) -> ASGIApp:
    """A new pool."""
    return reply(_view(await pools.create(call.key, call.body)))


@RESOURCE.get("roost.pools.list", _POOLS, PoolListParams, form="page")
async def list_(call: ApiCall, pools: Pools) -> ASGIApp:
    """Pools, newest first."""
    query = record_query(call.query, KIND, call.tenant)
    return reply(await record_page(pools.page, query, _view))


@RESOURCE.get("roost.pools.retrieve", f"{_POOLS}/{{pool_name}}")
async def retrieve(call: ApiCall, pools: Pools) -> ASGIApp:
    """A pool."""
    return reply(_view(await pools.named(call.tenant, call.params["pool_name"])))


@RESOURCE.post("roost.pools.update", f"{_POOLS}/{{pool_name}}", PoolUpdateParams)
async def update(call: ApiCall, pools: Pools) -> ASGIApp:
    """A pool, changed."""
    return reply(_view(await pools.update(call.key, call.params["pool_name"], call.body)))


@RESOURCE.delete("roost.pools.delete", f"{_POOLS}/{{pool_name}}")
async def delete(call: ApiCall, pools: Pools, sessions: PoolSessions) -> ASGIApp:
    """Gone, with the sessions of all its identifiers."""
    gone = await pools.delete(call.key, call.params["pool_name"])
    await sessions.empty(gone)
    return reply({"id": gone.id, "type": "pool_deleted"})


def _view(record: Record) -> dict[str, Any]:
    """The `pool` object, as clients see it."""
    return {
        "type": "pool",
        "id": record.id,
        **pool.view(record.body),
        **times(record.created_at, record.updated_at, record.archived_at),
    }
