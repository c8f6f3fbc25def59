"""`/v1/environments`."""

from __future__ import annotations

from starlette.types import ASGIApp

from roost.api import views
from roost.api.call import Call, reply
from roost.api.paging import record_page, record_query
from roost.core.access.permissions import check_defaults


async def create(call: Call) -> ASGIApp:
    """A new environment."""
    check_defaults(call.key, call.body)
    return reply(views.environment(await call.deps.environments.create(call.key, call.body)))


async def retrieve(call: Call) -> ASGIApp:
    """An environment."""
    record = await call.deps.environments.get(call.tenant, call.params["environment_id"])
    return reply(views.environment(record))


async def update(call: Call) -> ASGIApp:
    """An environment, changed."""
    check_defaults(call.key, call.body)
    environment_id = call.params["environment_id"]
    record = await call.deps.environments.update(call.key, environment_id, call.body)
    return reply(views.environment(record))


async def archive(call: Call) -> ASGIApp:
    """No new sessions on it."""
    record = await call.deps.environments.archive(call.key, call.params["environment_id"])
    return reply(views.environment(record))


async def delete(call: Call) -> ASGIApp:
    """Gone, if no session uses it."""
    environment_id = call.params["environment_id"]
    await call.deps.environments.delete(call.key, environment_id)
    return reply({"id": environment_id, "type": "environment_deleted"})


async def list_(call: Call) -> ASGIApp:
    """Environments, newest first."""
    query = record_query(call.query, "environment", call.tenant)
    return reply(await record_page(call.deps.environments.page, query, views.environment))
