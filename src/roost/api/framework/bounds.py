"""What the official types leave out: sizes and patterns, Roost's own fields, and where null is fine.

Keyed by the official type and field, `*` for every type. `api/framework/shapes.py` puts them on.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field
from pydantic.fields import FieldInfo

from roost.domain.session import Fallback, MountScope, TrustLevel

LARGEST_INT: Final = 2**31 - 1

_NAME = Field(min_length=1, max_length=256)
_DOMAINS = Field(min_length=1, max_length=64)
_PAGE_OF_100 = Field(ge=1, le=100)
_PAGE_OF_1000 = Field(ge=1, le=1000)
_ID = Field(min_length=1, max_length=128)
_METADATA = Field(max_length=16)
_DESCRIPTION = Field(max_length=2048)
_TITLE = Field(max_length=2048)
_PATH = Field(max_length=4096)
_VERSION = Field(ge=1, le=LARGEST_INT)

BOUNDS: Final[dict[str, FieldInfo]] = {
    "*.limit": _PAGE_OF_1000,
    "*.page": Field(min_length=1, max_length=1024),
    "*.agent_id": _ID,
    "*.environment_id": _ID,
    "*.tool_use_id": _ID,
    "*.custom_tool_use_id": _ID,
    "*.session_thread_id": _ID,
    "*.system": Field(max_length=100_000),
    "*.tools": Field(max_length=128),
    "*.mcp_servers": Field(max_length=20),
    "*.skills": Field(max_length=500),
    "*.configs": Field(max_length=256),
    "*.allowed_domains": _DOMAINS,
    "*.blocked_domains": _DOMAINS,
    "*.event_deltas": Field(max_length=100),
    "*.max_content_tokens": Field(ge=1, le=LARGEST_INT),
    "*.max_iterations": Field(ge=1, le=20),
    "AgentCreateParams.name": _NAME,
    "AgentCreateParams.description": _DESCRIPTION,
    "AgentCreateParams.metadata": _METADATA,
    "AgentRetrieveParams.version": _VERSION,
    "AgentUpdateParams.name": _NAME,
    "AgentUpdateParams.description": _DESCRIPTION,
    "AgentUpdateParams.version": _VERSION,
    "BetaManagedAgentsAgentParams.id": _ID,
    "BetaManagedAgentsAgentParams.version": _VERSION,
    "BetaManagedAgentsAgentWithOverridesParams.id": _ID,
    "BetaManagedAgentsAgentWithOverridesParams.version": _VERSION,
    "AgentListParams.limit": _PAGE_OF_100,
    "VersionListParams.limit": _PAGE_OF_100,
    "EnvironmentCreateParams.name": _NAME,
    "EnvironmentCreateParams.description": _DESCRIPTION,
    "EnvironmentCreateParams.metadata": _METADATA,
    "EnvironmentUpdateParams.name": _NAME,
    "EnvironmentUpdateParams.description": _DESCRIPTION,
    "SessionListParams.agent_version": _VERSION,
    "SessionCreateParams.title": _TITLE,
    "SessionUpdateParams.title": _TITLE,
    "SessionCreateParams.metadata": _METADATA,
    "SessionCreateParams.resources": Field(max_length=500),
    "*.mount_path": Field(max_length=600),
    "*.authorization_token": Field(max_length=4096),
    "BetaManagedAgentsGitHubRepositoryResourceParams.url": Field(max_length=2048),
    "BetaManagedAgentsBranchCheckoutParam.name": _NAME,
    "BetaManagedAgentsCommitCheckoutParam.sha": _ID,
    "SessionCreateParams.initial_events": Field(max_length=50),
    "EventSendParams.events": Field(min_length=1, max_length=1000),
    "KeyCreateParams.name": _NAME,
    "KeyUpdateParams.name": _NAME,
    "FileListParams.ids": Field(max_length=100),
    "FileListParams.scope_id": _ID,
    "FileListParams.after_id": _ID,
    "FileListParams.before_id": _ID,
    "*.file_id": _ID,
    "WorkspaceFileListParams.path": _PATH,
    "WorkspaceFileContentParams.path": _PATH,
    "WorkspaceFileDeleteParams.path": _PATH,
    "BetaManagedAgentsModelConfigParams.id": _NAME,
    "BetaManagedAgentsUserMessageEventParams.content": Field(min_length=1, max_length=1000),
    "BetaManagedAgentsSystemMessageEventParams.content": Field(min_length=1, max_length=1000),
    "BetaManagedAgentsUserCustomToolResultEventParams.content": Field(max_length=1000),
    "BetaManagedAgentsCustomToolParams.name": Field(pattern=r"^[A-Za-z0-9_-]{1,128}$"),
    "BetaManagedAgentsCustomToolParams.description": Field(min_length=1),
    "BetaManagedAgentsMCPToolsetParams.mcp_server_name": Field(min_length=1, max_length=255),
    "BetaManagedAgentsURLMCPServerParams.name": Field(min_length=1, max_length=255),
    "BetaManagedAgentsURLMCPServerParams.url": Field(pattern=r"^https?://[^\s/]+", max_length=2048),
    "BetaManagedAgentsMCPToolConfigParams.name": Field(min_length=1, max_length=128),
    "BetaManagedAgentsAnthropicSkillParams.skill_id": _NAME,
    "BetaManagedAgentsCustomSkillParams.skill_id": _NAME,
    "BetaManagedAgentsWebFetchURLSourceOnlyParam.tools": Field(min_length=1, max_length=128),
    "BetaManagedAgentsWebFetchURLSourceExceptParam.tools": Field(min_length=1, max_length=128),
}

_CLIENT_ID: dict[str, Any] = {"client_id": Annotated[str, Field(min_length=1, max_length=128)]}
_AFTER: dict[str, Any] = {"after": int}

EXTRAS: Final[dict[str, dict[str, Any]]] = {
    "SessionCreateParams": {
        "trust_level": TrustLevel,
        "workspace": Annotated[str, Field(max_length=256)] | None,
        "mount_scope": MountScope,
        "harness": Annotated[str, Field(min_length=1, max_length=64)],
        "sandbox_fallback": Fallback,
        "task_id": Annotated[str, Field(min_length=1, max_length=128)],
    },
    "SessionListParams": {"waiting": bool},
    "FileListParams": {"after_id": str, "before_id": str},
    "EventStreamParams": _AFTER,
    "EventListParams": {"include_rewound": bool},
    "BetaManagedAgentsUserMessageEventParams": _CLIENT_ID,
    "BetaManagedAgentsUserInterruptEventParams": _CLIENT_ID,
    "BetaManagedAgentsUserToolConfirmationEventParams": {
        **_CLIENT_ID,
        "modified_input": dict[str, Any],
    },
    "BetaManagedAgentsUserCustomToolResultEventParams": _CLIENT_ID,
    "BetaManagedAgentsUserDefineOutcomeEventParams": _CLIENT_ID,
    "BetaManagedAgentsUserToolResultEventParams": _CLIENT_ID,
    "BetaManagedAgentsSystemMessageEventParams": _CLIENT_ID,
}

NULLABLE: Final[dict[str, frozenset[str]]] = {
    # Null clears an override; the official types say so in words only.
    "BetaManagedAgentsAgentWithOverridesParams": frozenset(
        {"model", "tools", "mcp_servers", "skills"}
    ),
}

HEADERS: Final = frozenset({"betas", "workspace_id"})
"""Fields of the official types that travel as headers."""


def bound_of(owner: str, field: str) -> FieldInfo | None:
    """The bound on a field of an official type, if there is one."""
    return BOUNDS.get(f"{owner}.{field}") or BOUNDS.get(f"*.{field}")
