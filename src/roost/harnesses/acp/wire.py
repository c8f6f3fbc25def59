"""What travels between us and an agent by the Agent Client Protocol: JSON-RPC, one message per line, both ways.

The shapes here are the part of the protocol's version 1 that the harness uses. A message is converted to one of
them or left alone; fields that are not named are ignored, so that a newer agent may add some. The official
library has all of them, and a test compares what is sent with those; why it is not used here is in
docs/decisions/059.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import anyio
import msgspec

from roost.harnesses.json_lines import Json as Json
from roost.harnesses.json_lines import JsonLines, decoded

PROTOCOL: Final = 1
"""The version of the protocol that is spoken here."""

METHOD_NOT_FOUND: Final = -32601
_LOOK_AGAIN: Final = 0.02  # seconds between looks at whether there is a message
T = TypeVar("T", bound=msgspec.Struct)


class SessionUpdate(msgspec.Struct, frozen=True, rename="camel"):
    """Something the agent says or does; which fields mean something depends on `session_update`."""

    session_update: str
    content: Any = None
    message_id: str | None = None
    tool_call_id: str = ""
    name: str | None = None
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: Any = None
    raw_output: Any = None
    meta: Json | None = msgspec.field(default=None, name="_meta")

    @property
    def text(self) -> str:
        """What a chunk says; a part that is not text is at least named."""
        match self.content:
            case {"type": "text", "text": str(text)}:
                return text
            case {"type": str(kind)}:
                return f"[{kind}]"
            case _:
                return ""


class UpdateParams(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of `session/update`."""

    session_id: str
    update: SessionUpdate


class PermissionOption(msgspec.Struct, frozen=True, rename="camel"):
    """One of the answers that an agent offers when it asks for permission."""

    option_id: str
    kind: str = ""


class PermissionParams(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of `session/request_permission`. The call is an update without its name."""

    session_id: str
    tool_call: Json
    options: list[PermissionOption] = []

    @property
    def call(self) -> SessionUpdate | None:
        """What is known of the call."""
        return convert({**self.tool_call, "sessionUpdate": "tool_call_update"}, SessionUpdate)

    def option(self, *kinds: str) -> str | None:
        """The option of the first of these kinds that is offered."""
        for kind in kinds:
            for option in self.options:
                if option.kind == kind:
                    return option.option_id
        return None


class PromptCapabilities(msgspec.Struct, frozen=True, rename="camel"):
    """What a prompt may have in it besides text."""

    image: bool = False
    embedded_context: bool = False


class McpCapabilities(msgspec.Struct, frozen=True, rename="camel"):
    """Which MCP servers an agent can use, besides programs that it starts itself."""

    http: bool = False


class AgentCapabilities(msgspec.Struct, frozen=True, rename="camel"):
    """What an agent can do."""

    load_session: bool = False
    prompt_capabilities: PromptCapabilities = PromptCapabilities()
    mcp_capabilities: McpCapabilities = McpCapabilities()
    session_capabilities: Json = {}

    @property
    def resumes(self) -> bool:
        """Whether it can go on with a session without replaying it."""
        return self.session_capabilities.get("resume") is not None


class Introduction(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to `initialize`."""

    protocol_version: int
    agent_capabilities: AgentCapabilities = AgentCapabilities()


class OpenedSession(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to `session/new`."""

    session_id: str


class TokenUsage(msgspec.Struct, frozen=True, rename="camel"):
    """What a prompt has used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None


class PromptResult(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to `session/prompt`: why the agent stopped."""

    stop_reason: str = "end_turn"
    usage: TokenUsage | None = None


class RpcError(msgspec.Struct, frozen=True):
    """Why a request was not answered."""

    code: int = 0
    message: str = ""
    data: Any = None

    @property
    def words(self) -> str:
        """In words, with what the agent added to them."""
        match self.data:
            case str(more) | {"details": str(more)} | {"message": str(more)}:
                return f"{self.message}: {more}" if more not in self.message else self.message
            case _:
                return self.message


class RpcMessage(msgspec.Struct, frozen=True):
    """A message: a request has a method and an id, a notification no id, a response no method."""

    id: int | str | None = None
    method: str | None = None
    params: Json = {}
    result: Any = None
    error: RpcError | None = None


def convert(message: object, shape: type[T]) -> T | None:
    """The message as that shape; None if it does not have it."""
    try:
        return msgspec.convert(message, shape)
    except msgspec.ValidationError:
        return None


class AcpPipe(JsonLines):
    """An agent that runs, and is talked to by JSON-RPC."""

    _requests = 0

    def frame_of(self, line: bytes) -> Json | str:
        """See `JsonLines`."""
        frame = decoded(line)
        return frame if frame and convert(frame, RpcMessage) is not None else "not a message"

    async def has_more(self, seconds: float) -> bool:
        """Whether there is a message that nobody has taken, or comes one within so many seconds."""
        with anyio.move_on_after(seconds):
            while not self.ended and not self._inbox.statistics().current_buffer_used:  # noqa: ASYNC110
                await anyio.sleep(_LOOK_AGAIN)
        return self._inbox.statistics().current_buffer_used > 0

    async def request(self, method: str, params: Json) -> int:
        """Ask for something; gives the id that the answer will have."""
        self._requests += 1
        asked = {"jsonrpc": "2.0", "id": self._requests, "method": method, "params": params}
        await self.send(asked)
        return self._requests

    async def notify(self, method: str, params: Json) -> None:
        """Say something that has no answer."""
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def respond(self, request_id: int | str, result: Json) -> None:
        """Answer what the agent has asked."""
        await self.send({"jsonrpc": "2.0", "id": request_id, "result": result})

    async def refuse(self, request_id: int | str, message: str) -> None:
        """Tell the agent that what it asks for is not to be had."""
        error = {"code": METHOD_NOT_FOUND, "message": message}
        await self.send({"jsonrpc": "2.0", "id": request_id, "error": error})
