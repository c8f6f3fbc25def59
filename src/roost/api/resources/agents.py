"""`/v1/agents`."""

from __future__ import annotations

from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall, reply
from roost.api.framework.paging import (
    DEFAULT_PAGE,
    Cursor,
    cursor_in,
    gathered,
    page,
    record_page,
    record_query,
)
from roost.api.resources import views
from roost.ports.catalog import Record


async def create(call: ApiCall) -> ASGIApp:
    """A new agent."""
    return reply(views.agent(await call.deps.agents.create(call.key, call.body)))


async def retrieve(call: ApiCall) -> ASGIApp:
    """An agent, at its newest version or the one asked for."""
    agent_id, version = call.params["agent_id"], call.query.get("version")
    return reply(views.agent(await call.deps.agents.get(call.tenant, agent_id, version)))


async def update(call: ApiCall) -> ASGIApp:
    """A new version of an agent."""
    agent_id = call.params["agent_id"]
    return reply(views.agent(await call.deps.agents.update(call.key, agent_id, call.body)))


async def archive(call: ApiCall) -> ASGIApp:
    """No new sessions with it."""
    return reply(views.agent(await call.deps.agents.archive(call.key, call.params["agent_id"])))


async def list_(call: ApiCall) -> ASGIApp:
    """Agents, newest first."""
    query = record_query(call.query, "agent", call.tenant)
    return reply(await record_page(call.deps.agents.page, query, views.agent))


async def list_versions(call: ApiCall) -> ASGIApp:
    """An agent's versions, newest first."""
    agent_id, limit = call.params["agent_id"], call.query.get("limit", DEFAULT_PAGE)
    cursor = cursor_in(call.query, agent_id, "desc")
    before = None if cursor is None else int(cursor.after)

    async def some(after: Record | None, count: int) -> list[Record]:
        below = before if after is None else after.version
        return await call.deps.agents.versions(call.tenant, agent_id, before=below, limit=count)

    records, more = await gathered(some, limit, lambda record: record.body)
    last = Cursor(of=agent_id, order="desc", after=records[-1].version) if more else None
    return reply(page([views.agent(record) for record in records], last))
