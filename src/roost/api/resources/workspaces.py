"""`/roost/v1/workspaces`: named directories that outlive the sessions in them, and are shared."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, Required, TypedDict

from msgspec.structs import asdict
from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall
from roost.api.framework.paging import record_page, record_query
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.api.resources import sessions
from roost.core.access.workspaces import NamedWorkspaces
from roost.core.sessions.lifecycle import Lifecycle
from roost.domain import workspace
from roost.domain.events import iso
from roost.domain.session import MountScope, TrustLevel
from roost.domain.workspace import EVERYONE, Access, Writers
from roost.errors import InvalidRequest
from roost.ports.catalog import Record

_ALL = "/roost/v1/workspaces"
_ONE = f"{_ALL}/{{workspace_id}}"
_Name = Annotated[str, Field(min_length=1, max_length=128)]
_Description = Annotated[str, Field(max_length=2048)]

RESOURCE: Final = Resource()


class WorkspaceSettings(TypedDict, total=False):
    """How a workspace is treated. Null takes a setting back to its default."""

    quota_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None
    keep_snapshots: Annotated[int, Field(ge=1, le=100)] | None
    keep_days: Annotated[int, Field(ge=1, le=36_500)] | None
    mount_scope: MountScope | None
    trust_levels: Annotated[list[TrustLevel], Field(max_length=3)] | None
    writers: Writers | None


class WorkspaceCreateParams(TypedDict, total=False):
    """A new workspace."""

    name: Required[_Name]
    description: _Description
    settings: WorkspaceSettings


class WorkspaceUpdateParams(TypedDict, total=False):
    """What is to be changed of a workspace."""

    name: _Name
    description: _Description
    settings: WorkspaceSettings


class WorkspaceListParams(TypedDict, total=False):
    """Which workspaces to list."""

    limit: int
    page: str


class WorkspaceSessionsParams(TypedDict, total=False):
    """Which sessions of a workspace to list."""

    limit: int
    page: str
    order: Literal["asc", "desc"]
    include_archived: bool


class WorkspaceDeleteParams(TypedDict, total=False):
    """How to delete a workspace: with `force`, also from under sessions that use it."""

    force: bool


class WorkspaceShareParams(TypedDict, total=False):
    """Who may do what with a workspace; either one key, or all of the tenant's."""

    key_id: Annotated[str, Field(min_length=1, max_length=128)]
    everyone: bool
    access: Required[Access | Literal["none"]]


@RESOURCE.post("roost.workspaces.create", _ALL, WorkspaceCreateParams)
async def create(call: ApiCall, workspaces: NamedWorkspaces) -> ASGIApp:
    """A new workspace, which its creator administers."""
    return reply(_view(await workspaces.create(call.key, call.body)))


@RESOURCE.get("roost.workspaces.list", _ALL, WorkspaceListParams)
async def list_(call: ApiCall, workspaces: NamedWorkspaces) -> ASGIApp:
    """The workspaces that the caller may read, newest first."""
    query = record_query(call.query, "workspace", call.tenant)
    return reply(await record_page(partial(workspaces.page, call.key), query, _view))


@RESOURCE.get("roost.workspaces.retrieve", _ONE)
async def retrieve(call: ApiCall, workspaces: NamedWorkspaces) -> ASGIApp:
    """A workspace, by its id or its name."""
    return reply(_view(await workspaces.get(call.key, call.params["workspace_id"])))


@RESOURCE.post("roost.workspaces.update", _ONE, WorkspaceUpdateParams)
async def update(call: ApiCall, workspaces: NamedWorkspaces) -> ASGIApp:
    """A workspace with another name, or other settings."""
    workspace_id = call.params["workspace_id"]
    return reply(_view(await workspaces.update(call.key, workspace_id, call.body)))


@RESOURCE.delete("roost.workspaces.delete", _ONE, WorkspaceDeleteParams)
async def delete(call: ApiCall, workspaces: NamedWorkspaces) -> ASGIApp:
    """Gone, and its files soon after."""
    workspace_id, force = call.params["workspace_id"], call.query.get("force", False)
    deleted = await workspaces.delete(call.key, workspace_id, force=force)
    return reply({"id": deleted.id, "type": "workspace_deleted"})


@RESOURCE.post("roost.workspaces.share", f"{_ONE}/permissions", WorkspaceShareParams)
async def share(call: ApiCall, workspaces: NamedWorkspaces) -> ASGIApp:
    """A workspace that somebody may do more with, or less."""
    given, access = call.body, call.body["access"]
    if ("key_id" in given) is bool(given.get("everyone")):
        raise InvalidRequest("key_id: give either `key_id`, or `everyone: true`")
    whom = given.get("key_id", EVERYONE)
    record = await workspaces.share(
        call.key, call.params["workspace_id"], whom, None if access == "none" else access
    )
    return reply(_view(record))


@RESOURCE.get("roost.workspaces.sessions.list", f"{_ONE}/sessions", WorkspaceSessionsParams)
async def list_sessions(
    call: ApiCall, workspaces: NamedWorkspaces, lifecycle: Lifecycle
) -> ASGIApp:
    """The sessions that use a workspace."""
    record = await workspaces.get(call.key, call.params["workspace_id"])
    return reply(await sessions.page_of(call, lifecycle, workspace=record.id))


def _view(record: Record) -> dict[str, Any]:
    body = record.body
    return {
        "type": "workspace",
        "id": record.id,
        "name": body["name"],
        "description": body["description"],
        "settings": asdict(workspace.settings_of(body)),
        "permissions": [_permission(whom, access) for whom, access in body["permissions"].items()],
        "created_at": iso(record.created_at),
        "updated_at": iso(record.updated_at),
    }


def _permission(whom: str, access: str) -> dict[str, str]:
    if whom == EVERYONE:
        return {"type": EVERYONE, "access": access}
    return {"type": "key", "key_id": whom, "access": access}
