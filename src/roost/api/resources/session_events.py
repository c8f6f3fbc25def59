"""`/v1/sessions/{id}/events`: the write and the read, where most requests go."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall, JsonBytes
from roost.api.framework.paging import Cursor, Order, cursor_in, cut
from roost.api.framework.query import span_of
from roost.api.framework.sse import EventStream
from roost.api.resources.session_inputs import drafts_of, receipts_of
from roost.domain.events import Entry
from roost.domain.session import Session
from roost.domain.turns import hidden
from roost.errors import InvalidRequest, Unavailable
from roost.ports.log import EventQuery, is_full

_PAGE = 1000
_PAGE_BYTES = 1024 * 1024


async def send(call: ApiCall) -> ASGIApp:
    """Inputs: answered when they are durable, with their place in the log."""
    session = await call.session("tell")
    drafts = drafts_of(call.body["events"], "events", session.state.thread_id)
    call.deps.budgets.admit(session, drafts)
    receipts = receipts_of(call.body["events"], call.idempotency_key, call.raw)
    async with call.deps.attachments.kept(call.key, session.id, drafts, "events"):
        accepted = await call.deps.intake.accept(session.id, drafts, receipts)
    if not accepted.repeated:
        call.deps.meters.accepted.inc(len(accepted.entries))
    return JsonBytes(b'{"data":[%b]}' % _joined(accepted.entries))


async def list_(call: ApiCall) -> ASGIApp:
    """Events, oldest first unless asked otherwise."""
    session = await call.session("see")
    await call.deps.follow.looked(session)
    return await listed(call, session)


async def stream(call: ApiCall) -> ASGIApp:
    """Events as they are logged."""
    session = await call.session("see")
    return await streamed(call, session)


async def listed(call: ApiCall, session: Session) -> ASGIApp:
    """A page of a session's events."""
    order: Order = call.query.get("order", "asc")
    limit = call.query.get("limit", _PAGE)
    cursor = cursor_in(call.query, session.id, order)
    query = _query(call.query, order, cursor, limit)
    if order == "desc" and query.as_of is None:
        query = replace(query, as_of=session.state.head)  # pages of one moment
    if not call.query.get("include_rewound", False):
        as_of = session.state.head if query.as_of is None else query.as_of
        query = replace(query, hidden=hidden(session.state.rewinds, as_of))
    async with call.deps.large.page(partial(call.deps.log.page, session.id, query)) as found:
        entries, more = _cut(found, limit)
        following = "null"
        if more:
            end = entries[-1]
            word = Cursor(of=session.id, order=order, after=end.seq, at=end.at, as_of=query.as_of)
            following = f'"{word.word()}"'
        return JsonBytes(b'{"data":[%b],"next_page":%b}' % (_joined(entries), following.encode()))


async def streamed(call: ApiCall, session: Session) -> ASGIApp:
    """A session's events from now on, or from where the client says it was."""
    deps = call.deps
    if deps.stopping():
        raise Unavailable("the server is stopping; try again")
    after = _resumed_at(call, session)
    deps.streams.check(call.key.id, deps.settings.max_streams)
    return EventStream(
        deps.follow,
        deps.streams,
        session,
        after,
        await deps.follow.start_of(session) if after is None else after,
        previews=frozenset(call.query.get("event_deltas", ())),
        openers=(call.key.id, call.login.id if call.login else None),
        request_id=call.request_id,
        stopping=deps.stopping,
    )


def _query(asked: dict[str, Any], order: Order, cursor: Cursor | None, limit: int) -> EventQuery:
    since, until = span_of(asked)
    place = None if cursor is None else int(cursor.after)
    return EventQuery(
        types=asked.get("types", ()),
        after=place or 0 if order == "asc" else 0,
        before=place if order == "desc" else None,
        since=since,
        until=until,
        order=order,
        as_of=None if cursor is None else cursor.as_of,
        limit=limit + 1,
        most_bytes=_PAGE_BYTES,
    )


def _cut(found: list[Entry], limit: int) -> tuple[list[Entry], bool]:
    """The page, and whether there is more. One that is short because of its bytes shows all but the last
    entry, which tells that there is more; one that is larger than a page by itself is shown alone, and
    nothing may follow.
    """
    entries, more = cut(found, limit)
    if more or not is_full(found, limit + 1, _PAGE_BYTES):
        return entries, more
    return (found[:-1] if len(found) > 1 else found), True


def _resumed_at(call: ApiCall, session: Session) -> int | None:
    # A browser repeats the address with its first `after`, and adds the newer header.
    said: Any = call.headers.get("last-event-id") or call.query.get("after")
    if said is None:
        return None
    if isinstance(said, str) and not (said.isascii() and said.isdigit() and len(said) < 16):
        raise InvalidRequest("last-event-id: give the `id` of a frame of this stream")
    if int(said) > session.state.head:
        raise InvalidRequest(f"the session's log ends at {session.state.head}, before {said}")
    return int(said)


def _joined(entries: Iterable[Entry]) -> bytes:
    """Events with their seq, written without being parsed."""
    return b",".join(b'%b,"seq":%d}' % (entry.json()[:-1], entry.seq) for entry in entries)
