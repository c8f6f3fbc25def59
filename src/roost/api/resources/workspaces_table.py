"""The operations on workspaces, for the table in `api/operations.py`."""

from __future__ import annotations

from typing import Final

from roost.api.framework.routes import delete, get, post
from roost.api.resources import workspaces

_ALL: Final = "/roost/v1/workspaces"
_ONE: Final = f"{_ALL}/{{workspace_id}}"

WORKSPACES: Final = (
    post("roost.workspaces.create", _ALL, workspaces.create, workspaces.WorkspaceCreateParams),
    get("roost.workspaces.list", _ALL, workspaces.list_, workspaces.WorkspaceListParams),
    get("roost.workspaces.retrieve", _ONE, workspaces.retrieve),
    post("roost.workspaces.update", _ONE, workspaces.update, workspaces.WorkspaceUpdateParams),
    delete("roost.workspaces.delete", _ONE, workspaces.delete, workspaces.WorkspaceDeleteParams),
    post(
        "roost.workspaces.share",
        f"{_ONE}/permissions",
        workspaces.share,
        workspaces.WorkspaceShareParams,
    ),
    get(
        "roost.workspaces.sessions.list",
        f"{_ONE}/sessions",
        workspaces.list_sessions,
        workspaces.WorkspaceSessionsParams,
    ),
)
