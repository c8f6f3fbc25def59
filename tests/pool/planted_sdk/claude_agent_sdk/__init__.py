"""A stand-in for the real package, for tests of what is around it: quick to start, and says what it was given.

A message that begins with `PLAY ` goes on with JSON: `{"pieces": N, "pause": SECONDS, "until": PATH, "tool": {...}}`. The answer to
any other one has its length, its digest, and how many messages the conversation has had.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ClaudeSDKError(Exception):
    pass


@dataclass
class ClaudeAgentOptions:
    cwd: str | None = None
    model: str | None = None
    resume: str | None = None
    session_id: str | None = None
    can_use_tool: Any = None
    include_partial_messages: bool = False
    max_buffer_size: int | None = None


@dataclass
class PermissionResultAllow:
    pass


@dataclass
class PermissionResultDeny:
    message: str = ""


class ToolPermissionContext:
    pass


PermissionResult = PermissionResultAllow | PermissionResultDeny


@dataclass
class TextBlock:
    text: str


@dataclass
class ToolUseBlock:
    id: str
    name: str
    input: dict[str, Any]


@dataclass
class ToolResultBlock:
    tool_use_id: str
    content: Any = None
    is_error: bool | None = None


@dataclass
class StreamEvent:
    event: dict[str, Any]
    parent_tool_use_id: str | None = None


@dataclass
class AssistantMessage:
    content: list[Any]
    message_id: str | None = None
    parent_tool_use_id: str | None = None


@dataclass
class UserMessage:
    content: Any


@dataclass
class ResultMessage:
    session_id: str
    is_error: bool = False
    result: str | None = None
    subtype: str = "success"


@dataclass
class ClaudeSDKClient:
    options: ClaudeAgentOptions
    message: str = ""
    _tools: list[Any] = field(default_factory=list)

    async def __aenter__(self) -> ClaudeSDKClient:
        print("what a library prints is no event")
        return self

    async def __aexit__(self, *error: object) -> None:
        return

    async def query(self, message: str) -> None:
        self.message = message

    def _record(self) -> Path:
        session = self.options.resume or self.options.session_id
        path = Path.home() / ".claude" / "projects" / "-here" / f"{session}.jsonl"
        if self.options.resume and not path.exists():
            raise ClaudeSDKError(f"No conversation found with session ID: {session}")
        if self.options.session_id and path.exists():
            raise ClaudeSDKError(f"Session ID {session} is already in use")
        return path

    async def receive_response(self) -> AsyncIterator[Any]:
        path = self._record()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(self.message) + "\n")
        seen = len(path.read_text().splitlines())
        play = json.loads(self.message[5:]) if self.message.startswith("PLAY ") else {}
        for key, value in play.get("environ", {}).items():
            assert os.environ[key] == value
        if "tool" in play:
            async for each in self._use(play["tool"]):
                yield each
        if play.get("fails"):
            yield ResultMessage(path.stem, is_error=True, result=play["fails"])
            return
        yield StreamEvent({"type": "message_start", "message": {"id": f"m{seen}"}})
        said = ""
        for piece in self._pieces(play, seen):
            await asyncio.sleep(play.get("pause", 0))
            said += piece
            delta = {"type": "text_delta", "text": piece}
            yield StreamEvent({"type": "content_block_delta", "delta": delta})
        yield AssistantMessage([TextBlock(said)], f"m{seen}")
        yield ResultMessage(path.stem)

    def _pieces(self, play: dict[str, Any], seen: int) -> Iterator[str]:
        for n in range(play.get("pieces", 0)):
            if Path(play.get("until", "/nowhere")).exists():
                break
            yield f"{n} "
        digest = hashlib.sha256(json.dumps(self.message).encode()).hexdigest()
        yield f"messages {seen}, length {len(self.message)}, digest {digest}"

    async def _use(self, given: dict[str, Any]) -> AsyncIterator[Any]:
        yield AssistantMessage([ToolUseBlock("t1", "Write", given)], "m0")
        answer = await self.options.can_use_tool("Write", given, ToolPermissionContext())
        if isinstance(answer, PermissionResultAllow):
            _write(given["file_path"])
        else:
            yield AssistantMessage([TextBlock(f"not allowed: {answer.message}")], "m0")
        yield UserMessage(
            [ToolResultBlock("t1", is_error=not isinstance(answer, PermissionResultAllow))]
        )


def _write(path: str) -> None:
    Path(path).write_text("written")
