"""`/v1/sessions/{id}/threads`: the primary thread, which is the session seen as a thread."""

from __future__ import annotations

from typing import Any, Final

from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall
from roost.api.framework.paging import cursor_in, page
from roost.api.framework.replies import reply, times
from roost.api.framework.resource import Resource
from roost.api.resources import session_events
from roost.api.resources.sessions import stats_of
from roost.core.read.follow import Follow
from roost.core.read.large_events import EventPages
from roost.domain.session import Session
from roost.errors import NotFound

_THREAD = "beta.sessions.BetaManagedAgentsSessionThread"
_EVENT = "beta.sessions.BetaManagedAgentsSessionEvent"

RESOURCE: Final = Resource()


@RESOURCE.get(
    "sessions.threads.list",
    "/v1/sessions/{session_id}/threads",
    "beta.sessions.ThreadListParams",
    reply=_THREAD,
    form="page",
)
async def list_(call: ApiCall) -> ASGIApp:
    """The threads of a session: one."""
    session = await call.session("see")
    beyond = cursor_in(call.query, f"{session.id}.threads", "desc") is not None
    wanted = session.state.status in call.query.get("statuses", [session.state.status])
    return reply(page([_view(session)] if wanted and not beyond else [], None))


@RESOURCE.get(
    "sessions.threads.retrieve", "/v1/sessions/{session_id}/threads/{thread_id}", reply=_THREAD
)
async def retrieve(call: ApiCall) -> ASGIApp:
    """A thread."""
    return reply(_view(await _session(call)))


@RESOURCE.get(
    "sessions.threads.events.list",
    "/v1/sessions/{session_id}/threads/{thread_id}/events",
    "beta.sessions.threads.EventListParams",
    reply=_EVENT,
    form="page",
)
async def list_events(call: ApiCall, events: EventPages) -> ASGIApp:
    """A thread's events."""
    return await session_events.listed(call, await _session(call), events)


@RESOURCE.get(
    "sessions.threads.events.stream",
    "/v1/sessions/{session_id}/threads/{thread_id}/stream",
    "beta.sessions.threads.EventStreamParams",
    form="stream",
)
async def stream(call: ApiCall, follow: Follow) -> ASGIApp:
    """A thread's events as they are logged."""
    return await session_events.streamed(call, await _session(call), follow)


async def _session(call: ApiCall) -> Session:
    session = await call.session("see")
    if call.params["thread_id"] != session.state.thread_id:
        raise NotFound(f"thread {call.params['thread_id']} was not found")
    return session


def _view(session: Session) -> dict[str, Any]:
    """The session's primary thread, the only one it has."""
    state = session.state
    agent = {field: value for field, value in session.spec.agent.items() if field != "multiagent"}
    stats = stats_of(session)
    return {
        "type": "session_thread",
        "id": state.thread_id,
        "session_id": session.id,
        "parent_thread_id": None,
        "agent": agent,
        "status": state.status,
        "stats": stats,
        "usage": state.shown_usage(stats["active_seconds"]),
        "workflow_run_id": None,
        **times(session.created_at, session.updated_at, state.archived_at),
    }
