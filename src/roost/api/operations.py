"""Every operation of the Managed Agents API, served or refused on purpose, and Roost's own.

The names are the official SDK's: `client.beta.sessions.events.send` is `sessions.events.send`. A
test walks the installed SDK and fails when it has an operation that is not in this table.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from starlette.types import ASGIApp

from roost.api.framework import openapi
from roost.api.framework.call import ApiCall
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.api.framework.routes import Operation, refused
from roost.api.framework.shapes import Shape
from roost.api.resources import (
    agents,
    deployments,
    environment_keys,
    environment_work,
    environments,
    files,
    harnesses,
    health,
    keys,
    logins,
    master_key,
    models,
    nodes,
    pools,
    session_archives,
    session_events,
    session_files,
    session_forks,
    session_resources,
    session_threads,
    sessions,
    skills,
    tasks,
    vaults,
    webhooks,
    workspaces,
)

_SERVER = Resource()


@_SERVER.get("openapi", "/openapi.json", open=True, form="other")
async def _openapi(call: ApiCall) -> ASGIApp:
    return reply(_document())


@cache
def _document() -> dict[str, Any]:
    return openapi.described(OPERATIONS)


_REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "dreams work on memory stores, which are not part of this release.": (
        "dreams.create POST /v1/dreams",
        "dreams.list GET /v1/dreams",
        "dreams.retrieve GET /v1/dreams/{dream_id}",
        "dreams.archive POST /v1/dreams/{dream_id}/archive",
        "dreams.cancel POST /v1/dreams/{dream_id}/cancel",
    ),
    "memory stores are not part of this release.": (
        "memory_stores.create POST /v1/memory_stores",
        "memory_stores.list GET /v1/memory_stores",
        "memory_stores.retrieve GET /v1/memory_stores/{memory_store_id}",
        "memory_stores.update POST /v1/memory_stores/{memory_store_id}",
        "memory_stores.delete DELETE /v1/memory_stores/{memory_store_id}",
        "memory_stores.archive POST /v1/memory_stores/{memory_store_id}/archive",
        "memory_stores.memories.create POST /v1/memory_stores/{memory_store_id}/memories",
        "memory_stores.memories.list GET /v1/memory_stores/{memory_store_id}/memories",
        "memory_stores.memories.retrieve GET /v1/memory_stores/{memory_store_id}/memories/{memory_id}",
        "memory_stores.memories.update POST /v1/memory_stores/{memory_store_id}/memories/{memory_id}",
        "memory_stores.memories.delete DELETE /v1/memory_stores/{memory_store_id}/memories/{memory_id}",
        "memory_stores.memory_versions.list GET /v1/memory_stores/{memory_store_id}/memory_versions",
        "memory_stores.memory_versions.retrieve GET /v1/memory_stores/{memory_store_id}/memory_versions/{memory_version_id}",
        "memory_stores.memory_versions.redact POST /v1/memory_stores/{memory_store_id}/memory_versions/{memory_version_id}/redact",
    ),
    "the primary thread ends with its session; archive the session.": (
        "sessions.threads.archive POST /v1/sessions/{session_id}/threads/{thread_id}/archive",
    ),
    "tunnels lead from Anthropic's servers to private ones; this server needs none.": (
        "tunnels.create POST /v1/tunnels",
        "tunnels.list GET /v1/tunnels",
        "tunnels.retrieve GET /v1/tunnels/{tunnel_id}",
        "tunnels.archive POST /v1/tunnels/{tunnel_id}/archive",
        "tunnels.reveal_token POST /v1/tunnels/{tunnel_id}/reveal_token",
        "tunnels.rotate_token POST /v1/tunnels/{tunnel_id}/rotate_token",
        "tunnels.certificates.create POST /v1/tunnels/{tunnel_id}/certificates",
        "tunnels.certificates.list GET /v1/tunnels/{tunnel_id}/certificates",
        "tunnels.certificates.retrieve GET /v1/tunnels/{tunnel_id}/certificates/{certificate_id}",
        "tunnels.certificates.archive POST /v1/tunnels/{tunnel_id}/certificates/{certificate_id}/archive",
    ),
    "user profiles are for Anthropic's resellers; this server has API keys per tenant.": (
        "user_profiles.create POST /v1/user_profiles",
        "user_profiles.list GET /v1/user_profiles",
        "user_profiles.retrieve GET /v1/user_profiles/{user_profile_id}",
        "user_profiles.update POST /v1/user_profiles/{user_profile_id}",
        "user_profiles.delete DELETE /v1/user_profiles/{user_profile_id}",
        "user_profiles.create_enrollment_url POST /v1/user_profiles/{user_profile_id}/enrollment_url",
        "user_profiles.action_urls.create POST /v1/user_profiles/{user_profile_id}/action_urls",
    ),
}


_OTHER_APIS: Final[dict[str, tuple[str, ...]]] = {
    "this server runs agents; programs ask models where they are (ANTHROPIC_BASE_URL, ROOST_UPSTREAMS).": (
        "messages.create POST /v1/messages",
        "messages.count_tokens POST /v1/messages/count_tokens",
        "messages.batches.create POST /v1/messages/batches",
        "messages.batches.list GET /v1/messages/batches",
        "messages.batches.retrieve GET /v1/messages/batches/{message_batch_id}",
        "messages.batches.delete DELETE /v1/messages/batches/{message_batch_id}",
        "messages.batches.cancel POST /v1/messages/batches/{message_batch_id}/cancel",
        "messages.batches.results GET /v1/messages/batches/{message_batch_id}/results",
        "completions.create POST /v1/complete",
    ),
}


def _refused(line: str, why: str) -> Operation:
    name, method, path = line.split()
    return refused(name, method, path, why)


OTHER_APIS: Final = tuple(
    _refused(line, why) for why, lines in _OTHER_APIS.items() for line in lines
)
"""Of the same clients, but no part of the Managed Agents API."""

_RESOURCES: Final = (
    agents.RESOURCE,
    environments.RESOURCE,
    environment_work.RESOURCE,
    environment_keys.RESOURCE,
    sessions.RESOURCE,
    session_events.RESOURCE,
    session_threads.RESOURCE,
    session_resources.RESOURCE,
    skills.RESOURCE,
    files.RESOURCE,
    vaults.RESOURCE,
    deployments.RESOURCE,
    webhooks.RESOURCE,
    keys.RESOURCE,
    master_key.RESOURCE,
    models.RESOURCE,
    harnesses.RESOURCE,
    nodes.RESOURCE,
    pools.RESOURCE,
    tasks.RESOURCE,
    session_files.RESOURCE,
    workspaces.RESOURCE,
    session_forks.RESOURCE,
    session_archives.RESOURCE,
    logins.RESOURCE,
    health.RESOURCE,
    _SERVER,
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    *(operation for resource in _RESOURCES for operation in resource.operations),
    *(_refused(line, why) for why, lines in _REFUSED.items() for line in lines),
    *OTHER_APIS,
)


def body_of(name: str) -> Shape:
    """The shape of an operation's body, for the gateway, which takes the same content."""
    [shape] = [operation.body for operation in OPERATIONS if operation.name == name]
    assert shape is not None, "only for operations with a body"
    return shape
