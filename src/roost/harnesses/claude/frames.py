"""From what the CLI prints to what the log is told. Pure: no process, no clock.

A model request is a span: it opens when the CLI says that it asks, or when an answer begins, and ends
with the answer, or as an error when the CLI tries again or gives up. What the model says is an event
per block, as soon as the block is complete, under the id its previews had.

A subagent is a thread of the API's: what it says is a message from that thread, and its calls name the thread. Its
requests to the model are told by nobody; what they used comes in one sum, when the turn ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from roost.domain.events import Draft
from roost.domain.session import Pending
from roost.domain.usage import Usage
from roost.harnesses.claude.calls import ToolCall, ToolCalls
from roost.harnesses.claude.wire import (
    ContentBlock,
    McpServer,
    MessageFrame,
    ModelMessage,
    ResultFrame,
    StreamEvent,
    StreamFrame,
    SystemFrame,
    convert,
)
from roost.harnesses.content import blocks_of_result, text_block
from roost.harnesses.json_lines import Json
from roost.harnesses.logged_past import UNKNOWN
from roost.harnesses.retries import refused
from roost.harnesses.stable_ids import StableIds, thread_of
from roost.harnesses.turn_ends import span_end
from roost.harnesses.unknown_frames import UnknownFrames
from roost.ports.drafts import new_draft, new_event_id
from roost.ports.harness import Emit, Output, Show, Trouble

_QUIET = {  # known, and nothing for the log
    "thinking_tokens",
    "session_state_changed",
    "task_started",
    "task_progress",
    "task_updated",
    "task_notification",
}
_UNREACHABLE = {  # how the CLI says that it cannot use an MCP server, and what the API calls that
    "failed": ("mcp_connection_failed_error", "cannot be reached"),
    # A 403 is the server's or the egress's: the session's log has a line of the latter.
    "needs-auth": ("mcp_authentication_failed_error", "refuses the connection"),
}
_ABANDONED = "This call was given up: the subagent that made it has ended."
_FIGURES: Final = {  # what the CLI calls the figures of all requests together
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_input_tokens": "cacheReadInputTokens",
    "cache_creation_input_tokens": "cacheCreationInputTokens",
}
_SYNTHETIC = "<synthetic>"  # the model's name on messages that the CLI itself has written


class MessageEvents:
    """Events of the CLI's messages: the same whether they are heard or read in its transcript.

    `has_subagents`: some were started since somebody looked.
    """

    def __init__(self, ids: StableIds, calls: ToolCalls) -> None:
        self._ids = ids
        self._calls = calls
        self.has_subagents = False
        self._counts: Counter[tuple[str, str]] = Counter()

    def spoken(self, said: MessageFrame) -> list[Emit]:
        """What the agent said and called."""
        if said.error is not None or said.message.model == _SYNTHETIC:
            return []
        events = [self._block(said, block) for block in said.blocks]
        return [event for event in events if event is not None]

    def begun(self, said: MessageFrame) -> list[Emit]:
        """That a subagent was started, if this is the first frame of one."""
        parent, agent_id = said.parent_tool_use_id, said.agent_id
        if parent is None or agent_id is None or not self._calls.begun(agent_id, parent):
            return []
        self.has_subagents = True
        fields: Json = {
            "session_thread_id": thread_of(self._ids.call(parent)),
            "workflow_run_id": None,
        }
        fields["agent_name"] = _name_of(said)
        return [Emit([Draft.of("session.thread_created", self._ids.begun(parent), **fields)])]

    def returned(self, said: MessageFrame) -> list[Emit]:
        """What its calls have come to. A client's own results are in the log already."""
        results = [block for block in said.blocks if block.type == "tool_result"]
        emits: list[Emit | None] = []
        for block in results:
            emits += self._abandoned(block.tool_use_id)
            emits.append(self._result(block))
        return [emit for emit in emits if emit is not None]

    def cut_off(self) -> list[Emit]:
        """What becomes of the calls that a process has left open and that no other one takes up."""
        emits = []
        for tool_use_id, call in self._calls.under_way().items():
            result_id = self._ids.result(tool_use_id)
            emits.append(Emit([result_of(call, result_id, UNKNOWN, is_error=True)]))
            self._calls.settle(tool_use_id)
        return emits

    def _abandoned(self, tool_use_id: str) -> list[Emit]:
        """What becomes of calls that a subagent has left open: nobody's answer would be heard any more."""
        emits = []
        for left, call in self._calls.left_by(tool_use_id):
            self._calls.returned(left)
            result = result_of(call, self._ids.result(left), _ABANDONED, is_error=True)
            emits.append(Emit([result], unblocks=[call.event_id]))
        return emits

    def _result(self, block: ContentBlock) -> Emit | None:
        call = self._calls.returned(block.tool_use_id)
        if call is None:
            return None
        # The CLI has refused it without asking anybody: nobody's answer would be heard any more.
        unblocks = [call.event_id] if self._calls.never_asked(block.tool_use_id) else []
        if call.tool.answered_by_client and not unblocks:
            return None
        event_id, failed = self._ids.result(block.tool_use_id), bool(block.is_error)
        result = result_of(call, event_id, block.content, is_error=failed)
        return Emit([result], unblocks=unblocks)

    def _block(self, said: MessageFrame, block: ContentBlock) -> Emit | None:
        message, parent = said.message, said.parent_tool_use_id
        thread = None if parent is None else thread_of(self._ids.call(parent))
        if block.type == "tool_use":
            call, new = self._calls.make(block.id, block.name, block.input, parent)
            return _called(call, thread) if new else None
        kind = "thinking" if block.type == "redacted_thinking" else block.type
        nth = self._counts[message.id, kind]
        self._counts[message.id, kind] += 1
        event_id = self._ids.block(message.id, kind, nth)
        if thread is not None:
            return _received(thread, event_id, said, block) if kind == "text" else None
        if kind == "thinking":
            return Emit([Draft.of("agent.thinking", event_id)])
        if kind == "text" and block.text:
            return Emit([Draft.of("agent.message", event_id, content=[text_block(block.text)])])
        return None


class FrameReader:
    """What one process of the CLI has said so far. `unknown` has what nobody here understands."""

    def __init__(self, ids: StableIds, calls: ToolCalls) -> None:
        self.result: ResultFrame | None = None
        self.unknown = UnknownFrames("claude")
        self._ids = ids
        self._calls = calls
        self._events = MessageEvents(ids, calls)
        self._span: _Span | None = None
        self._failures = 0

    @property
    def asks_the_model(self) -> bool:
        """Whether a request to the model is under way."""
        return self._span is not None

    def take(self, frame: Json) -> list[Output]:
        """The outputs of a frame. One that is not understood is passed on as it is."""
        handle = _HANDLERS.get(frame["type"])
        outputs = handle(self, frame) if handle else None
        return [*self.unknown.pass_on(frame)] if outputs is None else outputs

    def close_span(self, *, error: bool) -> list[Output]:
        """End the model request that is under way, if there is one."""
        span, self._span = self._span, None
        return [] if span is None else [span.end(error=error)]

    def cut_off(self) -> list[Output]:
        """The outputs that settle the calls which are under way."""
        return [*self._events.cut_off()]

    def answered(self) -> list[Output]:
        """End a request whose answer came in one piece: that has no end of its own, so what is done
        with the answer has to tell.
        """
        whole = self._span is not None and self._span.bound and not self._span.streams
        return self.close_span(error=False) if whole else []

    def _said(self, frame: Json) -> list[Output] | None:
        said = convert(frame, MessageFrame)
        if said is None or not self._is_from_known(said.parent_tool_use_id):
            return None
        if said.parent_tool_use_id is not None:
            return [*self._events.begun(said), *self._events.spoken(said)]
        emits = self._events.spoken(said)
        if not emits:
            return []
        opened = self._open_span(said.message)
        if self._span is not None and not self._span.streams:
            self._span.spend(said.message.usage)
        return [*opened, *emits]

    def _returned(self, frame: Json) -> list[Output] | None:
        said = convert(frame, MessageFrame)
        if said is None or not self._is_from_known(said.parent_tool_use_id):
            return None
        if said.parent_tool_use_id is not None:
            return [*self._events.begun(said), *self._events.returned(said)]
        return [*self.answered(), *self._events.returned(said)]

    def _is_from_known(self, parent: str | None) -> bool:
        """Whether a frame is the agent's own, or of a subagent that it has started and waits for."""
        return parent is None or self._calls.starts_subagent(parent)

    def _streamed(self, frame: Json) -> list[Output] | None:
        streamed = convert(frame, StreamFrame)
        if streamed is None or not self._is_from_known(streamed.parent_tool_use_id):
            return None
        if streamed.parent_tool_use_id is not None:
            return []  # only whole messages of subagents are shown
        event = streamed.event
        match event.type:
            case "message_start" if event.message is not None:
                self._failures = 0
                opened = self._open_span(event.message)
                if self._span is not None:
                    self._span.stream(event.message)
                return opened
            case "message_stop":
                return self.close_span(error=streamed.abandoned_blocks is not None)
            case _:
                return self._span.previews(event, self._ids) if self._span else []

    def _system(self, frame: Json) -> list[Output] | None:
        system = convert(frame, SystemFrame)
        if system is None:
            return None
        match system.subtype:
            case "status":
                return self._requested() if system.status == "requesting" else []
            case "api_retry":
                return self._asks_again(system)
            case "init":
                return [_unreached(s) for s in system.mcp_servers if s.status in _UNREACHABLE]
            case "compact_boundary":
                return [Emit([new_draft("agent.thread_context_compacted")])]
            case subtype:
                return [] if subtype in _QUIET else None

    def _ended(self, frame: Json) -> list[Output] | None:
        self.result = convert(frame, ResultFrame)
        if self.result is None:
            return None
        others = _spent_by_subagents(self.result) if self._events.has_subagents else []
        self._events.has_subagents = False
        if self.result.is_error and self.result.terminal_reason == "api_error":
            return [*others, *self.failed()]
        streamed = self._span is not None and self._span.streams
        return [*others, *self.close_span(error=streamed or self.result.is_error)]

    def _asks_again(self, system: SystemFrame) -> list[Output]:
        """While it waits for long, the CLI says so once more every now and then."""
        if system.attempt and system.attempt == self._failures:
            return []
        self._failures = system.attempt
        return [*self.failed(), _retrying(system)]

    def failed(self) -> list[Output]:
        """End the request that failed. The CLI does not say that it asks again, only how that went:
        then the request begins and ends here.
        """
        begun = self._new_span() if self._span is None else []
        return [*begun, *self.close_span(error=True)]

    def _requested(self) -> list[Output]:
        if self._span is not None and not self._span.bound:
            return []
        return [*self.answered(), *self.close_span(error=True), *self._new_span()]

    def _open_span(self, message: ModelMessage) -> list[Output]:
        """A span for this answer, unless it has one."""
        opened: list[Output] = []
        if self._span is None or not self._span.takes(message):
            opened = [*self.answered(), *self.close_span(error=True), *self._new_span()]
        if self._span is not None:
            self._span.message_id = message.id
        return opened

    def _new_span(self) -> list[Output]:
        self._span = _Span()
        return [Emit([self._span.start])]


class _Span:
    """A model request that is under way, from its start event to its end event."""

    def __init__(self) -> None:
        self.start = new_draft("span.model_request_start")
        self.streams = False
        self.message_id: str | None = None
        self._usage: Json = {}
        self._shown: dict[int, tuple[str, str]] = {}
        self._counts: Counter[str] = Counter()

    @property
    def bound(self) -> bool:
        """Whether the answer to it has begun."""
        return self.message_id is not None

    def takes(self, message: ModelMessage) -> bool:
        """Whether the message can be the answer to this request."""
        return self.message_id in (None, message.id)

    def stream(self, message: ModelMessage) -> None:
        """Note that the answer comes in pieces."""
        self.streams = True
        self.spend(message.usage)

    def spend(self, usage: Json | None) -> None:
        """Note what was used so far; later figures are totals, and replace earlier ones."""
        self._usage |= {name: n for name, n in (usage or {}).items() if n is not None}

    def previews(self, event: StreamEvent, ids: StableIds) -> list[Output]:
        """What a piece of the answer shows."""
        self.spend(event.usage)
        if event.type == "content_block_start" and event.content_block is not None:
            return self._begun(event.index, event.content_block, ids)
        if event.type == "content_block_delta" and event.delta is not None:
            return self._added(event.index, event.delta.text)
        return []

    def end(self, *, error: bool) -> Output:
        """The event that ends it, with what it cost."""
        usage = usage_of(self._usage)
        return Emit([span_end(self.start.id, usage, error=error)], spent=usage)

    def _added(self, index: int, text: str) -> list[Output]:
        if not text or index not in self._shown:
            return []
        event_id, type = self._shown[index]
        return [Show(event_id, type, text)]

    def _begun(self, index: int, block: ContentBlock, ids: StableIds) -> list[Output]:
        kind = "thinking" if block.type == "redacted_thinking" else block.type
        type = {"text": "agent.message", "thinking": "agent.thinking"}.get(kind)
        if type is None or self.message_id is None:
            return []
        event_id = ids.block(self.message_id, kind, self._counts[kind])
        self._counts[kind] += 1
        if kind == "text":
            self._shown[index] = event_id, type
        return [Show(event_id, type)]


def usage_of(figures: Json) -> Usage:
    """What the model's figures say was used."""
    counts = {name: figures.get(name) for name in Usage.__struct_fields__}
    return Usage(**{name: n for name, n in counts.items() if isinstance(n, int) and n >= 0})


def _spent_by_subagents(result: ResultFrame) -> list[Output]:
    """What was used beyond the agent's own requests, as one span: that of all its subagents' requests."""
    if result.usage is None:
        return []
    own, used = usage_of(result.usage), Usage()
    for figures in result.model_usage_since_last_result.values():
        used = used.plus(usage_of({ours: figures.get(theirs) for ours, theirs in _FIGURES.items()}))
    left = {name: getattr(used, name) - getattr(own, name) for name in _FIGURES}
    if used.input_tokens <= own.input_tokens or min(left.values()) < 0:
        return []
    spent, start = Usage(**left), new_draft("span.model_request_start")
    return [Emit([start, span_end(start.id, spent, error=False)], spent=spent)]


def _name_of(said: MessageFrame) -> str:
    return said.subagent_type or "subagent"


def _received(thread: str, event_id: str, said: MessageFrame, block: ContentBlock) -> Emit | None:
    """What a subagent says: to the agent that has started it, and to nobody else."""
    if not block.text:
        return None
    fields: Json = {"from_session_thread_id": thread, "from_agent_name": _name_of(said)}
    content = [text_block(block.text)]
    return Emit([Draft.of("agent.thread_message_received", event_id, **fields, content=content)])


def _called(call: ToolCall, thread: str | None) -> Emit:
    fields: Json = {"name": call.tool.name, "input": call.input}
    if thread is not None:
        fields["session_thread_id"] = thread
    if call.tool.answered_by_client:
        draft = Draft.of("agent.custom_tool_use", call.event_id, **fields)
        return Emit([draft], blocks=[Pending(call.event_id, "custom_tool")])
    fields |= call.verdict.fields()
    if call.tool.kind == "mcp":
        fields["mcp_server_name"] = call.tool.server
    draft = Draft.of(f"agent.{_prefix(call)}tool_use", call.event_id, **fields)
    return Emit([draft], blocks=[Pending(call.event_id, "confirmation")] if call.waits else [])


def result_of(call: ToolCall, event_id: str | None, content: object, *, is_error: bool) -> Draft:
    """The event of a call's result."""
    named: Json = {f"{_prefix(call)}tool_use_id": call.event_id}
    shown = blocks_of_result(content)
    type = f"agent.{_prefix(call)}tool_result"
    return Draft.of(type, event_id or new_event_id(), **named, content=shown, is_error=is_error)


def _prefix(call: ToolCall) -> str:
    return "mcp_" if call.tool.kind == "mcp" else ""


def _unreached(server: McpServer) -> Emit:
    """It stops nobody: the turn goes on without that server, and the next one tries it again."""
    type, reason = _UNREACHABLE[server.status]
    error = {
        "type": type,
        "mcp_server_name": server.name,
        "message": f"The MCP server {server.name} {reason}.",
        "retry_status": {"type": "retrying"},
    }
    return Emit([new_draft("session.error", error=error)])


def _retrying(system: SystemFrame) -> Trouble:
    failure = refused(system.error or "unknown", "it is asked again", system.error_status)
    return Trouble(failure.error, failure.message, "retrying")


_HANDLERS: dict[str, Callable[[FrameReader, Json], list[Output] | None]] = {
    "assistant": FrameReader._said,
    "user": FrameReader._returned,
    "stream_event": FrameReader._streamed,
    "system": FrameReader._system,
    "result": FrameReader._ended,
}
