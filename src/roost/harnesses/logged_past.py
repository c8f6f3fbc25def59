"""What the log has of a conversation: the words of its calls and answers, and an account of it for an agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from roost.domain.events import Entry
from roost.harnesses.content import as_text
from roost.harnesses.json_lines import Json
from roost.harnesses.stable_ids import thread_of

ANSWERS: Mapping[str, str] = {
    "user.tool_confirmation": "tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
    "user.tool_result": "tool_use_id",
}
"""The inputs that answer a call, and the field that names the call's event."""
UNKNOWN = (
    "This call was cut off before its result arrived; its outcome is unknown. "
    "Check whether it took effect before repeating it."
)
MADE_BEFORE = "You made this call already, just before the session was restarted. "
HEARD = {"user.message", "system.message"}
CALLS = {"agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"}
RESULTS = {
    "agent.tool_result": "tool_use_id",
    "agent.mcp_tool_result": "mcp_tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
    "user.tool_result": "tool_use_id",
}
_TOLD = {"agent.message", *HEARD, *CALLS, *RESULTS}
_OF_THREADS = {  # and the field that names the thread, of what a subagent said and did
    "agent.thread_message_received": "from_session_thread_id",
    **dict.fromkeys(CALLS, "session_thread_id"),
}
_LONGEST_ACCOUNT = 60_000  # characters of what the agent is told of the log
_LONGEST_PART = 4_000


class LoggedPast:
    """What the log has of a session, as far as a resumed agent has to know it.

    `told` has what was said and done by the agent itself and to it, in order.

    `open_span` is a model request that has not ended, and `answered` how many were answered since the
    newest message to the agent; `failures` are the words of what went wrong, and `failed_last` the last of them, if the
    model was not asked again after it: also if a message has come since, which the agent may not have heard. Messages
    that are `unheard` do not count as such: the agent has no record of them, so its record goes on from the one before.
    """

    def __init__(self, unheard: Collection[str] = ()) -> None:
        self.ids: set[str] = set()
        self.told: list[Entry] = []
        self._of_subagents: list[Entry] = []
        self.answers: list[Entry] = []
        self.open_span: str | None = None
        self.answered = 0
        self.failures: list[str] = []
        self.failed_last: str | None = None
        self._unheard = unheard
        self._calls: dict[str, Entry] = {}
        self._results: dict[str, Entry] = {}

    @classmethod
    async def read(cls, history: AsyncIterator[Entry], unheard: Collection[str] = ()) -> LoggedPast:
        """Read the whole log."""
        past = cls(unheard)
        async for entry in history:
            # One that was queued stands again where it was taken up; a withdrawn one never was.
            if not (entry.queued or entry.withdrawn):
                past.take(entry)
        return past

    def take(self, entry: Entry) -> None:
        """Take one entry into account."""
        self.ids.add(entry.id)
        if entry.type in CALLS:
            self._calls[entry.id] = entry
        if entry.type in ANSWERS:
            self.answers.append(entry)
        if entry.type in RESULTS:
            self._results[entry.fields[RESULTS[entry.type]]] = entry
        if self._thread(entry) is not None:
            self._of_subagents.append(entry)
        elif entry.type in _TOLD:
            self.told.append(entry)
        if self._is_heard(entry):
            self._of_subagents.clear()
        self._count_requests(entry)

    def by_subagents(self, over: Collection[str]) -> list[Entry]:
        """What subagents did that were cut off, since the newest message to the agent. `over` are calls that have
        come to something, as the log does not know yet.
        """
        calls = (call for call in self._calls.values() if call.id not in over)
        gone = {thread_of(call.id) for call in calls if self._is_cut_off(call)}
        return [entry for entry in self._of_subagents if self._thread(entry) in gone]

    def of_thread(self, thread: str) -> list[Entry]:
        """What the subagent of this thread did, since the newest message to the agent."""
        return [entry for entry in self._of_subagents if self._thread(entry) == thread]

    def _thread(self, entry: Entry) -> str | None:
        """The thread of the subagent that has said or done this; None if it was the agent itself."""
        if entry.type in RESULTS:
            call = self._calls.get(entry.fields[RESULTS[entry.type]])
            return None if call is None else call.fields.get("session_thread_id")
        field = _OF_THREADS.get(entry.type)
        return None if field is None else entry.fields.get(field)

    def _is_cut_off(self, call: Entry) -> bool:
        """Whether nobody knows what a call has come to, also if the log says just that."""
        result = self._results.get(call.id)
        return result is None or as_text(result.fields.get("content")) == UNKNOWN

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

    def in_words(self, entries: Sequence[Entry], limit: int = _LONGEST_ACCOUNT) -> str:
        """What was said and done, in words; the newest part, if it is too much."""
        parts: list[str] = []
        left = limit
        for entry in reversed(entries):
            part = self._entry_in_words(entry)
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
        elif entry.type == "session.error":
            self.failed_last = str((entry.fields.get("error") or {}).get("message", ""))
            self.failures.append(self.failed_last)
        elif entry.type == "span.model_request_start":
            self.open_span, self.failed_last = entry.id, None
        elif entry.type == "span.model_request_end":
            self.open_span = None
            self.answered += not entry.fields.get("is_error")

    def _entry_in_words(self, entry: Entry) -> str:
        fields, subagent = entry.fields, self._thread(entry) is not None
        if entry.type in CALLS:
            return f"{'A subagent' if subagent else 'You'} called {_call(fields)}"
        who = _SPEAKERS.get(entry.type)
        if entry.type in RESULTS:
            call = self._calls.get(fields[RESULTS[entry.type]])
            outcome = "failed with" if fields.get("is_error") else "returned"
            whose = "Its" if subagent else "Your"
            who = f"{whose} call {_call(call.fields) if call else ''} {outcome}"
        return f"{who or 'The system said'}: {_short(as_text(fields.get('content')))}"


_SPEAKERS = {
    "user.message": "The user said",
    "agent.message": "You said",
    "agent.thread_message_received": "A subagent said",
}


def _call(fields: Json) -> str:
    return f"{fields['name']} {_short(json.dumps(fields['input'], ensure_ascii=False))}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_PART else f"{text[:_LONGEST_PART]} (cut)"


def messages_in(inputs: Sequence[Entry]) -> list[Entry]:
    """Those that say something, and do not answer a call."""
    return [entry for entry in inputs if entry.type not in ANSWERS]


def is_plain(inputs: Sequence[Entry]) -> bool:
    """Whether none of them answers a call."""
    return not any(entry.type in ANSWERS for entry in inputs)
