"""Where a conversation stands, by its log: what the model has been told, and what became of each call.

The log has what clients see, and five kinds of entries that they do not (`domain.events.PRIVATE`):

* `roost.model_answer`: an answer as the model gave it, block by block, because models take back only what they
  have said, to the letter. It comes in one commit with the events that show it.
* `roost.tool_started`: calls that are about to be made, and whether in the sandbox. It comes before the first byte
  of them leaves.
* `roost.mcp_tools`: the tools that an MCP server has said it has. Models take back what they have signed only if they
  are offered the same tools as before, so a server is asked once.
* `roost.context`: a summary that stands for all that was said before it.
* `roost.left_out`: what is not sent any more, because the model's server would refuse it for ever. `thinking`: what
  the model has thought before, since it was signed for other tools or another system prompt. `length`: the
  conversation as a whole, which is too long; its end is summed up instead.

So each call is known to have run (it has a result), not to have run (nothing says that it started) or to be
unknown (it started, and has no result). One that is unknown is never made again by itself: the model is told. Calls
of tools that change nothing are not noted before, and simply made again.

An event is taken in the same way whether it was read from the log, came as an input, or was just emitted. So a
conversation that was cut off and is folded again stands where the log stands. An id is taken once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from roost.domain.events import Draft, Entry
from roost.domain.work_item import CLOSED
from roost.harnesses.logged_past import UNKNOWN
from roost.harnesses.message_history import INTERRUPTED, sendable
from roost.harnesses.messages.request import THOUGHTS, is_thought
from roost.harnesses.messages.tools import REPEATABLE
from roost.harnesses.permissions import Json, Tool

ANSWER: Final = "roost.model_answer"
STARTED: Final = "roost.tool_started"
MCP_TOOLS: Final = "roost.mcp_tools"
CONTEXT: Final = "roost.context"
LEFT_OUT: Final = "roost.left_out"

_GO_ON: Final = (
    "Your answer was cut off because it was too long. Go on from there, in smaller steps."
)
MOST_CUTS: Final = 3
"""How many answers in a row may be cut off for their length before the turn ends."""

_OVERFULL: Final = "model_context_window_exceeded"
_BYTES_PER_TOKEN: Final = 4
MOST_COUNTED: Final = 110_000
"""Bytes of a block. What is larger is a picture, which costs less than its bytes."""

_encode = msgspec.json.encode


class LoggedCall(msgspec.Struct):
    """A call of a tool that has no result. `id` is that of its event, `tool_use_id` what the model calls it."""

    id: str
    tool_use_id: str
    tool: Tool
    input: Json
    permission: str
    started: bool = False
    verdict: Json | None = None
    by_worker: bool = False

    @property
    def is_repeatable(self) -> bool:
        """Whether making it twice is as good as once."""
        return self.tool.kind == "builtin" and self.tool.name in REPEATABLE

    @property
    def is_ordered(self) -> bool:
        """Whether the calls beside it may depend on it: it may change files that they use."""
        return self.tool.kind == "builtin" and not self.is_repeatable

    @property
    def status(self) -> Literal["waits", "refused", "unknown", "due"]:
        """What is to be done about it: wait for a client, say that a person refused it, say that its outcome is
        unknown, or make it.
        """
        if self.verdict is not None and self.verdict["result"] != "allow":
            return "refused"
        is_others = self.tool.answered_by_client or self.by_worker
        if is_others or (self.permission == "ask" and self.verdict is None):
            return "waits"
        return "unknown" if self.started and not self.is_repeatable else "due"


class _Message(msgspec.Struct):
    """One side's part, each block encoded. `results` has every call that was made in it, by its event's id."""

    role: str
    blocks: list[bytes]
    results: dict[str, bytes | None] = {}


class Journal:
    """`due`: the model has something to answer. `calls` are those without a result, in their order. `open_span`
    is a request that began and never ended. `cuts`: how many answers in a row were cut off for their length.
    `bound_to` is the digest of the head that the newest thoughts were signed for, if that is known. `refusals`: how
    often the conversation was refused for its length since the newest answer. `by_worker` are the tools of the toolset
    that workers run.
    """

    def __init__(self, by_worker: frozenset[str] = frozenset()) -> None:
        self._by_worker = by_worker
        self.due = False
        self.calls: dict[str, LoggedCall] = {}
        self.open_span: str | None = None
        self.cuts = 0
        self.bound_to: str | None = None
        self.refusals = 0
        self._is_too_long = False
        self._tokens = 0
        self.mcp_tools: dict[
            tuple[str, str], list[Json]
        ] = {}  # by the name and the URL of the server
        self._messages: list[_Message] = []
        self._added = 0  # bytes since the last answer
        self._names: dict[str, str] = {}  # what the model calls each call, by its event's id
        self._told: set[str] = set()  # events of an answer that is known to the letter
        self._callers: dict[str, _Message] = {}
        self._taken: set[str] = set()

    @property
    def waiting(self) -> list[str]:
        """The calls that a client has to answer."""
        return [call.id for call in self.calls.values() if call.status == "waits"]

    @property
    def tokens(self) -> int:
        """How much of the model's window it takes: what the model has said, and an estimate of what is new."""
        if self._is_too_long:
            return sys.maxsize
        return self._tokens + self._added // _BYTES_PER_TOKEN

    @property
    def has_thoughts(self) -> bool:
        """Whether something is sent back that the model has thought."""
        return any(is_thought(block) for message in self._messages for block in message.blocks)

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return sum(len(block) for message in self._messages for block in _all_blocks(message))

    def take(self, event: Entry | Draft) -> None:
        """Fold one event in; again: nothing changes."""
        fold = _FOLDS.get(event.type)
        if fold is not None and event.id not in self._taken:
            self._taken.add(event.id)
            fold(self, event.id, msgspec.json.decode(event.body))

    def messages(self) -> list[tuple[str, list[bytes]]]:
        """The conversation for a request: sides alternate, and every call has its result right after it."""
        merged: list[tuple[str, list[bytes]]] = []
        for message in self._messages:
            _put(merged, message.role, message.blocks)
            if message.results:
                calls = message.results.items()
                results = [done or _result(self._names[call], *_UNKNOWN) for call, done in calls]
                _put(merged, "user", results)
        return merged

    def _user_said(self, _id: str, fields: Json) -> None:
        content = sendable(fields["content"]) or [_text("(an empty message)")]
        self._say("user", content)
        self.due = True
        self.cuts = 0

    def _system_said(self, _id: str, fields: Json) -> None:
        texts = [block["text"] for block in sendable(fields["content"]) if block["type"] == "text"]
        if texts:
            said = "\n".join(texts)
            self._say("user", [_text(f"<system-message>\n{said}\n</system-message>")])

    def _answered(self, _id: str, fields: Json) -> None:
        """An answer to the letter, before the events that show it."""
        self._names |= {event: call for call, event in fields["calls"].items()}
        self._told.update(fields["events"])
        self._say("assistant", fields["content"])
        if any(block["type"] in THOUGHTS for block in fields["content"]):
            self.bound_to = fields.get("head")
        self._messages[-1].results = dict.fromkeys(fields["calls"].values())
        self._callers |= dict.fromkeys(fields["calls"].values(), self._messages[-1])
        self._tokens, self._added = fields["tokens"], 0
        self.refusals = 0
        reason = fields["stop_reason"]
        self.due = reason in ("pause_turn", "max_tokens", _OVERFULL)
        if reason == _OVERFULL:
            self._tokens = sys.maxsize
        self.cuts = self.cuts + 1 if reason == "max_tokens" else 0
        if reason == "max_tokens":
            self._say("user", [_text(_GO_ON)])
            self.due = self.cuts <= MOST_CUTS

    def _agent_said(self, id: str, fields: Json) -> None:
        """Said in a session that another harness, or an older version, has begun."""
        if id not in self._told:
            self._say("assistant", sendable(fields["content"]))

    def _called(self, tool: Tool, id: str, fields: Json) -> None:
        if id in self._told and id not in self._names:
            return  # the model's server has made it
        if id not in self._told:
            name, block = tool.name, {"type": "tool_use", "id": id, "input": fields["input"]}
            self._say("assistant", [{**block, "name": name}])
            self._names[id] = id
            self._messages[-1].results = {id: None}
            self._callers[id] = self._messages[-1]
        permission = fields.get("evaluated_permission") or "allow"
        call = LoggedCall(id, self._names[id], tool, fields["input"], permission)
        call.by_worker = tool.kind == "builtin" and tool.name in self._by_worker
        self.calls[id] = call

    def _started(self, _id: str, fields: Json) -> None:
        for id in fields["tool_use_ids"]:
            if id in self.calls:
                self.calls[id].started = True

    def _confirmed(self, _id: str, fields: Json) -> None:
        call = self.calls.get(fields["tool_use_id"])
        if call is not None and call.verdict is None:
            call.verdict = fields
            call.input = fields.get("modified_input") or call.input

    def _returned(self, id: str, fields: Json) -> None:
        caller = self._callers.get(id)
        if caller is None or self.calls.pop(id, None) is None:
            return
        content = sendable(fields.get("content") or [])
        result = _result(self._names[id], content, bool(fields.get("is_error")))
        caller.results[id] = result
        self._added += min(len(result), MOST_COUNTED)
        self.due = not self.calls

    def _interrupted(self, _id: str, _fields: Json) -> None:
        """Nobody waits for anything any more."""
        for id, call in self.calls.items():
            text = CLOSED["interrupted"] if call.by_worker else INTERRUPTED
            said = _UNKNOWN if call.started else ([_text(text)], True)
            self._callers[id].results[id] = _result(call.tool_use_id, *said)
        self.calls.clear()
        self.due = False

    def _began(self, id: str, _fields: Json) -> None:
        self.open_span = id

    def _ended(self, _id: str, _fields: Json) -> None:
        self.open_span = None

    def _server_has(self, _id: str, fields: Json) -> None:
        self.mcp_tools[fields["name"], fields["url"]] = fields["tools"]

    def _summed_up(self, _id: str, fields: Json) -> None:
        """All that was said before is replaced. It is written only where no call is open."""
        self._messages = []
        self._callers.clear()
        self._tokens = self._added = 0
        self._is_too_long = False
        self.bound_to = None
        self._say("user", fields["content"])

    def _left_out(self, _id: str, fields: Json) -> None:
        if fields["what"] == "length":
            self.refusals += 1
            self._is_too_long = True
            return
        self.bound_to = None
        for message in self._messages:
            message.blocks = [block for block in message.blocks if not is_thought(block)]

    def _say(self, role: str, content: Sequence[Json]) -> None:
        blocks = [_encode(block) for block in content]
        self._added += sum(min(len(block), MOST_COUNTED) for block in blocks)
        self._messages.append(_Message(role, blocks))


def _all_blocks(message: _Message) -> Iterable[bytes]:
    return [*message.blocks, *(result for result in message.results.values() if result)]


def _put(merged: list[tuple[str, list[bytes]]], role: str, blocks: Sequence[bytes]) -> None:
    if merged and merged[-1][0] == role:
        merged[-1][1].extend(blocks)
    elif blocks:
        merged.append((role, list(blocks)))


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


_UNKNOWN: Final = ([_text(UNKNOWN)], True)


def _result(call: str, content: list[Json], is_error: bool) -> bytes:
    content = content or [_text("(no output)")]  # the API refuses an error that says nothing
    block = {"type": "tool_result", "tool_use_id": call, "content": content, "is_error": is_error}
    return _encode(block)


Fold = Callable[[Journal, str, Json], None]


def _returned(field: str) -> Fold:
    return lambda self, _id, fields: self._returned(fields[field], fields)


def _called(kind: Literal["builtin", "mcp", "custom"]) -> Fold:
    return lambda self, id, fields: self._called(
        Tool(kind, fields["name"], fields.get("mcp_server_name") or ""), id, fields
    )


_FOLDS: dict[str, Callable[[Journal, str, Any], None]] = {
    "user.message": Journal._user_said,
    "user.interrupt": Journal._interrupted,
    "user.tool_confirmation": Journal._confirmed,
    "user.custom_tool_result": _returned("custom_tool_use_id"),
    "user.tool_result": _returned("tool_use_id"),
    "system.message": Journal._system_said,
    "agent.message": Journal._agent_said,
    "agent.tool_use": _called("builtin"),
    "agent.mcp_tool_use": _called("mcp"),
    "agent.custom_tool_use": _called("custom"),
    "agent.tool_result": _returned("tool_use_id"),
    "agent.mcp_tool_result": _returned("mcp_tool_use_id"),
    "span.model_request_start": Journal._began,
    "span.model_request_end": Journal._ended,
    ANSWER: Journal._answered,
    STARTED: Journal._started,
    MCP_TOOLS: Journal._server_has,
    CONTEXT: Journal._summed_up,
    LEFT_OUT: Journal._left_out,
}
