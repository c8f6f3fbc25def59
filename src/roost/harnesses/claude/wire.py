"""What travels between us and the CLI, one JSON object per line, both ways (`json_lines`).

A frame is converted to one of the shapes here or left alone: what does not fit cannot reach the code
behind it. Fields that are not named are ignored, so that a newer CLI may add some.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from roost.harnesses.json_lines import Json, JsonLines, decoded
from roost.ports.sandbox import Process

T = TypeVar("T", bound=msgspec.Struct)
_NAME: Final = re.compile(r"[0-9a-f-]{36}")  # of a message


class ContentBlock(msgspec.Struct, frozen=True):
    """A content block of any type; which fields mean something depends on the type."""

    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: Json = {}
    tool_use_id: str = ""
    content: Any = None
    is_error: bool | None = None


class ModelMessage(msgspec.Struct, frozen=True):
    """What one side said. Only prompts have text in place of blocks."""

    content: list[ContentBlock] | str = []
    id: str = ""
    model: str = ""
    usage: Json | None = None


class MessageFrame(msgspec.Struct, frozen=True):
    """An `assistant` or `user` frame. `error` marks text that the CLI and not the model wrote.

    One of a subagent has the call that started it, and what the CLI calls the subagent and its type.
    """

    message: ModelMessage
    parent_tool_use_id: str | None = None
    agent_id: str | None = None
    subagent_type: str | None = None
    error: str | None = None

    @property
    def blocks(self) -> list[ContentBlock]:
        """Its blocks; none if it is plain text."""
        return self.message.content if isinstance(self.message.content, list) else []


class BlockDelta(msgspec.Struct, frozen=True):
    """What is added to a block."""

    type: str = ""
    text: str = ""


class StreamEvent(msgspec.Struct, frozen=True):
    """An event of the model's stream."""

    type: str
    index: int = 0
    message: ModelMessage | None = None
    content_block: ContentBlock | None = None
    delta: BlockDelta | None = None
    usage: Json | None = None


class StreamFrame(msgspec.Struct, frozen=True):
    """A `stream_event` frame. `abandoned_blocks`: the stream broke off, and this ends it."""

    event: StreamEvent
    parent_tool_use_id: str | None = None
    abandoned_blocks: Any = None


class McpServer(msgspec.Struct, frozen=True):
    """An MCP server, and whether the CLI has reached it."""

    name: str
    status: str = ""


class SystemFrame(msgspec.Struct, frozen=True):
    """A `system` frame, of any subtype. `attempt`: which one has failed, of a request to the model."""

    subtype: str
    state: str = ""
    status: str | None = None
    error_status: int | None = None
    error: str | None = None
    attempt: int = 0
    max_retries: int | None = None
    retry_delay_ms: float = 0
    mcp_servers: list[McpServer] = []


class ResultFrame(msgspec.Struct, frozen=True):
    """A `result` frame: why the CLI stopped. `subtype` alone does not tell an API error.

    `usage` is what the agent itself has used, `model_usage_since_last_result` what its subagents have, too, by
    model.
    """

    subtype: str = ""
    is_error: bool = False
    terminal_reason: str | None = None
    stop_reason: str | None = None
    result: str | None = None
    errors: list[str] = []
    api_error_status: int | None = None
    usage: Json | None = None
    model_usage_since_last_result: dict[str, Json] = {}


class PromptFrame(msgspec.Struct, frozen=True):
    """A `command_lifecycle` frame: what became of a prompt."""

    command_uuid: str
    state: str


class ControlRequest(msgspec.Struct, frozen=True):
    """A `control_request` frame of the CLI."""

    request_id: str
    request: Json


class CanUseTool(msgspec.Struct, frozen=True):
    """The request that asks for permission, perhaps for a subagent."""

    tool_name: str
    tool_use_id: str
    input: Json
    agent_id: str | None = None


class McpMessage(msgspec.Struct, frozen=True):
    """The request that carries a JSON-RPC message to a server on our side."""

    server_name: str
    message: Json


def convert(frame: Json, shape: type[T]) -> T | None:
    """The frame as that shape; None if it does not have it."""
    try:
        return msgspec.convert(frame, shape)
    except msgspec.ValidationError:
        return None


class Prompt(msgspec.Struct, frozen=True):
    """Something to say to the agent, under a name the CLI acts on once."""

    uuid: str
    content: list[Json] | str

    def frame(self) -> Json:
        """As the CLI takes it. Composed by a client: no paths or commands in it are expanded."""
        return {
            "type": "user",
            "uuid": self.uuid,
            "message": {"role": "user", "content": self.content},
            "parent_tool_use_id": None,
            "client_composed": True,
        }


def parse(line: bytes) -> Json | None:
    """The frame in a line; None if there is none."""
    frame = decoded(line)
    return frame if frame is not None and isinstance(frame.get("type"), str) else None


class CliPipe(JsonLines):
    """A CLI that runs (`JsonLines`). A frame that names another session is dropped.

    `last_message` is the name of the newest message of the conversation that it has printed.
    """

    def __init__(self, process: Process, session: str, is_up: Callable[[], None]) -> None:
        super().__init__(process, is_up)
        self.last_message: str | None = None
        self._session = session
        self._requests = 0

    def frame_of(self, line: bytes) -> Json | str:
        frame = parse(line)
        if frame is None:
            return "not a frame"
        if frame.get("session_id") not in (None, "", self._session):
            return "of another session"
        if frame["type"] in ("assistant", "user") and not frame.get("parent_tool_use_id"):
            name = str(frame.get("uuid"))
            self.last_message = name if _NAME.fullmatch(name) else None
        return frame

    async def request(self, subtype: str, **fields: object) -> None:
        """Ask the CLI for something. What it answers is not waited for."""
        self._requests += 1
        asked = {"subtype": subtype, **fields}
        await self.send(
            {"type": "control_request", "request_id": f"roost-{self._requests}", "request": asked}
        )

    async def respond(self, request_id: str, response: Json) -> None:
        """Answer what the CLI has asked."""
        answer = {"subtype": "success", "request_id": request_id, "response": response}
        await self.send({"type": "control_response", "response": answer})

    async def refuse(self, request_id: str, error: str) -> None:
        """Tell the CLI that what it has asked for is not to be had."""
        answer = {"subtype": "error", "request_id": request_id, "error": error}
        await self.send({"type": "control_response", "response": answer})
