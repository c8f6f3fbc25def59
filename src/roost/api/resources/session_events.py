"""`/v1/sessions/{id}/events`: the write and the read, where most requests go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Final

from msgspec.structs import replace
from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.bounds import ID
from roost.api.framework.call import ApiCall, fingerprint
from roost.api.framework.paging import Cursor, Order, cursor_in, cut
from roost.api.framework.query import span_of
from roost.api.framework.replies import JsonBytes
from roost.api.framework.resource import Resource
from roost.api.framework.sse import EventStream, StreamRequest
from roost.core.files.attachments import Attachments
from roost.core.read.follow import Follow
from roost.core.read.known_results import known_results
from roost.core.read.large_events import EventPages
from roost.core.sandbox.budgets import Budgets
from roost.core.sessions.harness_choice import HarnessChoice
from roost.core.write.intake import Intake
from roost.domain.events import Draft, Entry
from roost.domain.rewinds import hidden
from roost.domain.session import Session
from roost.errors import InvalidRequest, Unavailable
from roost.ports.drafts import new_event_id
from roost.ports.log import EventQuery, Receipt, is_full

_PAGE = 1000
_PAGE_BYTES = 1024 * 1024
_EVENT = "beta.sessions.BetaManagedAgentsSessionEvent"
Event = dict[str, Any]
_CONTENT = Field(min_length=1, max_length=1000)
_CLIENT_ID: dict[str, Any] = {"client_id": Annotated[str, ID]}
_NOT_SERVED = {"user.define_outcome": "outcomes are not served"}
_ON_CLOUD = "only valid on self-hosted environments, and this session is on a cloud one"
_RESULTS = ("user.tool_result", "user.custom_tool_result")
_ACCOMPANIED = ("user.message", *_RESULTS)

RESOURCE: Final = Resource(
    bounds={
        "EventSendParams.events": Field(min_length=1, max_length=1000),
        "BetaManagedAgentsUserMessageEventParams.content": _CONTENT,
        "BetaManagedAgentsSystemMessageEventParams.content": _CONTENT,
        "BetaManagedAgentsUserCustomToolResultEventParams.content": Field(max_length=1000),
        "BetaManagedAgentsUserToolResultEventParams.content": Field(max_length=1000),
        "*.tool_use_id": ID,
        "*.custom_tool_use_id": ID,
        "*.session_thread_id": ID,
        "*.max_iterations": Field(ge=1, le=20),
        "*.event_deltas": Field(max_length=100),
    },
    fields={
        "EventStreamParams": {"after": int},
        "EventListParams": {"include_rewound": bool},
        "BetaManagedAgentsUserMessageEventParams": _CLIENT_ID,
        "BetaManagedAgentsUserInterruptEventParams": _CLIENT_ID,
        "BetaManagedAgentsUserToolConfirmationEventParams": {
            **_CLIENT_ID,
            "modified_input": dict[str, Any],
        },
        "BetaManagedAgentsUserCustomToolResultEventParams": _CLIENT_ID,
        "BetaManagedAgentsUserDefineOutcomeEventParams": _CLIENT_ID,
        "BetaManagedAgentsUserToolResultEventParams": _CLIENT_ID,
        "BetaManagedAgentsSystemMessageEventParams": _CLIENT_ID,
    },
)


@RESOURCE.post(
    "sessions.events.send",
    "/v1/sessions/{session_id}/events",
    "beta.sessions.EventSendParams",
    reply="beta.sessions.BetaManagedAgentsSendSessionEvents",
)
async def send(
    call: ApiCall,
    budgets: Budgets,
    attachments: Attachments,
    intake: Intake,
    choice: HarnessChoice,
    events: EventPages,
) -> ASGIApp:
    """Inputs: answered when they are durable, with their place in the log."""
    if call.worker is not None:
        call.worker.check_sent(call.body["events"])
    session = call.known_session("tell") or await call.session("tell")
    drafts = drafts_of(
        call.body["events"],
        "events",
        session.state.thread_id,
        self_hosted=session.spec.self_hosted,
    )
    choice.check_inputs(session.spec.harness, drafts, "events")
    budgets.admit(session, drafts)
    receipts = receipts_of(call.body["events"], call.idempotency_key, call.raw)
    write = partial(intake.accept, session.id, drafts, receipts)
    try:
        accepted = await attachments.kept(call.key, session.id, drafts, "events", write)
    except InvalidRequest:
        if session.spec.self_hosted and (known := await known_results(events, session.id, drafts)):
            return JsonBytes(b'{"data":[%b]}' % _joined(known))
        raise
    if not accepted.repeated:
        call.deps.meters.accepted(len(accepted.entries))
    return JsonBytes(b'{"data":[%b]}' % _joined(accepted.entries))


@RESOURCE.get(
    "sessions.events.list",
    "/v1/sessions/{session_id}/events",
    "beta.sessions.EventListParams",
    reply=_EVENT,
    form="page",
)
async def list_(call: ApiCall, follow: Follow, events: EventPages) -> ASGIApp:
    """Events, oldest first unless asked otherwise."""
    session = await call.session("see")
    await follow.looked(session)
    return await listed(call, session, events)


@RESOURCE.get(
    "sessions.events.stream",
    "/v1/sessions/{session_id}/events/stream",
    "beta.sessions.EventStreamParams",
    form="stream",
)
async def stream(call: ApiCall, follow: Follow) -> ASGIApp:
    """Events as they are logged."""
    session = await call.session("see")
    return await streamed(call, session, follow)


async def listed(call: ApiCall, session: Session, events: EventPages) -> ASGIApp:
    """A page of a session's events, as the query asks for it."""
    order: Order = call.query.get("order", "asc")
    limit = call.query.get("limit", _PAGE)
    cursor = cursor_in(call.query, session.id, order)
    query = _query(call.query, order, cursor, limit)
    if order == "desc" and query.as_of is None:
        query = replace(query, as_of=session.state.head)  # pages of one moment
    if not call.query.get("include_rewound", False):
        as_of = session.state.head if query.as_of is None else query.as_of
        query = replace(query, hidden=hidden(session.state.rewinds, as_of))
    async with events.page(session.id, query) as found:
        entries, more = _cut(found, limit)
        following = "null"
        if more:
            end = entries[-1]
            last = Cursor(of=session.id, order=order, after=end.seq, at=end.at, as_of=query.as_of)
            following = f'"{last.encoded()}"'
        return JsonBytes(b'{"data":[%b],"next_page":%b}' % (_joined(entries), following.encode()))


async def streamed(call: ApiCall, session: Session, follow: Follow) -> ASGIApp:
    """A session's events from now on, or from where the client says it was."""
    server = call.deps.server
    if server.stopping():
        raise Unavailable("the server is stopping; try again")
    after = _resumed_at(call, session)
    server.streams.check(call.key.id, call.deps.settings.max_streams)
    worker, workers = call.worker, call.deps.workers
    asked = StreamRequest(
        session=session,
        after=await follow.start_of(session) if after is None else after,
        resumes=after is not None,
        previews=frozenset(call.query.get("event_deltas", ())),
        openers=(call.key.id, call.login.id if call.login else None),
        request_id=call.request_id,
        until=None if worker is None else partial(workers.until_over, worker),
    )
    return EventStream(follow, server, asked)


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
    given: Any = call.headers.get("last-event-id") or call.query.get("after")
    if given is None:
        return None
    if isinstance(given, str) and not (given.isascii() and given.isdigit() and len(given) < 16):
        raise InvalidRequest("last-event-id: give the `id` of a frame of this stream")
    if int(given) > session.state.head:
        raise InvalidRequest(f"the session's log ends at {session.state.head}, before {given}")
    return int(given)


def _joined(entries: Iterable[Entry]) -> bytes:
    """Events with their seq, written without being parsed."""
    return b",".join([b'%b,"seq":%d}' % (entry.json()[:-1], entry.seq) for entry in entries])


# Inputs: what is wrong with them beyond their shape, and what is written of them


def drafts_of(
    events: Sequence[Event], at: str, thread_id: str | None = None, *, self_hosted: bool = False
) -> list[Draft]:
    """The events as they are written. :raises InvalidRequest: naming the field, from `at` on"""
    for i, event in enumerate(events):
        if event["type"] == "user.tool_result" and not self_hosted:
            raise InvalidRequest(f"{at}.{i}.type: user.tool_result is refused: {_ON_CLOUD}")
        _check(event, f"{at}.{i}", thread_id)
        if event["type"] == "system.message":
            _check_system_message(events, i, at)
    return [_draft(event) for event in events]


def receipts_of(events: Sequence[Event], key: str | None, raw: bytes) -> list[Receipt | None]:
    """What the events of a request are remembered by: their own ids, else the request's key."""
    whole = fingerprint(raw) if key is not None else ""
    receipts: list[Receipt | None] = []
    for i, event in enumerate(events):
        if "client_id" in event:
            receipts.append(Receipt(f"c:{event['client_id']}", fingerprint(event)))
        else:
            receipts.append(None if key is None else Receipt(f"h:{key}:{i}", whole))
    return receipts if any(receipts) else []


def _draft(event: Event) -> Draft:
    fields = event.copy()
    return Draft.of_fields(fields.pop("type"), new_event_id(), fields)


def _check(event: Event, at: str, thread_id: str | None) -> None:
    kind = event["type"]
    if kind in _NOT_SERVED:
        raise InvalidRequest(f"{at}.type: {kind} is refused: {_NOT_SERVED[kind]}")
    if kind == "user.tool_confirmation":
        _check_confirmation(event, at)
    if kind == "user.interrupt" and event.get("session_thread_id") not in (None, thread_id):
        raise InvalidRequest(f"{at}.session_thread_id: this session has no such thread")
    for i, block in enumerate(event.get("content") or ()):
        if kind != "user.message" or block["type"] != "text" or not block["text"]:
            _check_block(kind, block, f"{at}.content.{i}")


def _check_confirmation(event: Event, at: str) -> None:
    if event["result"] == "allow" and event.get("deny_message"):
        raise InvalidRequest(f"{at}.deny_message: only allowed when result is 'deny'")
    if event["result"] == "deny" and "modified_input" in event:
        raise InvalidRequest(f"{at}.modified_input: only allowed when result is 'allow'")


def _check_block(kind: str, block: Event, at: str) -> None:
    if block["type"] == "redacted":
        raise InvalidRequest(f"{at}.type: a redacted block cannot be sent")
    if kind not in _RESULTS and block["type"] == "text" and not block["text"]:
        raise InvalidRequest(f"{at}.text: must not be empty")
    is_file = block["type"] in ("image", "document") and block["source"]["type"] == "file"
    if is_file and kind != "user.message":
        raise InvalidRequest(
            f"{at}.source: files are served in messages only",
            hint="Send the content itself, as base64 or text.",
        )


def _check_system_message(events: Sequence[Event], i: int, at: str) -> None:
    last = i == len(events) - 1
    if not last or i == 0 or events[i - 1]["type"] not in _ACCOMPANIED:
        raise InvalidRequest(
            f"{at}.{i}: a system.message is the last event of a request, right after the "
            "user.message or tool result it accompanies"
        )
