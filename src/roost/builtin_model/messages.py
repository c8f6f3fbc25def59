"""The Anthropic Messages API: `POST /v1/messages`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from roost.builtin_model.dialect import Frame, Json, frame, tokens
from roost.builtin_model.script import ScriptedCall, SpokenTurn, Step, pieces
from roost.ids import mint

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessagesDialect:
    """Requests and answers of the Messages API."""

    def problem(self, body: Json) -> str | None:
        """See `ModelDialect`. Checks what a wrongly rebuilt conversation gets wrong."""
        for name, kind in (("model", str), ("max_tokens", int), ("messages", list)):
            if not isinstance(body.get(name), kind):
                return f"{name}: Field required"
        messages = body["messages"]
        if not messages or not all(_is_message(message) for message in messages):
            return "messages: at least one message is required, each with a role and content"
        return _empty_text(messages) or _loose_calls(messages)

    def turns(self, body: Json) -> list[SpokenTurn]:
        """See `ModelDialect`. Entries with the role `system` may stand between the others."""
        return [
            SpokenTurn(
                message["role"], [b["text"] for b in _blocks(message) if b.get("type") == "text"]
            )
            for message in body["messages"]
            if message["role"] in ("user", "assistant")
        ]

    def whole(self, step: Step, body: Json) -> Json:
        """The answer in one piece (`ModelDialect`)."""
        content = _content(step)
        return _message(step, body) | {"content": content, **_stop(step)}

    def frames(self, step: Step, body: Json) -> Iterator[Frame]:
        """The answer as a stream of events (`ModelDialect`)."""
        message = _message(step, body)
        usage = message["usage"]
        opening = message | {"usage": usage | {"output_tokens": 1}}
        yield frame({"type": "message_start", "message": opening})
        for index, block in enumerate(_content(step)):
            yield from _block_frames(index, block)
        yield frame({"type": "message_delta", "delta": _stop(step), "usage": usage})
        yield frame({"type": "message_stop"})

    def error(self, status: int, kind: str | None, message: str) -> Json:
        """A failure in the API's shape (`ModelDialect`)."""
        kind = kind or KINDS.get(status, "api_error" if status >= 500 else KINDS[400])
        error = {"type": kind, "message": message}
        return {"type": "error", "error": error, "request_id": mint("req")}


def count_tokens(body: Json) -> Json:
    """The answer of `POST /v1/messages/count_tokens`."""
    return {"input_tokens": tokens(body.get("system"), body.get("messages"), body.get("tools"))}


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        return False
    content = message.get("content")
    return isinstance(content, str) or (
        isinstance(content, list) and all(isinstance(block, dict) for block in content)
    )


def _blocks(message: Json) -> list[Json]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _empty_text(messages: list[Json]) -> str | None:
    for index, message in enumerate(messages):
        for block in _blocks(message):
            if block.get("type") == "text" and not str(block.get("text", "")).strip():
                return f"messages.{index}: text content blocks must contain non-whitespace text"
    return None


def _loose_calls(messages: list[Json]) -> str | None:
    """Every call must be answered in the very next message, and every answer needs its call."""
    spoken = [message for message in messages if message["role"] != "system"]
    for index, (before, after) in enumerate(pairwise([{"content": []}, *spoken, {"content": []}])):
        called = [block.get("id") for block in _blocks(before) if block.get("type") == "tool_use"]
        answered = [
            block.get("tool_use_id")
            for block in _blocks(after)
            if block.get("type") == "tool_result"
        ]
        if sorted(map(str, called)) != sorted(map(str, answered)):
            return (
                f"messages.{index}: `tool_use` blocks {called} must be followed at once by their "
                f"`tool_result` blocks, found {answered}"
            )
    return None


def _message(step: Step, body: Json) -> Json:
    usage = {
        "input_tokens": count_tokens(body)["input_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": tokens(step.thinking, step.text, step.calls),
        "service_tier": "standard",
    }
    return {
        "id": mint("msg"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage | step.usage,
    }


def _content(step: Step) -> list[Json]:
    content: list[Json] = []
    if step.thinking is not None:
        content.append({"type": "thinking", "thinking": step.thinking, "signature": "c2NyaXB0ZWQ="})
    if step.text is not None:
        content.append({"type": "text", "text": step.text})
    return content + [_tool_use(call) for call in step.calls]


def _tool_use(call: ScriptedCall) -> Json:
    given = call.input if isinstance(call.input, dict) else {"input": call.input}
    return {"type": "tool_use", "id": mint("toolu"), "name": call.tool, "input": given}


def _stop(step: Step) -> Json:
    reason = step.stop_reason or ("tool_use" if step.calls else "end_turn")
    stop: Json = {"stop_reason": reason, "stop_sequence": None}
    if reason == "refusal":
        stop["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
    return stop


def _block_frames(index: int, block: Json) -> Iterator[Frame]:
    empty, deltas = _in_deltas(block)
    yield frame({"type": "content_block_start", "index": index, "content_block": empty})
    if index == 0:
        yield frame({"type": "ping"})
    for delta in deltas:
        event = {"type": "content_block_delta", "index": index, "delta": delta}
        yield frame(event, text=delta["type"] == "text_delta")
    yield frame({"type": "content_block_stop", "index": index})


def _in_deltas(block: Json) -> tuple[Json, list[Json]]:
    """The block as it starts, and what has to be added to it to complete it."""
    match block["type"]:
        case "text":
            texts = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            return {"type": "text", "text": ""}, texts
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case _:
            whole = msgspec.json.encode(block["input"]).decode()
            return block | {"input": {}}, [
                {"type": "input_json_delta", "partial_json": part}
                for part in ("", whole[: len(whole) // 2], whole[len(whole) // 2 :])
            ]
