"""One answer of the model, from what Codex says of it to the events in the log.

All that follows from an answer is one `Emit`: a crash leaves the whole answer in the log, or none of it, and a
turn that is taken again asks the model for what is not there. Codex does what an answer calls for only after
that, because it asks first. Meanwhile the text is shown as it comes.
"""

from __future__ import annotations

from collections.abc import Callable

from roost.domain.events import Draft
from roost.domain.session import Pending
from roost.domain.usage import Usage
from roost.harnesses.codex.tools import CodexCall
from roost.harnesses.codex.wire import object_in, text_in
from roost.harnesses.content import text_block
from roost.harnesses.json_lines import Json
from roost.harnesses.stable_ids import StableIds
from roost.harnesses.turn_ends import span_end
from roost.ports.drafts import new_draft
from roost.ports.harness import Emit, Show

CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")


class CodexAnswer:
    """A request to the model that is under way, and what has come of it."""

    def __init__(self, ids: StableIds) -> None:
        self.start = new_draft("span.model_request_start")
        self.outputs: list[Json] = []
        self._ids = ids
        self._items: list[Json] = []
        self._shown: dict[str, str] = {}

    @property
    def begun(self) -> bool:
        """Whether anything of the answer has come."""
        return bool(self._items or self._shown)

    @property
    def is_refusal(self) -> bool:
        """Whether the model has begun to say something that Codex does not take for an answer."""
        return bool(self._shown) and not self._items

    def announce(self, item: Json) -> list[Show]:
        """Something that the model begins to say, or to think."""
        type = {"agentMessage": "agent.message", "reasoning": "agent.thinking"}.get(
            text_in(item, "type")
        )
        if type is None:
            return []
        if type == "agent.message":
            self._shown[text_in(item, "id")] = ""
        return [Show(self._id(item), type)]

    def add(self, item_id: str, text: str) -> list[Show]:
        """More text of something that was announced."""
        if not text or item_id not in self._shown:
            return []
        self._shown[item_id] += text
        return [Show(self._ids.block(item_id, "message", 0), "agent.message", text)]

    def take(self, item: Json) -> None:
        """A part of the answer that is complete."""
        self._items.append(item)

    def end(
        self, call_of: Callable[[Json], CodexCall], usage: Usage, *, error: bool = False
    ) -> tuple[Emit, list[CodexCall]]:
        """What the answer has come to, in one; and the calls in it."""
        drafts: list[Draft] = []
        calls: list[CodexCall] = []
        for item in self._items:
            if item["type"] in CALLS:
                calls.append(call_of(item))
                drafts.append(called(calls[-1]))
            else:
                drafts += self._said(item)
        drafts.append(span_end(self.start.id, usage, error=error))
        denied = [denial_of(call) for call in calls if call.verdict.permission == "deny"]
        blocks = [_pending(call) for call in calls if call.waits]
        return Emit([*drafts, *denied], spent=usage, blocks=blocks), calls

    def cut_short(self) -> list[Json]:
        """What an interrupt has left of the text, as items; they count as said."""
        complete = {text_in(item, "id") for item in self._items}
        partial = [
            {
                "type": "message",
                "role": "assistant",
                "id": item_id,
                "content": [{"type": "output_text", "text": text}],
            }
            for item_id, text in self._shown.items()
            if text and item_id not in complete
        ]
        self._items += partial
        return partial

    def _said(self, item: Json) -> list[Draft]:
        match item["type"]:
            case "reasoning":
                return [Draft.of("agent.thinking", self._id(item))]
            case "message":
                text = "".join(text_in(part, "text") for part in item.get("content") or [])
                content = [text_block(text)]
                return [Draft.of("agent.message", self._id(item), content=content)] if text else []
            case "web_search_call":
                return self._searched(item)
            case _:
                return []

    def _searched(self, item: Json) -> list[Draft]:
        """A search of the model's server: it is over when we hear of it."""
        name, given = text_in(item, "id"), object_in(item, "action")
        call = Draft.of(
            "agent.tool_use",
            self._ids.call(name),
            name="web_search",
            input=given,
            evaluated_permission="allow",
        )
        result = Draft.of(
            "agent.tool_result",
            self._ids.result(name),
            tool_use_id=call.id,
            content=[],
            is_error=item.get("status") == "failed",
        )
        return [call, result]

    def _id(self, item: Json) -> str:
        kind = "thinking" if item.get("type") == "reasoning" else "message"
        return self._ids.block(text_in(item, "id"), kind, 0)


def called(call: CodexCall) -> Draft:
    """The event of a call."""
    fields: Json = {"name": call.tool.name, "input": call.input}
    if call.tool.answered_by_client:
        return Draft.of("agent.custom_tool_use", call.event_id, **fields)
    if call.tool.kind == "mcp":
        fields["mcp_server_name"] = call.tool.server
    return Draft.of(
        f"agent.{_prefix(call)}tool_use", call.event_id, **fields, **call.verdict.fields()
    )


def returned(call: CodexCall, content: list[Json], *, is_error: bool) -> Draft:
    """The event of a call's result."""
    named: Json = {f"{_prefix(call)}tool_use_id": call.event_id}
    return new_draft(
        f"agent.{_prefix(call)}tool_result", **named, content=content, is_error=is_error
    )


def denial_of(call: CodexCall) -> Draft:
    """The result of a call that the agent's policy does not allow."""
    said = call.verdict.reason or f"Permission to use {call.tool.name} has been denied."
    return returned(call, [text_block(said)], is_error=True)


def _prefix(call: CodexCall) -> str:
    return "mcp_" if call.tool.kind == "mcp" else ""


def _pending(call: CodexCall) -> Pending:
    return Pending(call.event_id, "custom_tool" if call.tool.answered_by_client else "confirmation")
