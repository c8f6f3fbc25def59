"""`/v1/sessions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall, fingerprint, reply
from roost.api.framework.paging import DEFAULT_PAGE, Cursor, Order, cursor_in, gathered
from roost.api.framework.query import span_of
from roost.api.resources import views
from roost.api.resources.session_inputs import drafts_of
from roost.domain.session import Session
from roost.ports.log import Receipt
from roost.ports.sessions import SessionQuery

_ELSEWHERE = ("deployment_id", "memory_store_id")  # no session here has one


async def create(call: ApiCall) -> ASGIApp:
    """A new session, with its first inputs."""
    drafts = drafts_of(call.body.get("initial_events", []), "initial_events")
    key = call.idempotency_key
    receipt = None if key is None else Receipt(f"h:{key}:0", fingerprint(call.raw))
    session = await call.deps.lifecycle.create(call.key, call.body, drafts, receipt)
    return reply(views.session(session))


async def retrieve(call: ApiCall) -> ASGIApp:
    """A session as it stands."""
    session = await call.session("see")
    await call.deps.follow.looked(session)
    return reply(views.session(session))


async def update(call: ApiCall) -> ASGIApp:
    """A session, changed."""
    session_id = call.params["session_id"]
    session = await call.deps.lifecycle.update(call.key, session_id, call.body)
    return reply(views.session(session))


async def archive(call: ApiCall) -> ASGIApp:
    """Ended for good, and still readable."""
    session = await call.deps.lifecycle.archive(call.key, call.params["session_id"])
    return reply(views.session(session))


async def delete(call: ApiCall) -> ASGIApp:
    """Gone, with its log."""
    session_id = call.params["session_id"]
    await call.deps.lifecycle.delete(call.key, session_id)
    return reply({"id": session_id, "type": "session_deleted"})


async def list_(call: ApiCall) -> ASGIApp:
    """Sessions by creation; pages go both ways."""
    return reply(await page_of(call))


async def page_of(call: ApiCall, workspace: str | None = None) -> dict[str, Any]:
    """The page that a request asks for; only of a workspace, if one is named."""
    order: Order = call.query.get("order", "desc")
    cursor = cursor_in(call.query, "sessions", order)
    query = replace(_query(call, order, cursor), workspace=workspace)
    if any(name in call.query for name in _ELSEWHERE):
        return {"data": [], "next_page": None, "prev_page": None}

    async def some(after: Session | None, count: int) -> list[Session]:
        place = query.after if after is None else after.id
        got = await call.deps.lifecycle.page(call.key, replace(query, after=place, limit=count))
        return got[::-1] if query.reverse else got

    found, more = await gathered(some, query.limit, lambda session: session.spec)
    return _page(found[::-1] if query.reverse else found, more, query, cursor)


def _query(call: ApiCall, order: Order, cursor: Cursor | None) -> SessionQuery:
    asked = call.query
    since, until = span_of(asked)
    return SessionQuery(
        tenant=call.tenant,
        agent_id=asked.get("agent_id"),
        agent_version=asked.get("agent_version") if "agent_id" in asked else None,
        statuses=asked.get("statuses", ()),
        waiting=asked.get("waiting", False),
        include_archived=asked.get("include_archived", False),
        since=since,
        until=until,
        order=order,
        after=None if cursor is None else str(cursor.after),
        reverse=cursor is not None and cursor.back,
        limit=asked.get("limit", DEFAULT_PAGE),
    )


def _page(
    shown: Sequence[Session], more: bool, query: SessionQuery, cursor: Cursor | None
) -> dict[str, Any]:
    """A page walked to from either side; `more`: there is more at the far end."""
    back = cursor is not None and cursor.back
    earlier = more if back else cursor is not None
    later = True if back else more
    return {
        "data": [views.session(session) for session in shown],
        "next_page": _cursor(shown[-1], query.order, back=False) if shown and later else None,
        "prev_page": _cursor(shown[0], query.order, back=True) if shown and earlier else None,
    }


def _cursor(session: Session, order: Order, *, back: bool) -> str:
    return Cursor(
        of="sessions", order=order, after=session.id, at=session.created_at, back=back
    ).word()
