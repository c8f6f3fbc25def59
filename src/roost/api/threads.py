"""`/v1/sessions/{id}/threads`: the primary thread, which is the session seen as a thread."""

from __future__ import annotations

from starlette.types import ASGIApp

from roost.api import events, views
from roost.api.call import Call, reply
from roost.api.paging import cursor_in, page
from roost.domain.session import Session
from roost.errors import NotFound


async def list_(call: Call) -> ASGIApp:
    """The threads of a session: one."""
    session = await call.session("see")
    beyond = cursor_in(call.query, f"{session.id}.threads", "desc") is not None
    wanted = session.state.status in call.query.get("statuses", [session.state.status])
    return reply(page([views.thread(session)] if wanted and not beyond else [], None))


async def retrieve(call: Call) -> ASGIApp:
    """A thread."""
    return reply(views.thread(await _session(call)))


async def list_events(call: Call) -> ASGIApp:
    """A thread's events."""
    return await events.listed(call, await _session(call))


async def stream(call: Call) -> ASGIApp:
    """A thread's events as they are logged."""
    return await events.streamed(call, await _session(call))


async def _session(call: Call) -> Session:
    session = await call.session("see")
    if call.params["thread_id"] != session.state.thread_id:
        raise NotFound(f"thread {call.params['thread_id']} was not found")
    return session
