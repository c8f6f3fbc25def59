"""The resource `/v1/sessions/{session_id}/resources`: files and repositories of a session."""

from __future__ import annotations

from typing import Final, Required, TypedDict

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.bounds import ID, NAME
from roost.api.framework.call import ApiCall
from roost.api.framework.paging import Cursor, cursor_in, page
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.core.files.resources import Resources, found
from roost.domain.resource import MOST
from roost.domain.session import Session

_ALL = "/v1/sessions/{session_id}/resources"
_RESOURCE = "beta.sessions.BetaManagedAgentsSessionResource"
_ONE = "/v1/sessions/{session_id}/resources/{resource_id}"

RESOURCE: Final = Resource(
    bounds={
        "*.mount_path": Field(max_length=600),
        "*.authorization_token": Field(max_length=4096),
        "BetaManagedAgentsGitHubRepositoryResourceParams.url": Field(max_length=2048),
        "BetaManagedAgentsBranchCheckoutParam.name": NAME,
        "BetaManagedAgentsCommitCheckoutParam.sha": ID,
    },
)


class ResourceUpdateParams(TypedDict):
    """What can be changed. The official type has the session in it, which is in the path."""

    authorization_token: Required[str]


@RESOURCE.get(
    "sessions.resources.list",
    _ALL,
    "beta.sessions.ResourceListParams",
    reply=_RESOURCE,
    form="page",
)
async def list_(call: ApiCall) -> ASGIApp:
    """A session's resources, as they were added; all of them, unless there is a limit."""
    session = await call.session("see")
    limit, cursor = call.query.get("limit", MOST), cursor_in(call.query, session.id, "asc")
    left = sorted(session.spec.resources, key=lambda each: str(each["id"]))
    if cursor is not None:
        left = [each for each in left if each["id"] > str(cursor.after)]
    shown = left[:limit]
    more = len(left) > limit
    last = Cursor(of=session.id, order="asc", after=shown[-1]["id"]) if more else None
    return reply(page(shown, last))


@RESOURCE.post(
    "sessions.resources.add",
    _ALL,
    "beta.sessions.ResourceAddParams",
    reply="beta.sessions.BetaManagedAgentsFileResource",
)
async def add(call: ApiCall, resources: Resources) -> ASGIApp:
    """A file more, for the session to read."""
    session = await _session(call)
    return reply(await resources.add(call.key, session, call.body))


@RESOURCE.get("sessions.resources.retrieve", _ONE, reply="beta.sessions.ResourceRetrieveResponse")
async def retrieve(call: ApiCall) -> ASGIApp:
    """One resource."""
    session = await call.session("see")
    return reply(found(session, call.params["resource_id"]))


@RESOURCE.post(
    "sessions.resources.update",
    _ONE,
    ResourceUpdateParams,
    reply="beta.sessions.ResourceUpdateResponse",
)
async def update(call: ApiCall, resources: Resources) -> ASGIApp:
    """A repository, with another token."""
    session, token = await _session(call), call.body["authorization_token"]
    resource_id = call.params["resource_id"]
    return reply(await resources.rotate(call.tenant, session, resource_id, token))


@RESOURCE.delete(
    "sessions.resources.delete", _ONE, reply="beta.sessions.BetaManagedAgentsDeleteSessionResource"
)
async def delete(call: ApiCall, resources: Resources) -> ASGIApp:
    """A file less."""
    session, resource_id = await _session(call), call.params["resource_id"]
    await resources.remove(call.tenant, session, resource_id)
    return reply({"id": resource_id, "type": "session_resource_deleted"})


async def _session(call: ApiCall) -> Session:
    return await call.session("tell")
