"""What a session came to when it rested: read from its log, so that it can be asked at any time."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from roost.domain.events import Entry
from roost.domain.usage import Usage
from roost.ports.log import EventQuery, Log, is_full

_TELLING: Final = (
    "agent.message",
    "span.model_request_end",
    "session.error",
    "session.status_idle",
    "user.interrupt",
)
_PAGE: Final = 200
_PAGE_BYTES: Final = 1024 * 1024
_MOST_PAGES: Final = 50


class Outcome(msgspec.Struct, kw_only=True):
    """Of all turns since the session last rested without a question.

    `message_id` and `text` are of the agent's last message, `error` is the last thing that went wrong,
    `requests` counts those to the model. `interrupted`: that is what ended it.
    """

    stop_reason: str
    message_id: str | None = None
    text: str = ""
    usage: Usage = Usage()
    error: str | None = None
    interrupted: bool = False
    requests: int = 0


def is_rest(entry: Entry) -> bool:
    """Whether this is where the work ends, and not where it waits for an answer."""
    return entry.type == "session.status_idle" and _reason(entry) != "requires_action"


async def outcome_of(log: Log, session_id: str, rest: Entry) -> Outcome:
    """What the work that ends at this entry came to."""
    found = Outcome(stop_reason=_reason(rest))
    before = rest.seq
    for _ in range(_MOST_PAGES):
        query = EventQuery(
            types=_TELLING,
            before=before,
            order="desc",
            as_of=rest.seq,
            limit=_PAGE,
            most_bytes=_PAGE_BYTES,
        )
        page = await log.page(session_id, query)
        for entry in page:
            if is_rest(entry):
                return found
            _add(found, entry)
        if not is_full(page, _PAGE, _PAGE_BYTES):
            break
        before = page[-1].seq
    return found


def _add(found: Outcome, entry: Entry) -> None:
    fields = entry.fields
    if entry.type == "agent.message" and found.message_id is None:
        found.message_id = entry.id
        found.text = "".join(block.get("text", "") for block in fields.get("content") or ())
    elif entry.type == "span.model_request_end":
        found.requests += 1
        used = fields.get("model_usage") or {}
        found.usage = found.usage.plus(msgspec.convert(used, Usage))
    elif entry.type == "session.error" and found.error is None:
        found.error = fields["error"].get("message", "")
    elif entry.type == "user.interrupt" and not found.requests:
        found.interrupted = True  # the work ended with it; an earlier one was for something else


def _reason(rest: Entry) -> str:
    reason: dict[str, Any] = rest.fields.get("stop_reason") or {}
    return str(reason.get("type", "end_turn"))
