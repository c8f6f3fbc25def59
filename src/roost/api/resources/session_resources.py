"""`/v1/sessions/{session_id}/resources`."""

from __future__ import annotations

from typing import Required, TypedDict

from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall, reply
from roost.api.framework.paging import Cursor, cursor_in, page
from roost.core.files.resources import found
from roost.domain.resource import MOST
from roost.domain.session import Session


class ResourceUpdateParams(TypedDict):
    """What can be changed. The official type has the session in it, which is in the path."""

    authorization_token: Required[str]


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


async def add(call: ApiCall) -> ASGIApp:
    """A file more, for the session to read."""
    session = await _session(call)
    return reply(await call.deps.resources.add(call.key, session, call.body))


async def retrieve(call: ApiCall) -> ASGIApp:
    """One resource."""
    session = await call.session("see")
    return reply(found(session, call.params["resource_id"]))


async def update(call: ApiCall) -> ASGIApp:
    """A repository, with another token."""
    session, token = await _session(call), call.body["authorization_token"]
    resource_id = call.params["resource_id"]
    return reply(await call.deps.resources.rotate(call.tenant, session, resource_id, token))


async def delete(call: ApiCall) -> ASGIApp:
    """A file less."""
    session, resource_id = await _session(call), call.params["resource_id"]
    await call.deps.resources.remove(call.tenant, session, resource_id)
    return reply({"id": resource_id, "type": "session_resource_deleted"})


async def _session(call: ApiCall) -> Session:
    return await call.session("tell")
