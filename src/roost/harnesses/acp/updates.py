"""From what an agent says to what the log is told; and what it replays of a session, as one can compare it.

Pure: no process, no clock. Text is an event when something else follows it, or when the prompt is answered: the
protocol sends it in chunks and never says that it is complete. So an answer that broke off is not logged, unless
the agent asks for it again by itself: then another message follows, as it would a whole one.

The protocol does not tell of model requests either, so their spans are inferred: one from a prompt to the calls
that follow it, the next from the results of those to the calls after them. What a prompt has used is known when
it is answered, and is written down with its last span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from roost.domain.events import Draft
from roost.domain.usage import Usage
from roost.harnesses.acp.calls import (
    INTERRUPTED,
    NOT_MADE_AGAIN,
    AcpCalls,
    content_of,
    is_over,
)
from roost.harnesses.acp.wire import Json, SessionUpdate, TokenUsage
from roost.harnesses.content import text_block
from roost.harnesses.turn_ends import span_end
from roost.harnesses.unknown_frames import UnknownFrames
from roost.ports.drafts import new_draft, new_event_id
from roost.ports.harness import Emit, Output, Show

_TYPES: Final = {"agent_message_chunk": "agent.message", "agent_thought_chunk": "agent.thinking"}
_CALLS: Final = ("tool_call", "tool_call_update")
_LONGEST_PART: Final = 1 << 20  # characters of one event; what an agent says may never end
_LONGEST_REPLAY: Final = 1 << 25  # characters that are looked at of what an agent replays
_QUIET: Final = {  # known, and nothing for the log
    "user_message_chunk",
    "plan",
    "plan_update",
    "plan_removed",
    "available_commands_update",
    "current_mode_update",
    "config_option_update",
    "session_info_update",
    "usage_update",
}


class _Part(msgspec.Struct):
    """Text or thinking that is being said."""

    event_id: str
    type: str
    message_id: str | None
    pieces: list[str] = []
    length: int = 0

    def add(self, text: str) -> None:
        """More of it."""
        self.pieces.append(text)
        self.length += len(text)

    def event(self) -> list[Draft]:
        """What it comes to."""
        text = "".join(self.pieces)
        if self.type == "agent.thinking":
            return [Draft.of(self.type, self.event_id)]
        return [Draft.of(self.type, self.event_id, content=[text_block(text)])] if text else []


class UpdateReader:
    """What one process of the agent has said so far. `unknown` has what nobody here understands."""

    def __init__(self, calls: AcpCalls, name: str) -> None:
        self.unknown = UnknownFrames(name)
        self.stopped_for_a_refusal = False
        """Whether a refused call is the last that was heard."""
        self._calls = calls
        self._part: _Part | None = None
        self._span: str | None = None
        self._usage = Usage()

    def prompted(self) -> list[Output]:
        """A prompt was sent, so the model is asked."""
        self.stopped_for_a_refusal = False
        return self._begin_span()

    def take(self, update: SessionUpdate, frame: Json) -> list[Output]:
        """The outputs of an update. One that is not understood is passed on as it is."""
        kind = update.session_update
        if kind in _TYPES:
            return self._said(update, _TYPES[kind])
        if kind in _CALLS and update.tool_call_id:
            return self._called(update)
        if kind in _QUIET:
            return []
        return [*self.unknown.pass_on({"type": "session/update", "subtype": kind, **frame})]

    def certain(self, emits: Sequence[Emit]) -> list[Output]:
        """The events of a call that was just made; with it, the model has answered."""
        return [*self._end_part(), *emits, *self._end_span()] if emits else []

    def answered(self, usage: TokenUsage | None, *, may_go_on: bool = False) -> list[Output]:
        """The prompt was answered: what is left to say, and what it has used, in one.

        With `may_go_on` an agent that has stopped for a refused call is about to be told why: then it has not
        yet answered, and its next span has what it used.
        """
        self._spend(usage)
        closed = self._closing(INTERRUPTED)
        if may_go_on and self.stopped_for_a_refusal:
            return [*self._end_part(), *closed, *self._end_span()]
        said = [] if self._part is None else self._part.event()
        self._part = None
        if self._span is None and self._usage == Usage():
            return [*closed, *_emit(said)]
        begun = self._begin_span()
        assert self._span is not None
        end = span_end(self._span, self._usage, error=False)
        spent, self._span, self._usage = self._usage, None, Usage()
        return [*closed, *begun, Emit([*said, end], spent=spent)]

    def failed(self) -> list[Output]:
        """The prompt came to nothing: half a sentence is not what the model said."""
        self._part = None
        return [*self._closing(INTERRUPTED), *self._end_span(error=True)]

    def died(self) -> list[Output]:
        """The process is gone. What became of its calls is for whoever starts the next one to say."""
        self._part = None
        return self._end_span(error=True)

    def _said(self, update: SessionUpdate, type: str) -> list[Output]:
        text = update.text
        if not text:
            return []
        self.stopped_for_a_refusal = False
        outputs: list[Output] = [] if self._calls.open else self._begin_span()
        part = self._part
        same = part is not None and (part.type, part.message_id) == (type, update.message_id)
        if part is None or not same or part.length > _LONGEST_PART:
            outputs += self._end_part()
            part = self._part = _Part(new_event_id(), type, update.message_id, [])
            outputs.append(Show(part.event_id, type))
        part.add(text)
        return [*outputs, Show(part.event_id, type, text)] if type == "agent.message" else outputs

    def _called(self, update: SessionUpdate) -> list[Output]:
        call = self._calls.note(update)
        outputs: list[Output] = []
        if is_over(update) or (update.status == "in_progress" and not self._calls.asks):
            outputs += self.certain(self._calls.log(call, asked=False))
        if is_over(update) and not call.is_over:
            if call.refused is not None:
                outputs.append(call.returned(call.refused, is_error=True))
                self.stopped_for_a_refusal = True
            else:
                failed = update.status == "failed"
                outputs.append(call.returned(content_of(update), is_error=failed))
                self.stopped_for_a_refusal = False
        return outputs

    def _closing(self, why: str) -> list[Output]:
        """What becomes of calls that will not return any more."""
        outputs: list[Output] = []
        for call in self._calls.open:
            if call.refused is not None:
                self.stopped_for_a_refusal = True
            outputs.append(call.returned(call.refused or why, is_error=True))
        lost = self._calls.not_made_again()
        return [*outputs, *(call.returned(NOT_MADE_AGAIN, is_error=True) for call in lost)]

    def _end_part(self) -> list[Output]:
        part, self._part = self._part, None
        return [] if part is None else _emit(part.event())

    def _begin_span(self) -> list[Output]:
        if self._span is not None:
            return []
        start = new_draft("span.model_request_start")
        self._span = start.id
        return [Emit([start])]

    def _end_span(self, *, error: bool = False) -> list[Output]:
        span, self._span = self._span, None
        if span is None:
            return []
        spent, self._usage = (self._usage, Usage()) if error else (Usage(), self._usage)
        return [Emit([span_end(span, spent, error=error)], spent=spent)]

    def _spend(self, usage: TokenUsage | None) -> None:
        if usage is None:
            return
        read, written = usage.cached_read_tokens or 0, usage.cached_write_tokens or 0
        used = Usage(usage.input_tokens, usage.output_tokens, read, written)
        if all(count >= 0 for count in msgspec.structs.astuple(used)):
            self._usage = self._usage.plus(used)


def _emit(drafts: Sequence[Draft]) -> list[Output]:
    return [Emit(drafts)] if drafts else []


class ReplayedItem(msgspec.Struct):
    """Something that the agent's own record of a session has, in the order it has it."""

    kind: str
    """`user`, `text` or `call`."""
    pieces: list[str] = []
    message_id: str | None = None
    call: SessionUpdate | None = None

    @property
    def text(self) -> str:
        """What was said."""
        return "".join(self.pieces)


class Replay:
    """What an agent has replayed of a session that it was asked to load."""

    def __init__(self) -> None:
        self.items: list[ReplayedItem] = []
        self._calls: dict[str, ReplayedItem] = {}
        self._length = 0

    def take(self, update: SessionUpdate) -> None:
        """Take one update of the replay. Beyond all measure, the rest counts as missing in it."""
        self._length += _length(update)
        if self._length > _LONGEST_REPLAY:
            return
        kind = {"user_message_chunk": "user", "agent_message_chunk": "text"}.get(
            update.session_update
        )
        if kind is not None:
            self._said(kind, update)
        elif update.session_update in _CALLS and update.tool_call_id:
            self._called(update)

    def _said(self, kind: str, update: SessionUpdate) -> None:
        last = self.items[-1] if self.items else None
        if last is None or last.kind != kind or last.message_id != update.message_id:
            last = ReplayedItem(kind, message_id=update.message_id)
            self.items.append(last)
        last.pieces.append(update.text)

    def _called(self, update: SessionUpdate) -> None:
        found = self._calls.get(update.tool_call_id)
        if found is None or found.call is None:
            found = self._calls[update.tool_call_id] = ReplayedItem("call", call=update)
            self.items.append(found)
            return
        known = msgspec.structs.asdict(found.call)
        newer = {n: v for n, v in msgspec.structs.asdict(update).items() if v not in (None, {}, "")}
        named = {} if known["title"] is None else {"title": known["title"]}  # the first is its name
        found.call = SessionUpdate(**{**known, **newer, **named})


def _length(update: SessionUpdate) -> int:
    """How much there is in an update; never nothing."""
    return len(update.text) or len(msgspec.json.encode(update))
