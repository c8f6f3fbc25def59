"""Inputs on their way in: what is wrong with them beyond their shape, and what is written of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from roost.api.framework.call import fingerprint
from roost.domain.events import Draft
from roost.errors import InvalidRequest
from roost.ports.log import Receipt

Event = dict[str, Any]

_NOT_SERVED = {
    "user.define_outcome": "outcomes are not served",
    "user.tool_result": "only valid on self-hosted environments, and this session is on a cloud one",
}
_ACCOMPANIED = ("user.message", "user.tool_result", "user.custom_tool_result")


def drafts_of(events: Sequence[Event], at: str, thread_id: str | None = None) -> list[Draft]:
    """The events as they are written. :raises InvalidRequest: naming the field, from `at` on"""
    for i, event in enumerate(events):
        _check(event, f"{at}.{i}", thread_id)
    _check_system_message(events, at)
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
    return Draft.of(event["type"], **{f: v for f, v in event.items() if f != "type"})


def _check(event: Event, at: str, thread_id: str | None) -> None:
    kind = event["type"]
    if kind in _NOT_SERVED:
        raise InvalidRequest(f"{at}.type: {kind} is refused: {_NOT_SERVED[kind]}")
    if kind == "user.tool_confirmation":
        _check_confirmation(event, at)
    if kind == "user.interrupt" and event.get("session_thread_id") not in (None, thread_id):
        raise InvalidRequest(f"{at}.session_thread_id: this session has no such thread")
    for path, block in _blocks(event, at):
        _check_block(kind, block, path)


def _check_confirmation(event: Event, at: str) -> None:
    if event["result"] == "allow" and event.get("deny_message"):
        raise InvalidRequest(f"{at}.deny_message: only allowed when result is 'deny'")
    if event["result"] == "deny" and "modified_input" in event:
        raise InvalidRequest(f"{at}.modified_input: only allowed when result is 'allow'")


def _blocks(event: Event, at: str) -> Iterator[tuple[str, Event]]:
    for i, block in enumerate(event.get("content") or []):
        yield f"{at}.content.{i}", block


def _check_block(kind: str, block: Event, at: str) -> None:
    if block["type"] == "redacted":
        raise InvalidRequest(f"{at}.type: a redacted block cannot be sent")
    if kind != "user.custom_tool_result" and block["type"] == "text" and not block["text"]:
        raise InvalidRequest(f"{at}.text: must not be empty")
    is_file = block["type"] in ("image", "document") and block["source"]["type"] == "file"
    if is_file and kind != "user.message":
        raise InvalidRequest(
            f"{at}.source: files are served in messages only",
            hint="Send the content itself, as base64 or text.",
        )


def _check_system_message(events: Sequence[Event], at: str) -> None:
    for i, event in enumerate(events):
        if event["type"] != "system.message":
            continue
        last = i == len(events) - 1
        if not last or i == 0 or events[i - 1]["type"] not in _ACCOMPANIED:
            raise InvalidRequest(
                f"{at}.{i}: a system.message is the last event of a request, right after the "
                "user.message or tool result it accompanies"
            )
