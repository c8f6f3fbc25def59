"""The resource `/v1/agents`: what clients can do with agents and their versions."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.bounds import (
    DESCRIPTION,
    ID,
    LARGEST_INT,
    METADATA,
    NAME,
    PAGE_OF_100,
    VERSION,
)
from roost.api.framework.call import ApiCall
from roost.api.framework.paging import (
    DEFAULT_PAGE,
    Cursor,
    collect_page,
    cursor_in,
    page,
    record_page,
    record_query,
)
from roost.api.framework.replies import reply, times
from roost.api.framework.resource import Resource
from roost.core.records.agents import Agents
from roost.ports.catalog import Record

_AGENT = "beta.BetaManagedAgentsAgent"
_TOOLS = Field(max_length=128)
_SOME_TOOLS = Field(min_length=1, max_length=128)
_DOMAINS = Field(min_length=1, max_length=64)
_SERVER_NAME = Field(min_length=1, max_length=255)

RESOURCE: Final = Resource(
    bounds={
        "AgentCreateParams.name": NAME,
        "AgentCreateParams.description": DESCRIPTION,
        "AgentCreateParams.metadata": METADATA,
        "AgentRetrieveParams.version": VERSION,
        "AgentUpdateParams.name": NAME,
        "AgentUpdateParams.description": DESCRIPTION,
        "AgentUpdateParams.version": VERSION,
        "AgentListParams.limit": PAGE_OF_100,
        "VersionListParams.limit": PAGE_OF_100,
        "BetaManagedAgentsAgentParams.id": ID,
        "BetaManagedAgentsAgentParams.version": VERSION,
        "BetaManagedAgentsAgentWithOverridesParams.id": ID,
        "BetaManagedAgentsAgentWithOverridesParams.version": VERSION,
        "BetaManagedAgentsModelConfigParams.id": NAME,
        "*.agent_id": ID,
        "*.system": Field(max_length=100_000),
        "*.tools": _TOOLS,
        "*.configs": Field(max_length=256),
        "*.allowed_domains": _DOMAINS,
        "*.blocked_domains": _DOMAINS,
        "*.max_content_tokens": Field(ge=1, le=LARGEST_INT),
        "BetaManagedAgentsCustomToolParams.name": Field(pattern=r"^[A-Za-z0-9_-]{1,128}$"),
        "BetaManagedAgentsCustomToolParams.description": Field(min_length=1),
        "BetaManagedAgentsWebFetchURLSourceOnlyParam.tools": _SOME_TOOLS,
        "BetaManagedAgentsWebFetchURLSourceExceptParam.tools": _SOME_TOOLS,
        "*.mcp_servers": Field(max_length=20),
        "BetaManagedAgentsMCPToolsetParams.mcp_server_name": _SERVER_NAME,
        "BetaManagedAgentsURLMCPServerParams.name": _SERVER_NAME,
        "BetaManagedAgentsURLMCPServerParams.url": Field(
            pattern=r"^https?://[^\s/]+", max_length=2048
        ),
        "BetaManagedAgentsMCPToolConfigParams.name": ID,
        "*.skills": Field(max_length=500),
        "BetaManagedAgentsAnthropicSkillParams.skill_id": NAME,
        "BetaManagedAgentsCustomSkillParams.skill_id": NAME,
    },
    # Null clears an override; the official types say so in words only.
    nullable={
        "BetaManagedAgentsAgentWithOverridesParams": frozenset(
            {"model", "tools", "mcp_servers", "skills"}
        ),
    },
)


@RESOURCE.post("agents.create", "/v1/agents", "beta.AgentCreateParams", reply=_AGENT)
async def create(call: ApiCall, agents: Agents) -> ASGIApp:
    """A new agent."""
    return reply(_view(await agents.create(call.key, call.body)))


@RESOURCE.get("agents.list", "/v1/agents", "beta.AgentListParams", reply=_AGENT, form="page")
async def list_(call: ApiCall, agents: Agents) -> ASGIApp:
    """Agents, newest first."""
    query = record_query(call.query, "agent", call.tenant)
    return reply(await record_page(agents.page, query, _view))


@RESOURCE.get("agents.retrieve", "/v1/agents/{agent_id}", "beta.AgentRetrieveParams", reply=_AGENT)
async def retrieve(call: ApiCall, agents: Agents) -> ASGIApp:
    """An agent, at its newest version or the one asked for."""
    agent_id, version = call.params["agent_id"], call.query.get("version")
    return reply(_view(await agents.get(call.tenant, agent_id, version)))


@RESOURCE.post("agents.update", "/v1/agents/{agent_id}", "beta.AgentUpdateParams", reply=_AGENT)
async def update(call: ApiCall, agents: Agents) -> ASGIApp:
    """A new version of an agent."""
    agent_id = call.params["agent_id"]
    return reply(_view(await agents.update(call.key, agent_id, call.body)))


@RESOURCE.post("agents.archive", "/v1/agents/{agent_id}/archive", reply=_AGENT)
async def archive(call: ApiCall, agents: Agents) -> ASGIApp:
    """No new sessions with it."""
    return reply(_view(await agents.archive(call.key, call.params["agent_id"])))


@RESOURCE.get(
    "agents.versions.list",
    "/v1/agents/{agent_id}/versions",
    "beta.agents.VersionListParams",
    reply=_AGENT,
    form="page",
)
async def list_versions(call: ApiCall, agents: Agents) -> ASGIApp:
    """An agent's versions, newest first."""
    agent_id, limit = call.params["agent_id"], call.query.get("limit", DEFAULT_PAGE)
    cursor = cursor_in(call.query, agent_id, "desc")
    before = None if cursor is None else int(cursor.after)

    async def some(after: Record | None, count: int) -> list[Record]:
        below = before if after is None else after.version
        return await agents.versions(call.tenant, agent_id, before=below, limit=count)

    records, more = await collect_page(some, limit, lambda record: record.body)
    last = Cursor(of=agent_id, order="desc", after=records[-1].version) if more else None
    return reply(page([_view(record) for record in records], last))


def _view(record: Record) -> dict[str, Any]:
    """The `agent` object, as clients see it."""
    return {
        "type": "agent",
        "id": record.id,
        "version": record.version,
        **record.body,
        **times(record.created_at, record.updated_at, record.archived_at),
    }
