"""What an agent in a pool tells: one JSON object per line on stdout, and nothing else there."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Any, TextIO


class EventType(StrEnum):
    """The kinds of events."""

    PROGRESS = "progress"
    DEVICE_CODE = "device_code"
    TEXT = "text"
    TOOL_START = "tool_start"
    TOOL_END = "tool_end"
    CONFIRM_REQUEST = "confirm_request"
    DONE = "done"
    ERROR = "error"


_told: list[TextIO] = []


def tell_to(stream: TextIO) -> None:
    """Write events to this stream from now on. A process of its own keeps it apart from what others print."""
    _told[:] = [stream]


def emit_event(event_type: EventType | str, **kwargs: Any) -> None:
    """Write an event. It is ASCII, so that half a character of a text gets through as well.

    :raises ValueError: there is no such type
    """
    event = {"type": EventType(event_type).value, **kwargs}
    stream = _told[0] if _told else sys.stdout
    stream.write(json.dumps(event, default=str) + "\n")
    stream.flush()


def emit_progress(step: str, message: str = "", **kwargs: Any) -> None:
    """Tell how far it is; `model` and `session_id` may be among the rest."""
    emit_event(EventType.PROGRESS, step=step, message=message, **kwargs)


def emit_device_code(code: str, url: str, message: str = "", **kwargs: Any) -> None:
    """Somebody has to sign in: with this code, at this address."""
    emit_event(EventType.DEVICE_CODE, code=code, url=url, message=message, **kwargs)


def emit_text(content: str) -> None:
    """Tell a piece of the answer."""
    emit_event(EventType.TEXT, content=content)


def emit_tool_start(name: str, input: dict[str, Any] | None = None, **kwargs: Any) -> None:
    """A tool is begun."""
    emit_event(EventType.TOOL_START, name=name, input=input or {}, **kwargs)


def emit_tool_end(name: str, success: bool = True, **kwargs: Any) -> None:
    """A tool has ended."""
    emit_event(EventType.TOOL_END, name=name, success=success, **kwargs)


def emit_confirm_request(
    request_id: str, tool_name: str, description: str, details: dict[str, Any] | None = None
) -> None:
    """Something would be changed: it waits for somebody who says yes or no."""
    emit_event(
        EventType.CONFIRM_REQUEST,
        request_id=request_id,
        tool_name=tool_name,
        description=description,
        details=details or {},
    )


def emit_done(session_id: str, turns: int = 0, **kwargs: Any) -> None:
    """It is over, and worked."""
    emit_event(EventType.DONE, session_id=session_id, turns=turns, **kwargs)


def emit_error(error: str, **kwargs: Any) -> None:
    """It is over, and did not."""
    emit_event(EventType.ERROR, error=error, **kwargs)
