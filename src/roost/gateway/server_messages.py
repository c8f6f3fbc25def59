"""The messages that clients are sent: from entries and previews to frames.

An entry is one `sdk_message`, which comes last and closes it; before it comes what else follows from
it. All of it is the same for everybody who follows, so it is made once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from roost.core.read.fanout import AgentStatus
from roost.core.read.outcome import Outcome
from roost.core.snapshots.restore import RestoreProgress
from roost.core.workspaces.local import SyncPhase
from roost.domain.events import Entry, Preview
from roost.domain.task import TOOL
from roost.errors import RateLimited, RoostError
from roost.gateway.connection import text
from roost.ports.sandbox import Stats

Json = dict[str, Any]
QUESTION: Final = "AskUserQuestion"
ASKING: Final = ("agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use")
"""The events that may wait for an answer of the user."""

_CONNECTION: Final[dict[AgentStatus, str]] = {
    "waking": "connecting",
    "running": "connected",
    "asleep": "disconnected",
}
_encode: Final = msgspec.json.Encoder().encode


class EntryFrames(msgspec.Struct, frozen=True):
    """An entry in frames. `request` asks the user, and is shown only while it waits for an answer.

    `for_server`: it asks for something that the server itself may do.
    """

    request: bytes
    rest: bytes
    for_server: bool = False


class EntryEncoder:
    """Encodes entries, each once for all who follow."""

    def __init__(self) -> None:
        self._last: tuple[Entry, EntryFrames] | None = None

    def of(self, entry: Entry, outcome: Outcome | None) -> EntryFrames:
        """The frames of an entry; those of the newest one are kept for the next follower."""
        if self._last is not None and self._last[0] is entry:
            return self._last[1]
        messages = _MESSAGES_OF.get(entry.type, _nothing)(entry)
        done = [] if outcome is None else [_done(entry, outcome)]
        whole = b'{"type":"sdk_message","seq":%d,"message":%b}' % (entry.seq, entry.json())
        request = b"".join(map(frame, messages)) if entry.type in ASKING else b""
        others = b"" if entry.type in ASKING else b"".join(map(frame, messages))
        rest = others + b"".join(map(frame, done)) + text(whole)
        frames = EntryFrames(request, rest, bool(request) and is_server_tool(entry))
        self._last = entry, frames
        return frames


def frame(message: Json) -> bytes:
    """A message as a WebSocket frame."""
    return text(_encode(message))


def request_again(entry: Entry) -> bytes:
    """The request that an entry makes of the user, for a client that has come later."""
    return b"".join(map(frame, _MESSAGES_OF[entry.type](entry)))


def is_server_tool(entry: Entry) -> bool:
    """Whether it is a tool call that the server carries out, if the session has a task."""
    return entry.type == "agent.custom_tool_use" and entry.fields["name"] == TOOL["name"]


def stream_text(preview: Preview) -> bytes:
    """The `stream_start` and `chunk` messages, for text that is being written."""
    if preview.text:
        return frame({"type": "chunk", "messageId": preview.event_id, "content": preview.text})
    kind = preview.type.removeprefix("agent.")
    return frame({"type": "stream_start", "messageId": preview.event_id, "kind": kind})


def stream_end(message_id: str, seq: int | None) -> bytes:
    """The `stream_end` message: the text is complete and has this seq, or it is void."""
    end: Json = {"type": "stream_end", "messageId": message_id}
    return frame(end | ({"aborted": True} if seq is None else {"seq": seq}))


def connection_status(status: str) -> bytes:
    """The `connection_status` message: whether there is an agent at the other end."""
    return frame({"type": "connection_status", "status": status, "sandboxStatus": status})


def session_status(phase: SyncPhase, progress: RestoreProgress | None) -> bytes:
    """The `session_status` message: what happens to the session's files."""
    message: Json = {"type": "session_status", "status": phase}
    if phase == "restoring" and progress is not None:
        message["progress"] = {
            "files": progress.files,
            "ofFiles": progress.of_files,
            "bytes": progress.bytes,
            "ofBytes": progress.of_bytes,
        }
    return frame(message)


def agent_status(before: AgentStatus | None, now: AgentStatus, cause: Entry | None) -> bytes:
    """The `agent_status` message, and what it means for the connection to the agent."""
    message: Json = {"type": "agent_status", "status": now}
    if cause is not None and cause.type == "session.status_idle":
        message["stopReason"] = (cause.fields.get("stop_reason") or {}).get("type")
    changed = before is not None and now in _CONNECTION and (now != "running" or before == "waking")
    return (connection_status(_CONNECTION[now]) if changed else b"") + frame(message)


def error_message(error: RoostError, message_id: str | None = None) -> bytes:
    """The `error` message: why something was refused, and which message of the client."""
    message: Json = {"type": "error", "message": error.message, "code": error.code}
    if error.hint:
        message["hint"] = error.hint
    if message_id is not None:
        message["id"] = message_id
    if isinstance(error, RateLimited):
        message["retryAfter"] = error.retry_after
    return frame(message)


def memory_stats(stats: Stats) -> bytes:
    """The `memory_stats` message: what the sandbox uses."""
    used = stats.memory_bytes
    return frame(
        {
            "type": "memory_stats",
            "rss": None if used is None else round(used / 2**20, 1),
            "memoryBytes": used,
            "processes": stats.processes,
            "cpuSeconds": stats.cpu_seconds,
        }
    )


def _done(entry: Entry, outcome: Outcome) -> Json:
    used = outcome.usage
    return {
        "type": "done",
        "seq": entry.seq,
        "messageId": outcome.message_id,
        "metadata": {
            "stopReason": outcome.stop_reason,
            "tokensUsed": used.input_tokens + used.output_tokens,
            "inputTokens": used.input_tokens,
            "outputTokens": used.output_tokens,
        },
    }


def _nothing(entry: Entry) -> list[Json]:
    return []


def _permission(entry: Entry) -> list[Json]:
    fields = entry.fields
    if fields.get("evaluated_permission") != "ask":
        return []
    request = {
        "type": "tool_permission_request",
        "seq": entry.seq,
        "requestId": entry.id,
        "toolName": fields["name"],
        "toolInput": fields["input"],
    }
    server = fields.get("mcp_server_name")
    return [request if server is None else request | {"serverName": server}]


def _question(entry: Entry) -> list[Json]:
    fields = entry.fields
    asked = fields["input"].get("questions") if fields["name"] == QUESTION else None
    return [
        {
            "type": "ask_user_question",
            "seq": entry.seq,
            "requestId": entry.id,
            "questions": asked if isinstance(asked, list) else [],
            "toolName": fields["name"],
            "toolInput": fields["input"],
        }
    ]


def _error(entry: Entry) -> list[Json]:
    error = entry.fields["error"]
    message = {
        "type": "error",
        "seq": entry.seq,
        "message": error.get("message", ""),
        "code": error.get("code") or error["type"],
    }
    retry = error.get("retry_status")
    return [message if retry is None else message | {"retry": retry["type"]}]


def _task(entry: Entry) -> list[Json]:
    task = entry.fields.get("task")
    return [] if task is None else [{"type": "task_updated", "seq": entry.seq, **task}]


def _withdrawn(entry: Entry) -> list[Json]:
    fields = entry.fields
    ids = {"eventIds": fields["event_ids"], "interruptId": fields["interrupt_id"]}
    return [{"type": "withdrawn", "seq": entry.seq, **ids}]


_MESSAGES_OF: Final[dict[str, Callable[[Entry], list[Json]]]] = {
    "agent.tool_use": _permission,
    "agent.mcp_tool_use": _permission,
    "agent.custom_tool_use": _question,
    "session.error": _error,
    "user.custom_tool_result": _task,
    "roost.withdrawn": _withdrawn,
}
