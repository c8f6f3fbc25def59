"""A conversation on a terminal: answers go to standard output, everything about them to the other.

Text appears as it is written. The event that is stored in the end is the truth: of it, only what
has not been shown yet is added.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

Json = dict[str, Any]

_KEPT = "\n\t"
_LONGEST_ERROR = 1000  # characters: what to do about it comes last
_TROUBLES = {
    "model_overloaded_error": "the model is overloaded",
    "model_rate_limited_error": "the model's rate limit is reached",
    "model_request_failed_error": "the request to the model failed",
    "billing_error": "the model's account has a billing problem",
}
_OUTCOMES = {
    "retries_exhausted": "The turn was given up. Send a message to try again.",
    "budget_reached": "The session's budget is used up. Raise it to go on.",
    "refusal": "The model declined to answer.",
}


class Screen:
    """What a person sees of a session."""

    def __init__(self) -> None:
        self._notes = Console(stderr=True, highlight=False, soft_wrap=True)
        self._preview: str | None = None
        self._shown = ""
        self._mid_line = False
        self._own: set[str] = set()

    def mine(self, event_id: str) -> None:
        """This message was typed here; it need not be shown again."""
        self._own.add(event_id)

    def note(self, text: str, style: str = "dim") -> None:
        """A line about the conversation, on standard error."""
        self.end_line()
        self._notes.print(Text(clean(text), style=style))

    def end_line(self) -> None:
        """Make sure that what comes next begins a line."""
        if self._mid_line:
            self._write("\n")

    def show(self, event: Json) -> None:
        """Show an event, if it is one that a person wants to see."""
        handler = self._HANDLERS.get(event["type"])
        if handler is not None:
            handler(self, event)

    def _event_start(self, event: Json) -> None:
        started = event["event"]
        if started["type"] == "agent.message":
            self._drop_preview()
            self._preview, self._shown = started["id"], ""

    def _event_delta(self, event: Json) -> None:
        if event["event_id"] == self._preview:
            text = event["delta"].get("content", {}).get("text", "")
            self._shown += text
            self._write(clean(text))

    def _agent_message(self, event: Json) -> None:
        text = text_of(event)
        if event["id"] == self._preview and text.startswith(self._shown):
            text = text[len(self._shown) :]
        else:
            self._drop_preview()
        self._preview, self._shown = None, ""
        self._write(clean(text))
        self.end_line()

    def _drop_preview(self) -> None:
        # Its request died: the agent writes it anew, under another id.
        if self._preview is not None and self._shown:
            self.note("(cut off; the agent begins this answer again)")
        self._preview, self._shown = None, ""

    def _user_message(self, event: Json) -> None:
        if "withdrawn_at" in event:
            self.end_line()
            self.note(f"> {text_of(event)} (withdrawn: the agent never got it)")
        elif event["processed_at"] is not None and event["id"] not in self._own:
            self.end_line()
            self.note(f"> {text_of(event)}", style="bold")

    def _subagent(self, event: Json) -> None:
        self.note(
            f"  {event.get('from_agent_name') or 'subagent'}: {folded(clean(text_of(event)))}"
        )

    def _tool_use(self, event: Json) -> None:
        own = event.get("session_thread_id") is None
        self.note(f"{'·' if own else '  ·'} {call_of(event)}")

    def _tool_result(self, event: Json) -> None:
        if event.get("is_error"):
            self.note(f"  failed: {folded(text_of(event)) or 'no output'}", style="yellow")

    def _error(self, event: Json) -> None:
        error = event["error"]
        what = _TROUBLES.get(error["type"])
        then = {
            "retrying": "trying again",
            "exhausted": "gave up on this turn",
            "terminal": "the session cannot go on",
        }.get(error["retry_status"]["type"], "")
        said = folded(error["message"], _LONGEST_ERROR)
        self.note(f"{what}; {then} ({said})" if what else f"{said} ({then})", style="yellow")

    def _idle(self, event: Json) -> None:
        self._drop_preview()
        self.end_line()
        reason = event["stop_reason"]["type"]
        if reason in _OUTCOMES:
            self.note(_OUTCOMES[reason], style="yellow")

    def _terminated(self, event: Json) -> None:
        self.note("The session has ended; it stays readable.", style="yellow")

    def _deleted(self, event: Json) -> None:
        self.note("The session was deleted.", style="yellow")

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._mid_line = not text.endswith("\n")

    _HANDLERS: dict[str, Callable[[Screen, Json], None]] = {  # noqa: RUF012 - never changed
        "event_start": _event_start,
        "event_delta": _event_delta,
        "agent.message": _agent_message,
        "agent.thread_message_received": _subagent,
        "agent.tool_use": _tool_use,
        "agent.mcp_tool_use": _tool_use,
        "agent.custom_tool_use": _tool_use,
        "agent.tool_result": _tool_result,
        "agent.mcp_tool_result": _tool_result,
        "user.message": _user_message,
        "session.error": _error,
        "session.status_idle": _idle,
        "session.status_terminated": _terminated,
        "session.deleted": _deleted,
    }


def clean(text: str) -> str:
    """Without control characters: what an agent prints must not steer the terminal."""
    return "".join(c for c in text if c in _KEPT or (c >= " " and not "\x7f" <= c <= "\x9f"))


def text_of(event: Json) -> str:
    """The text of an event's content."""
    blocks = event.get("content") or []
    return "".join(b.get("text", "") for b in blocks if b.get("type") == "text")


def folded(text: str, width: int = 100) -> str:
    """The text on one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def call_of(event: Json) -> str:
    """A tool call on one line."""
    given = event.get("input") or {}
    # A call with one argument is clear without its name: `Bash ls -l`.
    shown = next(iter(given.values())) if len(given) == 1 else given or ""
    said = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    return clean(f"{event['name']} {folded(said)}".strip())


def whole_call(event: Json) -> str:
    """A tool call to decide on: nothing of it is cut, and nothing hides what the rest of it says."""
    given = json.dumps(event.get("input") or {}, ensure_ascii=False)
    said = f"{event['name']} {given}"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in said)
