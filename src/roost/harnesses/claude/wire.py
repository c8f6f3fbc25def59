"""What travels between us and the CLI, and the pipes that carry it: one JSON object per line, both ways.

Whatever comes out of a sandbox is bounded and is data: a line that is too long, is not an object, or
names another session is dropped and counted, and the next one is read. A frame is converted to one of the
shapes here or left alone: what does not fit cannot reach the code behind it. Fields that are not named
are ignored, so that a newer CLI may add some.
"""

from __future__ import annotations

import json
import logging
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import anyio
import msgspec

from roost.errors import SandboxFailed
from roost.ports.sandbox import Process

Json = dict[str, Any]
T = TypeVar("T", bound=msgspec.Struct)
_log = logging.getLogger(__name__)
MAX_LINE: Final = 32 * 1024 * 1024
_AHEAD = 256  # frames read before somebody asks for them; beyond that the CLI has to wait
_LARGE = (
    256 * 1024
)  # bytes of a frame that is not read ahead: 256 of the largest would be gigabytes
_LOOK_AGAIN = 0.02  # seconds between looks at whether all frames were taken
_ENDS_WITHIN = 5.0  # seconds the CLI has to end by itself


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
    """An `assistant` or `user` frame. `error` marks text that the CLI and not the model wrote."""

    message: ModelMessage
    parent_tool_use_id: str | None = None
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
    """A `result` frame: why the CLI stopped. `subtype` alone does not tell an API error."""

    subtype: str = ""
    is_error: bool = False
    terminal_reason: str | None = None
    stop_reason: str | None = None
    result: str | None = None
    errors: list[str] = []
    api_error_status: int | None = None


class PromptFrame(msgspec.Struct, frozen=True):
    """A `command_lifecycle` frame: what became of a prompt."""

    command_uuid: str
    state: str


class ControlRequest(msgspec.Struct, frozen=True):
    """A `control_request` frame of the CLI."""

    request_id: str
    request: Json


class CanUseTool(msgspec.Struct, frozen=True):
    """The request that asks for permission."""

    tool_name: str
    tool_use_id: str
    input: Json


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


class LineSplitter:
    """Bytes in, whole lines out. A line over the limit is skipped as a whole, and counted."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self.skipped = 0
        self._limit = limit
        self._begun = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete."""
        *ends, rest = data.split(b"\n")
        lines = [line for end in ends if (line := self._ended(end)) is not None]
        self._add(rest)
        return lines

    def _ended(self, end: bytes) -> bytes | None:
        self._add(end)
        line = None if self._skipping else bytes(self._begun)
        self._skipping = False
        self._begun.clear()
        return line

    def _add(self, piece: bytes) -> None:
        if self._skipping:
            return
        self._begun += piece
        if len(self._begun) > self._limit:
            self.skipped += 1
            self._skipping = True
            self._begun.clear()


def parse(line: bytes) -> Json | None:
    """The frame in a line; None if there is none."""
    try:
        frame = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        frame = _mended(line)
    return frame if isinstance(frame, dict) and isinstance(frame.get("type"), str) else None


def _mended(line: bytes) -> object:
    """JavaScript cuts strings in the middle of a character, and writes half of it. That half goes."""
    try:
        whole = json.dumps(json.loads(line.decode(errors="replace")), ensure_ascii=False)
        return msgspec.json.decode(whole.encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


class CliPipe:
    """A CLI that runs. `pump` must run beside whoever uses it. `dropped` counts lines, by reason.

    `is_up` is called when it first says anything, or has ended without a word.
    """

    def __init__(
        self, process: Process, session: str, is_up: Callable[[], None] = lambda: None
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self.spoke = self.ended = False
        self._is_up = is_up
        self._process = process
        self._session = session
        self._inbox, self._frames = anyio.create_memory_object_stream[Json](_AHEAD)
        self._writing = anyio.Lock(fast_acquire=True)
        self._requests = 0

    async def pump(self) -> None:
        """Read frames until the CLI ends its output."""
        with self._inbox, suppress(SandboxFailed):
            await self._read()
        self.ended = True
        self._is_up()

    async def _read(self) -> None:
        lines = LineSplitter(MAX_LINE)
        while data := await self._process.receive():
            self.spoke = True
            self._is_up()
            for line in lines.feed(data):
                await self._pass_on(line)
            if lines.skipped > self.dropped["too long"]:
                self.dropped["too long"] = lines.skipped
                _log.error("the agent printed a line of more than %d bytes; skipped", MAX_LINE)

    async def next(self, seconds: float) -> Json:
        """Wait for the next frame.

        :raises TimeoutError: none came for that long
        :raises EndOfStream: there are no more
        """
        with anyio.fail_after(seconds):
            return await self._frames.receive()

    async def send(self, *frames: Json) -> None:
        """Write frames. If the CLI is gone that is no error here: `next` says so."""
        data = b"".join(msgspec.json.encode(frame) + b"\n" for frame in frames)
        async with self._writing:
            with suppress(SandboxFailed):
                await self._process.send(data)

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

    async def end(self) -> None:
        """Let it end by itself; make it, if it takes too long."""
        self._frames.close()
        await self._process.close_input()
        with anyio.move_on_after(_ENDS_WITHIN):
            await self._gone()
            return
        await self.kill()

    async def kill(self, *, after: float = 0) -> None:
        """End it as it stands, `after` some seconds in which it may still write its transcript."""
        self._frames.close()
        await anyio.sleep(after)
        self._process.signal(signal.SIGKILL)
        await self._gone()

    async def exit_status(self) -> tuple[int, str]:
        """The exit code of a CLI that has ended its output, and the end of what it wrote to stderr."""
        self._frames.close()
        with anyio.move_on_after(_ENDS_WITHIN):
            code = await self._process.wait()
            return code, self._process.errors().decode(errors="replace").strip()[-500:]
        await self.kill()
        return -signal.SIGKILL, "it closed its output and did not end"

    async def _gone(self) -> None:
        with suppress(SandboxFailed):  # then the whole place is gone, and it with it
            await self._process.wait()

    async def _pass_on(self, line: bytes) -> None:
        frame = parse(line)
        if frame is None:
            if line.strip():
                self._drop("not a frame", line)
        elif frame.get("session_id") not in (None, "", self._session):
            self._drop("of another session", line)
        else:
            if len(line) > _LARGE:
                await self._all_taken()
            with suppress(anyio.BrokenResourceError):  # nobody listens; the pipe must not fill up
                await self._inbox.send(frame)

    async def _all_taken(self) -> None:
        def waits() -> bool:
            now = self._inbox.statistics()
            return now.current_buffer_used > 0 and now.open_receive_streams > 0

        while waits():  # noqa: ASYNC110 - the stream tells nobody
            await anyio.sleep(_LOOK_AGAIN)

    def _drop(self, reason: str, line: Sequence[int]) -> None:
        self.dropped[reason] += 1
        _log.debug("dropped a line, %s: %.200r", reason, line)
