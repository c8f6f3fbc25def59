"""The OpenAI Responses API: `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from roost.builtin_model.dialect import Frame, Json, frame, tokens
from roost.builtin_model.script import ScriptedCall, SpokenTurn, Step, pieces
from roost.ids import mint


class ResponsesDialect:
    """Requests and answers of the Responses API."""

    def problem(self, body: Json) -> str | None:
        """What is wrong with a request, if anything is (`ModelDialect`)."""
        if body.get("previous_response_id"):
            return (
                "previous_response_id: nothing is kept here; send the whole conversation as `input`"
            )
        items = body.get("input")
        if isinstance(items, str) or (
            isinstance(items, list) and all(isinstance(item, dict) for item in items)
        ):
            return None
        return "input: must be a text or a list of items"

    def turns(self, body: Json) -> list[SpokenTurn]:
        """See `ModelDialect`. The items of one answer stand in a row, and are one turn."""
        if isinstance(body["input"], str):
            return [SpokenTurn("user", [body["input"]])]
        turns: list[SpokenTurn] = []
        for turn in filter(None, map(_turn, body["input"])):
            if turn.role == "user" or not turns or turns[-1].role == "user":
                turns.append(turn)
        return turns

    def whole(self, step: Step, body: Json) -> Json:
        """The answer in one piece (`ModelDialect`)."""
        return _response(body) | _ending(step, body, _items(step, body))

    def frames(self, step: Step, body: Json) -> Iterator[Frame]:
        """See `ModelDialect`. Every event carries its number in the stream."""
        for number, (event, text) in enumerate(_events(step, body)):
            yield frame(event | {"sequence_number": number}, text=text)

    def error(self, status: int, kind: str | None, message: str) -> Json:
        """A failure in the API's shape (`ModelDialect`)."""
        kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _turn(item: Json) -> SpokenTurn | None:
    kind = item.get("type", "message")
    if kind == "message":
        if item.get("role") not in ("user", "assistant"):
            return None
        content = item.get("content") or []
        parts = [{"text": content}] if isinstance(content, str) else content
        return SpokenTurn(item["role"], [str(part["text"]) for part in parts if part.get("text")])
    return SpokenTurn("user") if kind.endswith("_output") else SpokenTurn("assistant")


def _response(body: Json) -> Json:
    return {
        "id": mint("resp"),
        "object": "response",
        "created_at": 0,
        "model": body.get("model"),
        "status": "in_progress",
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "usage": None,
    }


def _ending(step: Step, body: Json, items: list[Json]) -> Json:
    given = tokens(body.get("instructions"), body.get("input"), body.get("tools"))
    made = tokens(step.thinking, step.text, step.calls)
    usage = {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + made,
    } | step.usage
    ending: Json = {"status": "completed", "output": items, "usage": usage}
    if step.stop_reason == "max_tokens":
        ending |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return ending


def _items(step: Step, body: Json) -> list[Json]:
    items: list[Json] = []
    if step.thinking is not None:
        summary = [{"type": "summary_text", "text": step.thinking}]
        items.append({"type": "reasoning", "id": mint("rs"), "summary": summary})
    if step.text is not None:
        kind = "refusal" if step.stop_reason == "refusal" else "output_text"
        items.append(
            {
                "type": "message",
                "id": mint("msg"),
                "role": "assistant",
                "status": "completed",
                "content": [_part(kind, step.text)],
            }
        )
    spaces = _namespaces(body)
    return items + [_call(call, spaces.get(call.tool)) for call in step.calls]


def _namespaces(body: Json) -> dict[str, Json]:
    """The tools that are offered in a namespace, by the name `NAMESPACE__TOOL` that a script calls them by."""
    items = body["input"] if isinstance(body["input"], list) else []
    later = [item.get("tools") for item in items if item.get("type") == "additional_tools"]
    offered = [tool for tools in (body.get("tools"), *later) for tool in tools or []]
    spaces = [tool for tool in offered if tool.get("type") == "namespace"]
    return {
        f"{space['name']}__{tool['name']}": {"name": tool["name"], "namespace": space["name"]}
        for space in spaces
        for tool in space.get("tools") or []
    }


def _part(kind: str, text: str) -> Json:
    if kind == "refusal":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": []}


def _call(call: ScriptedCall, named: Json | None) -> Json:
    head = {"call_id": mint("call"), "status": "completed", **(named or {"name": call.tool})}
    if isinstance(call.input, str):
        return {"type": "custom_tool_call", "id": mint("ctc"), **head, "input": call.input}
    given = msgspec.json.encode(call.input).decode()
    return {"type": "function_call", "id": mint("fc"), **head, "arguments": given}


def _events(step: Step, body: Json) -> Iterator[tuple[Json, bool]]:
    response = _response(body)
    items = _items(step, body)
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": response}, False
    for index, item in enumerate(items):
        place: Json = {"output_index": index}
        empty = item | {"status": "in_progress"} | _emptied(item)
        yield {"type": "response.output_item.added", **place, "item": empty}, False
        yield from _filling(item, place | {"item_id": item["id"]})
        yield {"type": "response.output_item.done", **place, "item": item}, False
    ending = _ending(step, body, items)
    yield {"type": f"response.{ending['status']}", "response": response | ending}, False


def _emptied(item: Json) -> Json:
    """What of an item is not there yet when it is announced."""
    return {
        name: type(item[name])()
        for name in ("content", "arguments", "input", "summary")
        if name in item
    }


def _filling(item: Json, place: Json) -> Iterator[tuple[Json, bool]]:
    match item["type"]:
        case "message":
            yield from _filling_of_text(item["content"][0], place | {"content_index": 0})
        case "function_call":
            whole = item["arguments"]
            head = "response.function_call_arguments"
            yield {"type": f"{head}.delta", **place, "delta": whole}, False
            yield {"type": f"{head}.done", **place, "arguments": whole}, False
        case "custom_tool_call":
            whole = item["input"]
            yield {"type": "response.custom_tool_call_input.delta", **place, "delta": whole}, False
            yield {"type": "response.custom_tool_call_input.done", **place, "input": whole}, False
        case _:
            return  # reasoning comes whole


def _filling_of_text(part: Json, place: Json) -> Iterator[tuple[Json, bool]]:
    kind = part["type"]
    field = "refusal" if kind == "refusal" else "text"
    yield {"type": "response.content_part.added", **place, "part": _part(kind, "")}, False
    for piece in pieces(part[field]):
        yield {"type": f"response.{kind}.delta", **place, "delta": piece}, True
    done: dict[str, Any] = {"type": f"response.{kind}.done", **place, field: part[field]}
    yield done, False
    yield {"type": "response.content_part.done", **place, "part": part}, False
