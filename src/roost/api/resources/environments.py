"""The resource `/v1/environments`: where sessions run, and what they may reach."""

from __future__ import annotations

from typing import Any, Final

from starlette.types import ASGIApp

from roost.api.framework.bounds import DESCRIPTION, ID, METADATA, NAME
from roost.api.framework.call import ApiCall
from roost.api.framework.paging import record_page, record_query
from roost.api.framework.replies import reply, times
from roost.api.framework.resource import Resource
from roost.core.access.environment_keys import EnvironmentKeys
from roost.core.access.permissions import check_defaults
from roost.core.access.revocations import Revocations
from roost.core.records.environments import Environments
from roost.core.work.work_items import WorkItems
from roost.ports.catalog import Record

_ENVIRONMENT = "beta.BetaEnvironment"

RESOURCE: Final = Resource(
    bounds={
        "EnvironmentCreateParams.name": NAME,
        "EnvironmentCreateParams.description": DESCRIPTION,
        "EnvironmentCreateParams.metadata": METADATA,
        "EnvironmentUpdateParams.name": NAME,
        "EnvironmentUpdateParams.description": DESCRIPTION,
        "*.environment_id": ID,
    },
)


@RESOURCE.post(
    "environments.create", "/v1/environments", "beta.EnvironmentCreateParams", reply=_ENVIRONMENT
)
async def create(call: ApiCall, environments: Environments) -> ASGIApp:
    """A new environment."""
    check_defaults(call.key, call.body)
    return reply(_view(await environments.create(call.key, call.body)))


@RESOURCE.get(
    "environments.list",
    "/v1/environments",
    "beta.EnvironmentListParams",
    reply=_ENVIRONMENT,
    form="page",
)
async def list_(call: ApiCall, environments: Environments) -> ASGIApp:
    """Environments, newest first."""
    query = record_query(call.query, "environment", call.tenant)
    return reply(await record_page(environments.page, query, _view))


@RESOURCE.get("environments.retrieve", "/v1/environments/{environment_id}", reply=_ENVIRONMENT)
async def retrieve(call: ApiCall, environments: Environments) -> ASGIApp:
    """An environment."""
    record = await environments.get(call.tenant, call.params["environment_id"])
    return reply(_view(record))


@RESOURCE.post(
    "environments.update",
    "/v1/environments/{environment_id}",
    "beta.EnvironmentUpdateParams",
    reply=_ENVIRONMENT,
)
async def update(call: ApiCall, environments: Environments) -> ASGIApp:
    """An environment, changed."""
    check_defaults(call.key, call.body)
    environment_id = call.params["environment_id"]
    record = await environments.update(call.key, environment_id, call.body)
    return reply(_view(record))


@RESOURCE.delete(
    "environments.delete",
    "/v1/environments/{environment_id}",
    reply="beta.BetaEnvironmentDeleteResponse",
)
async def delete(
    call: ApiCall,
    environments: Environments,
    items: WorkItems,
    keys: EnvironmentKeys,
    revocations: Revocations,
) -> ASGIApp:
    """Gone, if no session uses it."""
    environment_id = call.params["environment_id"]
    await environments.delete(call.key, environment_id)
    for key in await keys.of(environment_id):
        await keys.revoke(environment_id, key.id)
        revocations.tell(key.id)
    await items.forget(call.tenant, environment_id)
    return reply({"id": environment_id, "type": "environment_deleted"})


@RESOURCE.post(
    "environments.archive", "/v1/environments/{environment_id}/archive", reply=_ENVIRONMENT
)
async def archive(call: ApiCall, environments: Environments) -> ASGIApp:
    """No new sessions on it."""
    record = await environments.archive(call.key, call.params["environment_id"])
    return reply(_view(record))


def _view(record: Record) -> dict[str, Any]:
    """The `environment` object, as clients see it."""
    return {
        "type": "environment",
        "id": record.id,
        **record.body,
        "description": record.body["description"] or "",  # older SDKs have no null for it
        **times(record.created_at, record.updated_at, record.archived_at),
    }
