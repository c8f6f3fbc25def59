"""The session's log as Codex is told it, and what of it is still to be done.

A process of Codex keeps its conversation in memory, and nothing of it on disk: a new one is given the
conversation from the log. So there is no second record that could differ from the log, and what a turn that
was cut off has come to is what the log says. A call without a result is one of four:

* it waited for somebody, and nobody has answered: it waits on;
* it waited, and was answered just now: it has not run. It is carried out, or its refusal is told;
* it waited and was answered before the turn was cut off, or needed no answer: it may have run. The agent is
  told that its outcome is unknown, and nothing is run again on its behalf;
* an interrupt or another message came after it: nobody waits for it any more.

What subagents said and did is not part of the conversation. They end with their process, so their calls wait for
nobody, and the call that has started one comes to an account of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final

from roost.domain.events import Draft, Entry
from roost.harnesses.codex.tools import CodexCall, CodexTools, mcp_name
from roost.harnesses.json_lines import Json
from roost.harnesses.logged_past import CALLS, RESULTS
from roost.harnesses.message_history import MessageHistory

_MOST: Final = (
    2_000_000  # characters of the past that are told; Codex makes a summary of what is too much
)
_CUT: Final = "The beginning of this conversation is left out: it was too long."


class CodexHistory:
    """Where a conversation stands. `open` has the calls without a result, `answers` what people said to them.

    `given` are the ids of the inputs that are being taken: a message among them closes no call, since an answer
    to that call may be among them too.
    """

    def __init__(self, tools: CodexTools, given: Collection[str] = ()) -> None:
        self.open: dict[str, CodexCall] = {}
        self.answers: dict[str, Entry] = {}
        self._of_subagents: set[str] = set()
        self._tools = tools
        self._given = given
        self._messages = MessageHistory()

    @classmethod
    async def read(
        cls, log: AsyncIterator[Entry], tools: CodexTools, given: Collection[str]
    ) -> CodexHistory:
        """Read the whole log."""
        history = cls(tools, given)
        async for entry in log:
            # One that was queued stands again where it was taken up; a withdrawn one never was.
            if not (entry.queued or entry.withdrawn):
                history.take(entry)
        return history

    def take(self, entry: Entry) -> None:
        """Take one entry into account."""
        if entry.type in CALLS and "session_thread_id" in entry.fields:
            self._of_subagents.add(entry.id)
        elif (
            entry.type not in RESULTS or entry.fields[RESULTS[entry.type]] not in self._of_subagents
        ):
            self._messages.take(_as_plain_tool(entry))
        if entry.type in CALLS:
            self.open[entry.id] = self._tools.logged(entry.id, entry.type, entry.fields)
        elif entry.type in RESULTS:
            self.open.pop(entry.fields[RESULTS[entry.type]], None)
        elif entry.type == "user.tool_confirmation":
            self.answers[entry.fields["tool_use_id"]] = entry
        elif entry.type in ("user.interrupt", "user.message") and entry.id not in self._given:
            self.open.clear()

    @property
    def waiting(self) -> list[str]:
        """The events of calls that somebody still has to answer. No subagent is there to hear the answer."""
        return [
            call.event_id
            for call in self.open.values()
            if call.waits
            and call.event_id not in self.answers
            and call.event_id not in self._of_subagents
        ]

    def settled_first(self) -> list[CodexCall]:
        """The open calls that wait for nobody, those of subagents before the calls that have started them."""
        waiting = self.waiting
        left = [call for call in self.open.values() if call.event_id not in waiting]
        return sorted(left, key=lambda call: call.event_id not in self._of_subagents)

    @property
    def open_span(self) -> str | None:
        """A model request that began and never ended."""
        return self._messages.open_span

    @property
    def due(self) -> bool:
        """Whether the model has something to answer."""
        return self._messages.due

    def items(self) -> list[Json]:
        """The conversation, oldest first. What has no result yet is said to have an unknown one."""
        items: list[Json] = []
        for message in self._messages.messages():
            items += [self._item(message["role"], block) for block in message["content"]]
        patches = {item["call_id"] for item in items if item["type"] == "custom_tool_call"}
        for item in items:
            if item["type"] == "function_call_output" and item["call_id"] in patches:
                item["type"] = "custom_tool_call_output"
        return _bounded(items)

    def _item(self, role: str, block: Json) -> Json:
        if block["type"] == "tool_use":
            return self._tools.item_of(block["name"], block["input"], block["id"])
        if block["type"] == "tool_result":
            return output_of(block)
        kind = "output_text" if role == "assistant" else "input_text"
        who = "developer" if role == "system" else role
        return {"type": "message", "role": who, "content": [content_of(block, kind)]}


def _as_plain_tool(entry: Entry) -> Entry | Draft:
    """What a tool of an MCP server was called with and came to, as the events of any other tool."""
    fields = entry.fields
    if entry.type == "agent.mcp_tool_use":
        name = mcp_name(fields["mcp_server_name"], fields["name"])
        return Draft.of("agent.tool_use", entry.id, name=name, input=fields["input"])
    if entry.type == "agent.mcp_tool_result":
        call, content = fields["mcp_tool_use_id"], fields.get("content")
        failed = fields.get("is_error")
        return Draft.of(
            "agent.tool_result", entry.id, tool_use_id=call, content=content, is_error=failed
        )
    return entry


def output_of(block: Json) -> Json:
    """A tool's result as an item of the conversation."""
    parts = [content_of(part, "input_text") for part in block.get("content") or []]
    text = "\n".join(part["text"] for part in parts if "text" in part)
    pictures = any("text" not in part for part in parts)
    output: object = parts if pictures else text
    return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": output}


def content_of(block: Json, kind: str) -> Json:
    """A content block as part of an item."""
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") == "base64" and block["type"] == "image":
        url = f"data:{source['media_type']};base64,{source['data']}"
        return {"type": "input_image", "image_url": url}
    if isinstance(source, dict) and source.get("type") == "text":
        title = f"{block['title']}:\n" if block.get("title") else ""
        return {"type": kind, "text": f"{title}{source.get('data')}"}
    text = block.get("text")
    said = text if isinstance(text, str) else f"[{block['type']}: this agent cannot look at it]"
    return {"type": kind, "text": said}


def _bounded(items: Sequence[Json]) -> list[Json]:
    """The newest part, from a user's message on, if all together is too much."""
    left = _MOST
    for at in range(len(items) - 1, -1, -1):
        left -= len(str(items[at]))
        if left < 0:
            whole = (n for n in range(at + 1, len(items)) if items[n].get("role") == "user")
            first = next(whole, len(items) - 1)
            note = {"type": "input_text", "text": _CUT}
            return [{"type": "message", "role": "developer", "content": [note]}, *items[first:]]
    return list(items)
