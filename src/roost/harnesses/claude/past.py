"""What the log has of a session, as far as somebody who goes on with it must know."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Sequence

from roost.domain.events import Entry
from roost.harnesses.claude.calls import ANSWERS
from roost.harnesses.claude.content import as_text
from roost.harnesses.claude.shapes import Json

HEARD = {"user.message", "system.message"}
CALLS = {"agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"}
_RESULTS = {
    "agent.tool_result": "tool_use_id",
    "agent.mcp_tool_result": "mcp_tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
}
_TOLD = {"agent.message", *HEARD, *CALLS, *_RESULTS}
_LONGEST_NOTE = 60_000
_LONGEST_PART = 4_000


class LoggedPast:
    """A fold of the log. `told` has what was said and done, in order.

    `open_span` is a model request that has not ended, and `answered` how many were answered since the
    newest message to the agent. Messages that are `unheard` do not count as such: the agent has no
    record of them, so its record goes on from the one before.
    """

    def __init__(self, unheard: Collection[str] = ()) -> None:
        self.ids: set[str] = set()
        self.told: list[Entry] = []
        self.answers: list[Entry] = []
        self.open_span: str | None = None
        self.answered = 0
        self._unheard = unheard
        self._calls: dict[str, Entry] = {}
        self._results: dict[str, Entry] = {}

    @classmethod
    async def read(cls, history: AsyncIterator[Entry], unheard: Collection[str] = ()) -> LoggedPast:
        """The whole log, folded."""
        past = cls(unheard)
        async for entry in history:
            # One that was queued stands again where it was taken up; a withdrawn one never was.
            if not (entry.queued or entry.withdrawn):
                past.take(entry)
        return past

    def take(self, entry: Entry) -> None:
        """Fold in one entry."""
        self.ids.add(entry.id)
        if entry.type in _TOLD:
            self.told.append(entry)
        if entry.type in CALLS:
            self._calls[entry.id] = entry
        if entry.type in ANSWERS:
            self.answers.append(entry)
        if entry.type in _RESULTS:
            self._results[entry.fields[_RESULTS[entry.type]]] = entry
        self._count_requests(entry)

    def recent(self) -> list[Entry]:
        """What the agent did since the newest message to it."""
        last = max((n for n, entry in enumerate(self.told) if self._is_heard(entry)), default=-1)
        return [entry for entry in self.told[last + 1 :] if entry.type.startswith("agent.")]

    def since(self, messages: Collection[str]) -> list[Entry]:
        """What the agent did since the first of these messages to it."""
        first = next((n for n, entry in enumerate(self.told) if entry.id in messages), None)
        later = [] if first is None else self.told[first:]
        return [entry for entry in later if entry.type.startswith("agent.")]

    def after(self, known: Collection[str]) -> list[Entry]:
        """All that was said and done after the last of these events."""
        last = max((n for n, entry in enumerate(self.told) if entry.id in known), default=-1)
        return self.told[last + 1 :]

    def result_of(self, call: Entry) -> Entry | None:
        """What a call has come to, if it has."""
        return self._results.get(call.id)

    def has_result(self, call_id: str) -> bool:
        """Whether a call has come to anything."""
        return call_id in self._results

    def retold(self, entries: Sequence[Entry], limit: int = _LONGEST_NOTE) -> str:
        """What was said and done, in words; the newest part, if it is too much."""
        parts: list[str] = []
        left = limit
        for entry in reversed(entries):
            part = self._in_words(entry)
            left -= len(part)
            if left < 0:
                parts.append("(what came before is left out)")
                break
            parts.append(part)
        return "\n".join(reversed(parts))

    def _is_heard(self, entry: Entry) -> bool:
        return entry.type in HEARD and entry.id not in self._unheard

    def _count_requests(self, entry: Entry) -> None:
        if self._is_heard(entry):
            self.answered = 0
        elif entry.type == "span.model_request_start":
            self.open_span = entry.id
        elif entry.type == "span.model_request_end":
            self.open_span = None
            self.answered += not entry.fields.get("is_error")

    def _in_words(self, entry: Entry) -> str:
        fields = entry.fields
        if entry.type in CALLS:
            return f"You called {_call(fields)}"
        who = {"user.message": "The user said", "agent.message": "You said"}.get(entry.type)
        if entry.type in _RESULTS:
            call = self._calls.get(fields[_RESULTS[entry.type]])
            outcome = "failed with" if fields.get("is_error") else "returned"
            who = f"Your call {_call(call.fields) if call else ''} {outcome}"
        return f"{who or 'The system said'}: {_short(as_text(fields.get('content')))}"


def _call(fields: Json) -> str:
    return f"{fields['name']} {_short(json.dumps(fields['input'], ensure_ascii=False))}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_PART else f"{text[:_LONGEST_PART]} (cut)"
