"""`/v1/environments`."""

from __future__ import annotations

from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall, reply
from roost.api.framework.paging import record_page, record_query
from roost.api.resources import views
from roost.core.access.permissions import check_defaults


async def create(call: ApiCall) -> ASGIApp:
    """A new environment."""
    check_defaults(call.key, call.body)
    return reply(views.environment(await call.deps.environments.create(call.key, call.body)))


async def retrieve(call: ApiCall) -> ASGIApp:
    """An environment."""
    record = await call.deps.environments.get(call.tenant, call.params["environment_id"])
    return reply(views.environment(record))


async def update(call: ApiCall) -> ASGIApp:
    """An environment, changed."""
    check_defaults(call.key, call.body)
    environment_id = call.params["environment_id"]
    record = await call.deps.environments.update(call.key, environment_id, call.body)
    return reply(views.environment(record))


async def archive(call: ApiCall) -> ASGIApp:
    """No new sessions on it."""
    record = await call.deps.environments.archive(call.key, call.params["environment_id"])
    return reply(views.environment(record))


async def delete(call: ApiCall) -> ASGIApp:
    """Gone, if no session uses it."""
    environment_id = call.params["environment_id"]
    await call.deps.environments.delete(call.key, environment_id)
    return reply({"id": environment_id, "type": "environment_deleted"})


async def list_(call: ApiCall) -> ASGIApp:
    """Environments, newest first."""
    query = record_query(call.query, "environment", call.tenant)
    return reply(await record_page(call.deps.environments.page, query, views.environment))
