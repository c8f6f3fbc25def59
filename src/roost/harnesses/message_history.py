"""A session's log, read as the conversation the Messages API wants to see.

The log is the truth and this is a fold of it: an event is taken in the same way whether it was read
from the log, came as an input, or was just emitted. So a conversation that was cut off and folded
again stands exactly where the log stands, and nothing is said twice: an id is taken once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from roost.domain.events import Draft, Entry
from roost.harnesses.logged_past import UNKNOWN

Block = dict[str, Any]

INTERRUPTED = "Tool execution was interrupted before completion. Please retry."


class _Message(msgspec.Struct):
    """One side's part. `results` has every tool call made in it, with its answer if there is one."""

    role: str
    content: list[Block]
    results: dict[str, Block | None] = {}


class MessageHistory:
    """Where a conversation stands.

    `due`: the model has something to answer. `waiting`: calls that only a client can answer, in the
    order they were made. `open_span`: a model request that began and never ended.
    """

    def __init__(self) -> None:
        self.due = False
        self.waiting: list[str] = []
        self.open_span: str | None = None
        self._messages: list[_Message] = []
        self._callers: dict[str, _Message] = {}
        self._taken: set[str] = set()
        self._sealed = True

    def take(self, event: Entry | Draft) -> None:
        """Fold one event in; again: nothing changes."""
        fold = _FOLDS.get(event.type)
        if fold is not None and event.id not in self._taken:
            self._taken.add(event.id)
            fold(self, event.id, msgspec.json.decode(event.body))

    def interrupt(self) -> None:
        """Nobody waits for anything any more: open calls are answered as interrupted."""
        for call in self.waiting:
            self._callers[call].results[call] = _result(call, [_text(INTERRUPTED)], error=True)
        self.waiting = []
        self.due = False

    def messages(self) -> list[Block]:
        """The conversation for a request: sides alternate, and every call has its result."""
        merged: list[Block] = []
        for message in self._messages:
            _put(merged, message.role, message.content)
            if message.results:
                results = message.results.items()
                answers = [r or _result(call, [_text(UNKNOWN)], error=True) for call, r in results]
                _put(merged, "user", answers)
        return merged

    def _user_said(self, _id: str, fields: Block) -> None:
        content = sendable(fields["content"]) or [_text("(an empty message)")]
        self._messages.append(_Message("user", content))
        self.due = True

    def _system_said(self, _id: str, fields: Block) -> None:
        if content := sendable(fields["content"]):
            self._messages.append(_Message("system", content))

    def _agent_said(self, _id: str, fields: Block) -> None:
        self._answer().content.extend(sendable(fields["content"]))

    def _agent_called(self, id: str, fields: Block) -> None:
        answer = self._answer()
        call = {"type": "tool_use", "id": id, "name": fields["name"], "input": fields["input"]}
        answer.content.append(call)
        answer.results[id] = None
        self._callers[id] = answer

    def _agent_called_client(self, id: str, fields: Block) -> None:
        self._agent_called(id, fields)
        self.waiting.append(id)

    def _call_returned(self, call: str, fields: Block) -> None:
        caller = self._callers.get(call)
        if caller is None or caller.results[call] is not None:
            return
        content = sendable(fields.get("content") or [])
        caller.results[call] = _result(call, content, error=bool(fields.get("is_error")))
        if call in self.waiting:
            self.waiting.remove(call)
        self.due = True

    def _interrupted(self, _id: str, _fields: Block) -> None:
        self.interrupt()

    def _request_began(self, id: str, _fields: Block) -> None:
        self.open_span = id
        self._sealed = True

    def _request_ended(self, _id: str, fields: Block) -> None:
        self.open_span = None
        if not fields.get("is_error"):
            self.due = False

    def _answer(self) -> _Message:
        """The assistant's message of the current request."""
        if self._sealed or self._messages[-1].role != "assistant":
            self._messages.append(_Message("assistant", []))
            self._sealed = False
        return self._messages[-1]


def _returned(field: str) -> Callable[[MessageHistory, str, Block], None]:
    return lambda self, _id, fields: self._call_returned(fields[field], fields)


_FOLDS: dict[str, Callable[[MessageHistory, str, Block], None]] = {
    "user.message": MessageHistory._user_said,
    "user.interrupt": MessageHistory._interrupted,
    "user.custom_tool_result": _returned("custom_tool_use_id"),
    "user.tool_result": _returned("tool_use_id"),
    "system.message": MessageHistory._system_said,
    "agent.message": MessageHistory._agent_said,
    "agent.tool_use": MessageHistory._agent_called,
    "agent.tool_result": _returned("tool_use_id"),
    "agent.custom_tool_use": MessageHistory._agent_called_client,
    "span.model_request_start": MessageHistory._request_began,
    "span.model_request_end": MessageHistory._request_ended,
}


def _put(merged: list[Block], role: str, content: Sequence[Block]) -> None:
    if merged and merged[-1]["role"] == role:
        merged[-1]["content"].extend(content)
    elif content:
        merged.append({"role": role, "content": list(content)})


def sendable(content: Iterable[Block]) -> list[Block]:
    """The blocks as the model may see them; the API refuses texts without a letter in them."""
    shown = map(_shown, content)
    return [block for block in shown if block["type"] != "text" or block["text"].strip()]


def _shown(block: Block) -> Block:
    kind = block["type"]
    if kind == "text":
        return _text(block["text"])
    source = block.get("source")
    if kind == "search_result" or (isinstance(source, dict) and source["type"] != "file"):
        return {name: value for name, value in block.items() if value is not None}
    return _text(f"[{kind}: this agent cannot look at it]")


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _result(call: str, content: list[Block], *, error: bool) -> Block:
    return {"type": "tool_result", "tool_use_id": call, "content": content, "is_error": error}
