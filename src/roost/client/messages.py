"""What the gateway shows, typed. docs/gateway.md says when each of them comes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

Json = dict[str, Any]


class _Shown(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class Ack(_Shown, frozen=True, tag="ack"):
    """An input is committed; or, with `head`, the session is at hand, and its log ends there."""

    seq: int
    head: int | None = None
    id: str | None = None
    event_id: str | None = None
    session_id: str | None = None
    repeated: bool = False
    ignored: list[str] = []


class SdkMessage(_Shown, frozen=True, tag="sdk_message"):
    """An entry of the log."""

    seq: int
    message: Json


class StreamStart(_Shown, frozen=True, tag="stream_start"):
    """The agent begins to write a text."""

    message_id: str
    kind: str = "message"


class Chunk(_Shown, frozen=True, tag="chunk"):
    """A further piece of the text that the agent writes."""

    message_id: str
    content: str


class StreamEnd(_Shown, frozen=True, tag="stream_end"):
    """It is complete, or void."""

    message_id: str
    seq: int | None = None
    aborted: bool = False


class Done(_Shown, frozen=True, tag="done"):
    """The turn is over, and the agent rests."""

    seq: int
    message_id: str | None
    metadata: Json


class Error(_Shown, frozen=True, tag="error"):
    """Something went wrong; the message says what."""

    message: str
    code: str
    hint: str | None = None
    id: str | None = None
    seq: int | None = None
    retry: str | None = None
    retry_after: float | None = None


class ConnectionStatus(_Shown, frozen=True, tag="connection_status"):
    """How the line to the agent is."""

    status: str


class AgentStatus(_Shown, frozen=True, tag="agent_status"):
    """What the agent does."""

    status: str
    stop_reason: str | None = None


class SessionStatus(_Shown, frozen=True, tag="session_status"):
    """What became of the session's files."""

    status: str


class ToolPermissionRequest(_Shown, frozen=True, tag="tool_permission_request"):
    """A tool call waits for permission."""

    seq: int
    request_id: str
    tool_name: str
    tool_input: Json
    server_name: str | None = None


class AskUserQuestion(_Shown, frozen=True, tag="ask_user_question"):
    """The agent asks a person something, and waits for the answer."""

    seq: int
    request_id: str
    questions: list[Json]
    tool_name: str
    tool_input: Json


class TaskUpdated(_Shown, frozen=True, tag="task_updated"):
    """The agent has changed its task; without a `seq`, and with its schedule, somebody else has."""

    task_id: str
    title: str
    description: str
    details: str
    status: str
    seq: int | None = None
    schedule: Json | None = None
    paused_reason: Json | None = None


class Withdrawn(_Shown, frozen=True, tag="withdrawn"):
    """These inputs were withdrawn by an interrupt: the agent never gets them."""

    seq: int
    event_ids: list[str]
    interrupt_id: str


class MemoryStats(_Shown, frozen=True, tag="memory_stats"):
    """What the agent's sandbox uses."""

    rss: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    cpu_seconds: float | None = None


Message = (
    Ack
    | SdkMessage
    | StreamStart
    | Chunk
    | StreamEnd
    | Done
    | Error
    | ConnectionStatus
    | AgentStatus
    | SessionStatus
    | ToolPermissionRequest
    | AskUserQuestion
    | TaskUpdated
    | MemoryStats
    | Withdrawn
)

_decode: Final = msgspec.json.Decoder(Message).decode


def read(frame: str | bytes) -> Message | None:
    """The message in a frame; None if it is of a kind that this client does not know."""
    try:
        message: Message = _decode(frame)
    except msgspec.ValidationError:
        return None  # a newer server says more
    return message
