"""The resource `/v1/sessions`: making, changing, listing and ending sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec.structs import replace
from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.bounds import ID, METADATA, VERSION
from roost.api.framework.call import ApiCall, fingerprint
from roost.api.framework.paging import DEFAULT_PAGE, Cursor, Order, collect_page, cursor_in
from roost.api.framework.query import span_of
from roost.api.framework.replies import reply, times
from roost.api.framework.resource import Resource
from roost.api.resources.session_events import drafts_of
from roost.core.read.follow import Follow
from roost.core.sessions.lifecycle import Lifecycle
from roost.domain.session import MountScope, Session, Status, TrustLevel
from roost.domain.vault import MOST_VAULTS
from roost.ports.log import Receipt
from roost.ports.sessions import SessionQuery

_SESSION = "beta.BetaManagedAgentsSession"
_TITLE = Field(max_length=2048)
RESOURCE: Final = Resource(
    bounds={
        "SessionCreateParams.title": _TITLE,
        "SessionCreateParams.metadata": METADATA,
        "SessionCreateParams.resources": Field(max_length=500),
        "SessionCreateParams.initial_events": Field(max_length=50),
        "SessionCreateParams.vault_ids": Field(max_length=MOST_VAULTS),
        "SessionUpdateParams.title": _TITLE,
        "SessionListParams.agent_version": VERSION,
    },
    fields={
        "SessionCreateParams": {
            "trust_level": TrustLevel,
            "workspace": Annotated[str, Field(max_length=256)] | None,
            "mount_scope": MountScope,
            "harness": Annotated[str, Field(min_length=1, max_length=64)],
            "sandbox_fallback": Annotated[str, Field(min_length=1, max_length=64)],
            "task_id": Annotated[str, ID],
        },
        "SessionListParams": {"waiting": bool},
    },
)


@RESOURCE.post("sessions.create", "/v1/sessions", "beta.SessionCreateParams", reply=_SESSION)
async def create(call: ApiCall, lifecycle: Lifecycle) -> ASGIApp:
    """A new session, with its first inputs."""
    drafts = drafts_of(call.body.get("initial_events", []), "initial_events")
    key = call.idempotency_key
    receipt = None if key is None else Receipt(f"h:{key}:0", fingerprint(call.raw))
    session = await lifecycle.create(call.key, call.body, drafts, receipt)
    return reply(view(session))


@RESOURCE.get(
    "sessions.list", "/v1/sessions", "beta.SessionListParams", reply=_SESSION, form="pages"
)
async def list_(call: ApiCall, lifecycle: Lifecycle) -> ASGIApp:
    """Sessions by creation; pages go both ways."""
    return reply(await page_of(call, lifecycle))


@RESOURCE.get("sessions.retrieve", "/v1/sessions/{session_id}", reply=_SESSION)
async def retrieve(call: ApiCall, follow: Follow) -> ASGIApp:
    """A session as it stands."""
    session = await call.session("see")
    await follow.looked(session)
    return reply(view(session))


@RESOURCE.post(
    "sessions.update", "/v1/sessions/{session_id}", "beta.SessionUpdateParams", reply=_SESSION
)
async def update(call: ApiCall, lifecycle: Lifecycle) -> ASGIApp:
    """A session, changed."""
    session_id = call.params["session_id"]
    session = await lifecycle.update(call.key, session_id, call.body)
    return reply(view(session))


@RESOURCE.delete(
    "sessions.delete", "/v1/sessions/{session_id}", reply="beta.BetaManagedAgentsDeletedSession"
)
async def delete(call: ApiCall, lifecycle: Lifecycle) -> ASGIApp:
    """Gone, with its log."""
    session_id = call.params["session_id"]
    await lifecycle.delete(call.key, session_id)
    return reply({"id": session_id, "type": "session_deleted"})


@RESOURCE.post("sessions.archive", "/v1/sessions/{session_id}/archive", reply=_SESSION)
async def archive(call: ApiCall, lifecycle: Lifecycle) -> ASGIApp:
    """Ended for good, and still readable."""
    session = await lifecycle.archive(call.key, call.params["session_id"])
    return reply(view(session))


async def page_of(
    call: ApiCall, lifecycle: Lifecycle, workspace: str | None = None
) -> dict[str, Any]:
    """The page that a request asks for; only of a workspace, if one is named."""
    order: Order = call.query.get("order", "desc")
    cursor = cursor_in(call.query, "sessions", order)
    query = replace(_query(call, order, cursor), workspace=workspace)
    if "memory_store_id" in call.query:  # no session here has one
        return {"data": [], "next_page": None, "prev_page": None}

    async def some(after: Session | None, count: int) -> list[Session]:
        place = query.after if after is None else after.id
        got = await lifecycle.page(call.key, replace(query, after=place, limit=count))
        return got[::-1] if query.reverse else got

    found, more = await collect_page(some, query.limit, lambda session: session.spec)
    return _page(found[::-1] if query.reverse else found, more, query, cursor)


def _query(call: ApiCall, order: Order, cursor: Cursor | None) -> SessionQuery:
    asked = call.query
    since, until = span_of(asked)
    return SessionQuery(
        tenant=call.tenant,
        agent_id=asked.get("agent_id"),
        deployment_id=asked.get("deployment_id"),
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
        "data": [view(session) for session in shown],
        "next_page": _cursor(shown[-1], query.order, back=False) if shown and later else None,
        "prev_page": _cursor(shown[0], query.order, back=True) if shown and earlier else None,
    }


def _cursor(session: Session, order: Order, *, back: bool) -> str:
    return Cursor(
        of="sessions", order=order, after=session.id, at=session.created_at, back=back
    ).encoded()


def view(session: Session) -> dict[str, Any]:
    """The `session` object, with what Roost adds to it at the end."""
    spec, state = session.spec, session.state
    stats = stats_of(session)
    return {
        "type": "session",
        "id": session.id,
        "status": state.status,
        "title": spec.title,
        "agent": spec.agent,
        "environment_id": spec.environment_id,
        "deployment_id": spec.deployment_id,
        "vault_ids": spec.vault_ids,
        "resources": spec.resources,
        "metadata": spec.metadata,
        "outcome_evaluations": [],
        "usage": state.shown_usage(stats["active_seconds"]),
        "stats": stats,
        "budget": spec.budget,
        **times(session.created_at, session.updated_at, state.archived_at),
        "trust_level": spec.trust_level,
        "workspace": spec.workspace,
        "mount_scope": spec.mount_scope,
        "harness": spec.harness,
        "sandbox": spec.sandbox,
        "sandbox_fallback": spec.sandbox_fallback,
        "sdk_session_id": spec.sdk_session_id,
        "task_id": spec.task_id,
        "forked_from": spec.forked_from,
        "created_by": spec.created_by or None,
        "waiting_for": [p.event_id for p in state.pending if p.kind != "tool"],
    }


def stats_of(session: Session) -> dict[str, float]:
    """How long a session was at work, and how long it has existed, until it ended or now."""
    ended = session.state.status is Status.TERMINATED
    until = session.updated_at if ended else max(session.read_at, session.updated_at)
    return {
        "active_seconds": session.state.active_seconds(until),
        "duration_seconds": (until - session.created_at) / 1_000_000,
    }
