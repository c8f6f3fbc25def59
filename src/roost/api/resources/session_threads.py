"""`/v1/sessions/{id}/threads`: the primary thread, which is the session seen as a thread."""

from __future__ import annotations

from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall, reply
from roost.api.framework.paging import cursor_in, page
from roost.api.resources import session_events, views
from roost.domain.session import Session
from roost.errors import NotFound


async def list_(call: ApiCall) -> ASGIApp:
    """The threads of a session: one."""
    session = await call.session("see")
    beyond = cursor_in(call.query, f"{session.id}.threads", "desc") is not None
    wanted = session.state.status in call.query.get("statuses", [session.state.status])
    return reply(page([views.thread(session)] if wanted and not beyond else [], None))


async def retrieve(call: ApiCall) -> ASGIApp:
    """A thread."""
    return reply(views.thread(await _session(call)))


async def list_events(call: ApiCall) -> ASGIApp:
    """A thread's events."""
    return await session_events.listed(call, await _session(call))


async def stream(call: ApiCall) -> ASGIApp:
    """A thread's events as they are logged."""
    return await session_events.streamed(call, await _session(call))


async def _session(call: ApiCall) -> Session:
    session = await call.session("see")
    if call.params["thread_id"] != session.state.thread_id:
        raise NotFound(f"thread {call.params['thread_id']} was not found")
    return session
