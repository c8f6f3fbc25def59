"""Every operation of the Managed Agents API, served or refused on purpose, and Roost's own.

The names are the official SDK's: `client.beta.sessions.events.send` is `sessions.events.send`. A
test walks the installed SDK and fails when it has an operation that is not in this table.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from starlette.types import ASGIApp

from roost.api.framework import openapi
from roost.api.framework.call import ApiCall, reply
from roost.api.framework.routes import Operation, refused
from roost.api.framework.routes import delete as _delete
from roost.api.framework.routes import get as _get
from roost.api.framework.routes import post as _post
from roost.api.resources import (
    agents,
    environments,
    health,
    keys,
    logins,
    nodes,
    session_events,
    session_threads,
    sessions,
    tasks,
)
from roost.api.resources.files_table import FILES
from roost.api.resources.session_files_table import WORKSPACE_FILES
from roost.api.resources.session_forks_table import FORKS
from roost.api.resources.session_resources_table import RESOURCES
from roost.api.resources.skills_table import SKILLS
from roost.api.resources.workspaces_table import WORKSPACES

_AGENT = "beta.BetaManagedAgentsAgent"
_ENVIRONMENT = "beta.BetaEnvironment"
_SESSION = "beta.BetaManagedAgentsSession"
_THREAD = "beta.sessions.BetaManagedAgentsSessionThread"
_EVENT = "beta.sessions.BetaManagedAgentsSessionEvent"

_AGENTS = (
    _post("agents.create", "/v1/agents", agents.create, "beta.AgentCreateParams", reply=_AGENT),
    _get(
        "agents.list", "/v1/agents", agents.list_, "beta.AgentListParams", reply=_AGENT, form="page"
    ),
    _get(
        "agents.retrieve",
        "/v1/agents/{agent_id}",
        agents.retrieve,
        "beta.AgentRetrieveParams",
        reply=_AGENT,
    ),
    _post(
        "agents.update",
        "/v1/agents/{agent_id}",
        agents.update,
        "beta.AgentUpdateParams",
        reply=_AGENT,
    ),
    _post("agents.archive", "/v1/agents/{agent_id}/archive", agents.archive, reply=_AGENT),
    _get(
        "agents.versions.list",
        "/v1/agents/{agent_id}/versions",
        agents.list_versions,
        "beta.agents.VersionListParams",
        reply=_AGENT,
        form="page",
    ),
)

_ENVIRONMENTS = (
    _post(
        "environments.create",
        "/v1/environments",
        environments.create,
        "beta.EnvironmentCreateParams",
        reply=_ENVIRONMENT,
    ),
    _get(
        "environments.list",
        "/v1/environments",
        environments.list_,
        "beta.EnvironmentListParams",
        reply=_ENVIRONMENT,
        form="page",
    ),
    _get(
        "environments.retrieve",
        "/v1/environments/{environment_id}",
        environments.retrieve,
        reply=_ENVIRONMENT,
    ),
    _post(
        "environments.update",
        "/v1/environments/{environment_id}",
        environments.update,
        "beta.EnvironmentUpdateParams",
        reply=_ENVIRONMENT,
    ),
    _delete(
        "environments.delete",
        "/v1/environments/{environment_id}",
        environments.delete,
        reply="beta.BetaEnvironmentDeleteResponse",
    ),
    _post(
        "environments.archive",
        "/v1/environments/{environment_id}/archive",
        environments.archive,
        reply=_ENVIRONMENT,
    ),
)

_SESSIONS = (
    _post(
        "sessions.create",
        "/v1/sessions",
        sessions.create,
        "beta.SessionCreateParams",
        reply=_SESSION,
    ),
    _get(
        "sessions.list",
        "/v1/sessions",
        sessions.list_,
        "beta.SessionListParams",
        reply=_SESSION,
        form="pages",
    ),
    _get("sessions.retrieve", "/v1/sessions/{session_id}", sessions.retrieve, reply=_SESSION),
    _post(
        "sessions.update",
        "/v1/sessions/{session_id}",
        sessions.update,
        "beta.SessionUpdateParams",
        reply=_SESSION,
    ),
    _delete(
        "sessions.delete",
        "/v1/sessions/{session_id}",
        sessions.delete,
        reply="beta.BetaManagedAgentsDeletedSession",
    ),
    _post(
        "sessions.archive", "/v1/sessions/{session_id}/archive", sessions.archive, reply=_SESSION
    ),
    _post(
        "sessions.events.send",
        "/v1/sessions/{session_id}/events",
        session_events.send,
        "beta.sessions.EventSendParams",
        reply="beta.sessions.BetaManagedAgentsSendSessionEvents",
    ),
    _get(
        "sessions.events.list",
        "/v1/sessions/{session_id}/events",
        session_events.list_,
        "beta.sessions.EventListParams",
        reply=_EVENT,
        form="page",
    ),
    _get(
        "sessions.events.stream",
        "/v1/sessions/{session_id}/events/stream",
        session_events.stream,
        "beta.sessions.EventStreamParams",
        form="stream",
    ),
)

_THREADS = (
    _get(
        "sessions.threads.list",
        "/v1/sessions/{session_id}/threads",
        session_threads.list_,
        "beta.sessions.ThreadListParams",
        reply=_THREAD,
        form="page",
    ),
    _get(
        "sessions.threads.retrieve",
        "/v1/sessions/{session_id}/threads/{thread_id}",
        session_threads.retrieve,
        reply=_THREAD,
    ),
    _get(
        "sessions.threads.events.list",
        "/v1/sessions/{session_id}/threads/{thread_id}/events",
        session_threads.list_events,
        "beta.sessions.threads.EventListParams",
        reply=_EVENT,
        form="page",
    ),
    _get(
        "sessions.threads.events.stream",
        "/v1/sessions/{session_id}/threads/{thread_id}/stream",
        session_threads.stream,
        "beta.sessions.threads.EventStreamParams",
        form="stream",
    ),
)

_KEYS = (
    _post("roost.keys.create", "/roost/v1/keys", keys.create, keys.KeyCreateParams),
    _get("roost.keys.list", "/roost/v1/keys", keys.list_),
    _post("roost.keys.update", "/roost/v1/keys/{key_id}", keys.update, keys.KeyUpdateParams),
    _delete("roost.keys.revoke", "/roost/v1/keys/{key_id}", keys.revoke),
)

_NODES = (
    _get("roost.nodes.list", "/roost/v1/nodes", nodes.list_),
    _post("roost.nodes.drain", "/roost/v1/nodes/{node}/drain", nodes.drain),
    _post("roost.nodes.resume", "/roost/v1/nodes/{node}/resume", nodes.resume),
)

_TASKS = (
    _post("roost.tasks.create", "/roost/v1/tasks", tasks.create, tasks.TaskCreateParams),
    _get("roost.tasks.list", "/roost/v1/tasks", tasks.list_, tasks.TaskListParams),
    _get("roost.tasks.retrieve", "/roost/v1/tasks/{task_id}", tasks.retrieve),
    _post("roost.tasks.update", "/roost/v1/tasks/{task_id}", tasks.update, tasks.TaskUpdateParams),
    _delete("roost.tasks.delete", "/roost/v1/tasks/{task_id}", tasks.delete),
    _post(
        "roost.tasks.runs.create",
        "/roost/v1/tasks/{task_id}/runs",
        tasks.start_run,
        tasks.RunCreateParams,
    ),
    _get("roost.tasks.runs.list", "/roost/v1/tasks/{task_id}/runs", tasks.list_runs),
    _get(
        "roost.tasks.runs.retrieve",
        "/roost/v1/tasks/{task_id}/runs/{run_id}",
        tasks.retrieve_run,
    ),
)

_LOGINS = (
    _post("auth.login", "/auth/login", logins.login, logins.LoginParams, open=True),
    _post("auth.logout", "/auth/logout", logins.logout),
    _get("auth.me", "/auth/me", logins.me),
    _get("auth.ws_token", "/auth/ws-token", logins.ws_token, logins.WsTokenParams),
)


async def _openapi(call: ApiCall) -> ASGIApp:
    return reply(_document())


@cache
def _document() -> dict[str, Any]:
    return openapi.described(OPERATIONS)


_OPEN = (
    _get("healthz", "/healthz", health.healthz, open=True),
    _get("readyz", "/readyz", health.readyz, open=True),
    _get("metrics", "/metrics", health.metrics, open=True, form="other", media="text/plain"),
    _get("openapi", "/openapi.json", _openapi, open=True, form="other"),
)

_REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "scheduled sessions are not part of this release.": (
        "deployments.create POST /v1/deployments",
        "deployments.list GET /v1/deployments",
        "deployments.retrieve GET /v1/deployments/{deployment_id}",
        "deployments.update POST /v1/deployments/{deployment_id}",
        "deployments.archive POST /v1/deployments/{deployment_id}/archive",
        "deployments.pause POST /v1/deployments/{deployment_id}/pause",
        "deployments.unpause POST /v1/deployments/{deployment_id}/unpause",
        "deployments.run POST /v1/deployments/{deployment_id}/run",
        "deployment_runs.list GET /v1/deployment_runs",
        "deployment_runs.retrieve GET /v1/deployment_runs/{deployment_run_id}",
    ),
    "dreams work on memory stores, which are not part of this release.": (
        "dreams.create POST /v1/dreams",
        "dreams.list GET /v1/dreams",
        "dreams.retrieve GET /v1/dreams/{dream_id}",
        "dreams.archive POST /v1/dreams/{dream_id}/archive",
        "dreams.cancel POST /v1/dreams/{dream_id}/cancel",
    ),
    "self-hosted workers are not part of this release; sessions run on this server.": (
        "environments.work.list GET /v1/environments/{environment_id}/work",
        "environments.work.poll GET /v1/environments/{environment_id}/work/poll",
        "environments.work.stats GET /v1/environments/{environment_id}/work/stats",
        "environments.work.retrieve GET /v1/environments/{environment_id}/work/{work_id}",
        "environments.work.update POST /v1/environments/{environment_id}/work/{work_id}",
        "environments.work.ack POST /v1/environments/{environment_id}/work/{work_id}/ack",
        "environments.work.heartbeat POST /v1/environments/{environment_id}/work/{work_id}/heartbeat",
        "environments.work.stop POST /v1/environments/{environment_id}/work/{work_id}/stop",
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
    "credential vaults are not part of this release.": (
        "vaults.create POST /v1/vaults",
        "vaults.list GET /v1/vaults",
        "vaults.retrieve GET /v1/vaults/{vault_id}",
        "vaults.update POST /v1/vaults/{vault_id}",
        "vaults.delete DELETE /v1/vaults/{vault_id}",
        "vaults.archive POST /v1/vaults/{vault_id}/archive",
        "vaults.credentials.create POST /v1/vaults/{vault_id}/credentials",
        "vaults.credentials.list GET /v1/vaults/{vault_id}/credentials",
        "vaults.credentials.retrieve GET /v1/vaults/{vault_id}/credentials/{credential_id}",
        "vaults.credentials.update POST /v1/vaults/{vault_id}/credentials/{credential_id}",
        "vaults.credentials.delete DELETE /v1/vaults/{vault_id}/credentials/{credential_id}",
        "vaults.credentials.archive POST /v1/vaults/{vault_id}/credentials/{credential_id}/archive",
        "vaults.credentials.mcp_oauth_validate POST /v1/vaults/{vault_id}/credentials/{credential_id}/mcp_oauth_validate",
    ),
}


_OTHER_APIS: Final[dict[str, tuple[str, ...]]] = {
    "this server runs agents; programs ask for models where the server does (ROOST_MODEL_URL).": (
        "models.list GET /v1/models",
        "models.retrieve GET /v1/models/{model_id}",
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

OPERATIONS: Final[tuple[Operation, ...]] = (
    *_AGENTS,
    *_ENVIRONMENTS,
    *_SESSIONS,
    *_THREADS,
    *RESOURCES,
    *SKILLS,
    *FILES,
    *_KEYS,
    *_NODES,
    *_TASKS,
    *WORKSPACE_FILES,
    *WORKSPACES,
    *FORKS,
    *_LOGINS,
    *_OPEN,
    *(_refused(line, why) for why, lines in _REFUSED.items() for line in lines),
    *OTHER_APIS,
)
