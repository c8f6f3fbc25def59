"""The CLI's own record of the conversation, in the session's home.

It is a cache of what the log says, written by the CLI alone and a moment late. It is read where a
turn was cut off, to see how far the CLI got: through the sandbox, since nothing on this side may follow
a path that something inside has made. It is changed in two ways, while no CLI runs: what a CLI wrote after
its server was gone is cut off, and one line is added, the mark that makes a resumed CLI put a call that
waited for an answer up for permission once more, under its own id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final
from uuid import NAMESPACE_OID, uuid5

import anyio
import msgspec

from roost.errors import RoostError
from roost.harnesses.claude.calls import ToolCall
from roost.harnesses.claude.wire import ContentBlock, MessageFrame, convert, parse
from roost.harnesses.json_lines import Json, LineSplitter
from roost.ports.sandbox import Process, Sandbox

_MOST: Final = 32 * 1024 * 1024
_PATIENCE = 60.0  # seconds; a disk that takes longer is broken
_NOT_ASKED: Final = b"Tool permission request failed: AbortError: "
_NOT_CARRIED_OUT: Final = b"The tool call was interrupted before a result was received."
"""How the CLI takes down that we were gone while a call waited: for permission, or for us to carry it out."""
_EACH = 'for f in "${CLAUDE_CONFIG_DIR-$HOME/.claude}"/projects/*/"$1".jsonl; do [ -f "$f" ] && '
_READ = _EACH + 'exec tail -c "$2" -- "$f"; done; exit 3'
_APPEND = _EACH + 'exec cat >> "$f"; done; exit 3'
_CUT = _EACH + 'exec truncate -s "$2" -- "$f"; done; exit 3'
_AWAIT = f'for i in $3; do {_EACH} grep -qF -- "$2" "$f" && exit 0; done; sleep 0.05; done; exit 3'
_LOOKS: Final = 40  # for a message that the CLI has printed, which it writes down a moment later
_PUT_ASIDE = _EACH + 'mv -f -- "$f" "$f.lost"; done; exit 0'


class TranscriptLine(msgspec.Struct, frozen=True):
    """A line of the conversation: a message of one side, or something the CLI has put between.

    `nudge`: a word of ours, see `CliTranscript.nudge`.
    """

    uuid: str
    frame: Json
    said: MessageFrame | None = None
    nudge: bool = False

    @property
    def blocks(self) -> list[ContentBlock]:
        """What it is made of; nothing if it is plain text, or none of the messages."""
        return self.said.blocks if self.said is not None else []

    @property
    def by_agent(self) -> bool:
        """Whether it is a message of the agent's, not one to the agent."""
        return bool(self.frame["type"] == "assistant")

    @property
    def is_note(self) -> bool:
        """Whether it looks like a user's message, and is the CLI's own."""
        return bool(self.frame.get("isMeta") or self.frame.get("isCompactSummary"))

    @property
    def is_prompt(self) -> bool:
        """Whether it is what somebody has asked for, and neither a result nor the CLI's own note."""
        if self.frame["type"] != "user" or self.said is None or self.is_note or self.nudge:
            return False
        return not any(block.type == "tool_result" for block in self.said.blocks)


class CliTranscript:
    """The end of a transcript, oldest line first; `prompt` is the newest one in it.

    A torn line is left out, as the CLI does.
    """

    def __init__(self, lines: Sequence[TranscriptLine], prompt: TranscriptLine) -> None:
        self.lines = lines
        self.prompt = prompt

    def has(self, uuid: str) -> bool:
        """Whether the CLI has taken down a prompt of that name."""
        return any(line.uuid == uuid and line.is_prompt for line in self.lines)

    @property
    def nudge(self) -> str | None:
        """What to call a word that makes the CLI go on, where it would not by itself.

        It does not where a note of its own comes last: of a resumed CLI that was killed before the model
        had answered, say. It takes that for the end of a turn.
        """
        last = next(line for line in reversed(self.lines) if line.said is not None)
        return _nudge(last.uuid) if last.is_note else None

    def mark(self, tool_use_id: str, call: ToolCall) -> bytes:
        """The line that puts the call up for permission again."""
        last = self.lines[-1]
        deferred = {
            "type": "hook_deferred_tool",
            "toolUseID": tool_use_id,
            "toolName": call.name,
            "toolInput": call.input,
            "hookName": f"PreToolUse:{call.name}",
            "hookEvent": "PreToolUse",
            "permissionMode": "default",
        }
        copied = {name: last.frame.get(name) for name in ("sessionId", "cwd", "version")}
        line = {
            "type": "attachment",
            "attachment": deferred,
            "uuid": str(uuid5(NAMESPACE_OID, f"{last.uuid} {tool_use_id}")),
            "parentUuid": last.uuid,
            "isSidechain": False,
            "userType": "external",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            **copied,
        }
        return b"\n" + msgspec.json.encode(line) + b"\n"  # the last line may be torn


class TranscriptFile:
    """Where the transcript of one conversation is kept; `home` are variables that say where.

    `ours` tells by the CLI's name for a tool whether it is one that this side carries out.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        conversation: str,
        home: Mapping[str, str],
        ours: Callable[[str], bool],
    ) -> None:
        self._sandbox = sandbox
        self._ours = ours
        self._conversation = conversation
        self._home = home

    async def read(self) -> CliTranscript | None:
        """The transcript, if there is one and it says anything. :raises RoostError:"""
        _, data = await self._run(_READ, str(_MOST))
        end = _end_of(data, self._ours)
        # By how much: of one that is too long, only the end was read.
        if end < len(data) and (await self._run(_CUT, f"-{len(data) - end}"))[0] == 0:
            data = data[:end]
        lines = list(_lines(data))
        prompts = [line for line in lines if line.is_prompt]
        return CliTranscript(lines, prompts[-1]) if prompts else None

    async def until_it_has(self, uuid: str) -> None:
        """Wait until the CLI has written this message down, for some seconds if it does not.

        A sandbox that fails meanwhile is no error here: then there is nothing to wait for.
        """
        with suppress(RoostError):
            await self._run(_AWAIT, uuid, " ".join(map(str, range(_LOOKS))))

    async def append(self, data: bytes) -> None:
        """Add a line to it. :raises RoostError: it could not be written"""
        code, _ = await self._run(_APPEND, data=data)
        if code != 0:
            raise RoostError("the agent's transcript could not be written")

    async def put_aside(self) -> None:
        """Rename one that the CLI cannot go on with, so that it may begin a new one."""
        await self._run(_PUT_ASIDE)

    async def _run(self, script: str, *arguments: str, data: bytes = b"") -> tuple[int, bytes]:
        try:
            with anyio.fail_after(_PATIENCE):
                argv = ["sh", "-c", script, "sh", self._conversation, *arguments]
                process = await self._sandbox.spawn(argv, environ=self._home)
                if data:
                    await process.send(data)
                await process.close_input()
                output = await _all_of(process)
                return await process.wait(), output
        except TimeoutError:
            raise RoostError("the agent's transcript could not be reached") from None


async def _all_of(process: Process) -> bytes:
    output = bytearray()
    while data := await process.receive():
        output += data[: _MOST - len(output)]
    return bytes(output)


def _nudge(uuid: str) -> str:
    return str(uuid5(NAMESPACE_OID, f"after {uuid}"))


def _lines(data: bytes) -> Iterator[TranscriptLine]:
    nudges = set()
    for raw in LineSplitter().feed(data):
        frame = parse(raw)
        if frame is None or frame.get("isSidechain") or not isinstance(frame.get("uuid"), str):
            continue
        nudges.add(_nudge(frame["uuid"]))
        if frame["type"] in ("user", "assistant"):
            yield TranscriptLine(
                frame["uuid"], frame, convert(frame, MessageFrame), frame["uuid"] in nudges
            )
        elif frame["type"] in ("attachment", "system"):
            yield TranscriptLine(frame["uuid"], frame)


def _end_of(data: bytes, ours: Callable[[str], bool]) -> int:
    """Where the transcript ends for us. When a server is killed, its agent may live on for a moment, and
    take that for the end of the call that waits: what it has written from there on never was.
    """
    if _NOT_ASKED not in data and _NOT_CARRIED_OUT not in data:
        return len(data)
    at, end = 0, None
    names: dict[str, str] = {}
    for raw in data.split(b"\n"):
        line = next(_lines(raw + b"\n"), None)
        if line is not None and line.by_agent:
            names |= {block.id: block.name for block in line.blocks if block.type == "tool_use"}
        elif line is not None and line.is_prompt:
            end = None  # the conversation has gone on with it
        elif line is not None and end is None and _is_answer_of_nobody(line, names, ours):
            end = at
        at += len(raw) + 1
    return len(data) if end is None else end


def _is_answer_of_nobody(
    line: TranscriptLine, names: Mapping[str, str], ours: Callable[[str], bool]
) -> bool:
    failed = [block for block in line.blocks if block.type == "tool_result" and block.is_error]
    for block in failed:
        said = str(block.content).encode()
        if said.startswith(_NOT_ASKED):
            return True
        # It says the same when an MCP server goes away, and that was so.
        if said.startswith(_NOT_CARRIED_OUT) and ours(names.get(block.tool_use_id, "")):
            return True
    return False
