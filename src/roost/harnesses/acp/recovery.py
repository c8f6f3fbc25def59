"""What an agent is told first by a new process, so that a conversation goes on where the log says it stands.

The log is the truth; the agent's own record may lack some of it, or have more. What an agent replays of a session
when it loads it is compared with the log:

* what only the record has, of the turn that was cut off, is logged now;
* what only the log has is told to the agent as a note;
* if the record has nothing of what was said before, it is none: one agent is known to overwrite its record when a
  session is loaded within the minute in which it was written. Then a new session of the agent's is begun, and told
  what the log has.

A call that has no result may have run, or not. One that waited for an answer has not: if it is allowed now, the
agent is told to make it again, and nobody is asked twice. Of every other one the outcome is unknown: that is
logged as its result and told to the agent, and if it makes the same call again, that is refused once. So is a call
that has a result in the log, if the agent's record lacks that: the reason says what it has come to.

A prompt that has failed is not one that was cut off: all of it was heard, and the log has its error. Some agents
write that error into their record as if they had said it; it is not logged as a message.

Prompts of this protocol have no names, so whether the agent has heard a message is looked up in its record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from roost.domain.events import Entry
from roost.domain.usage import Usage
from roost.harnesses.acp.calls import NOT_RUN, AcpCall, AcpCalls, content_of, cut_off, is_over
from roost.harnesses.acp.process import STOPPED
from roost.harnesses.acp.updates import Replay, ReplayedItem
from roost.harnesses.acp.wire import Json
from roost.harnesses.content import as_text, reminder, text_block
from roost.harnesses.logged_past import (
    ANSWERS,
    CALLS,
    HEARD,
    MADE_BEFORE,
    RESULTS,
    UNKNOWN,
    LoggedPast,
    messages_in,
)
from roost.harnesses.stable_ids import StableIds
from roost.harnesses.turn_ends import span_end
from roost.ports.drafts import new_draft
from roost.ports.harness import Emit

_GO_ON: Final = "Continue from where you left off."
_LOST: Final = (
    "This session was restarted, and your own record of it was lost. "
    "What follows is taken from the session's log, oldest first.\n\n"
)
_FORGOTTEN: Final = (
    "The session was restarted. What follows is taken from its log and is not in your own record, oldest first. "
    "Files may be older than that: look before you rely on them.\n\n"
)
_BEGUN: Final = (
    "The session was restarted while you worked on the message below. What follows is what you had said and done for "
    "it, taken from the session's log, oldest first. Do not do it again.\n\n"
)
_CUT_OFF: Final = (
    "The session was restarted while these calls of yours ran. Their outcome is unknown: check whether they took "
    "effect before you repeat one.\n\n"
)
_ALLOWED: Final = (
    "The session was restarted while these calls of yours waited for permission; they were not run. They are "
    "allowed now: make them again, exactly as they were.\n\n"
)
_NOT_ALLOWED: Final = "These calls of yours were not run:\n\n"
_NOTE: Final = "<system-reminder>"


class AcpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What comes first in a turn: `emits`, then a prompt with `notes`, which begin it, and the messages.

    Without `messages` the agent has heard them, and is told to go on. `over`: there is nothing to tell it.
    """

    messages: Sequence[Entry]
    notes: Sequence[str] = ()
    emits: Sequence[Emit] = ()
    over: bool = False

    def blocks(self, said: Sequence[Json]) -> list[Json]:
        """The blocks of the prompt; `said` are those of the messages."""
        last = said if self.messages else [text_block(_GO_ON)]
        return [*map(text_block, map(reminder, self.notes)), *last]


class AcpRecovery:
    """Works out the plan. `calls` is told what is known of calls that have no result."""

    def __init__(
        self,
        ids: StableIds,
        calls: AcpCalls,
        past: LoggedPast,
        inputs: Sequence[Entry],
        *,
        again: bool,
    ) -> None:
        self._ids = ids
        self._calls = calls
        self._past = past
        self._again = again
        self._messages = messages_in(inputs)
        self._given = {entry.id for entry in self._messages}
        self._now = {e.fields[ANSWERS[e.type]] for e in inputs if e.type in ANSWERS}
        answers = [*past.answers, *(entry for entry in inputs if entry.type in ANSWERS)]
        self._answers = {e.fields[ANSWERS[e.type]]: e for e in answers}

    def is_lost(self, replay: Replay) -> bool:
        """Whether the agent's record has nothing of what was said to it before."""
        before = [e for e in self._past.told if e.type in HEARD and e.id not in self._given]
        found = _Matches(self._ids, self._past, replay)
        return any(map(_words, before)) and not any(entry.id in found.known for entry in before)

    def anew(self) -> AcpPlan:
        """A new session of the agent's, told what the log has of the old one."""
        emits, notes = self._settle(None)
        if self._is_answered(emits):
            return AcpPlan(messages=[], over=True)
        begun = {entry.id for entry in self._past.since(self._given)}
        told = [e for e in self._past.told if e.id not in self._given and e.id not in begun]
        notes = [*self._about(self._past.since(self._given), _BEGUN), *notes]
        if any(entry.type in HEARD for entry in told):
            # The API's word for a context that was replaced by an account of it.
            emits.insert(0, Emit([new_draft("agent.thread_context_compacted")]))
            notes = [*self._about(told, _LOST), *notes]
        return AcpPlan(messages=self._messages, notes=notes, emits=[*self._span(), *emits])

    def after(self, replay: Replay) -> AcpPlan:
        """The agent's own session, from where its record ends."""
        found = _Matches(self._ids, self._past, replay)
        heard = bool(self._given) and self._given <= found.known
        unlogged = found.unlogged(self._given if heard else set()) if self._again else []
        emits = [
            emit
            for item in unlogged
            if not self._is_failure(item)
            for emit in self._taken_over(item)
        ]
        settled, notes = self._settle(found)
        emits += [*self._span(), *settled]
        if self._is_answered(emits):
            return AcpPlan(messages=[], over=True)
        messages = [] if heard and self._again else self._messages
        missing = self._missing(found.known)
        begun = self._past.since(self._given) if messages else []
        before = [entry for entry in missing if entry not in begun]
        now = [entry for entry in missing if entry in begun]
        notes = [*self._about(before, _FORGOTTEN), *self._about(now, _BEGUN), *notes]
        return AcpPlan(messages=messages, notes=notes, emits=emits)

    def _about(self, entries: Sequence[Entry], head: str) -> list[str]:
        return [head + self._past.in_words(entries)] if entries else []

    def _missing(self, known: Collection[str]) -> list[Entry]:
        """What only the log has: all that came after what the record has last, and in the turn that goes on now also
        results in between.
        """
        missing = {entry.id for entry in self._past.after(known)}
        missing |= {entry.id for entry in self._done() if entry.type in RESULTS}
        missing -= self._given.union(known)
        return [entry for entry in self._past.told if entry.id in missing]

    def _is_answered(self, emits: Sequence[Emit]) -> bool:
        """Whether the turn was at its end: there is nothing to add to the log, and it has a whole answer of the model's
        that calls nothing. What the record lacks of it, the agent is told in its next turn.
        """
        done = self._done()
        said = self._again and not emits and bool(done) and done[-1].type == "agent.message"
        return said and self._past.open_span is None and self._past.answered > 0

    def _done(self) -> list[Entry]:
        """What the agent did in the turn that goes on now."""
        return self._past.since(self._given) if self._given else self._past.recent()

    def _span(self) -> list[Emit]:
        span = self._past.open_span
        return [] if span is None else [Emit([span_end(span, Usage(), error=True)])]

    def _is_failure(self, item: ReplayedItem) -> bool:
        """Whether it is what the agent has said about a prompt that has failed. If nothing was asked since, there is
        nothing else that the log could lack: its model is behind the server.
        """
        if item.kind != "text":
            return False
        failures = [each for each in self._past.failures if each.startswith(STOPPED)]
        told = any(_plain(each).endswith(_plain(item.text)) for each in failures)
        return told or self._past.failed_last in failures

    def _taken_over(self, item: ReplayedItem) -> list[Emit]:
        """What the record has and the log lacks."""
        if item.kind == "text":
            return [Emit([new_draft("agent.message", content=[text_block(item.text)])])]
        assert item.call is not None
        call = self._calls.note(item.call)
        return [*self._calls.log(call, asked=False), self._outcome(call, item)]

    def _outcome(self, call: AcpCall, item: ReplayedItem) -> Emit:
        assert item.call is not None
        content, failed = content_of(item.call), item.call.status == "failed"
        known = is_over(item.call) and not (failed and cut_off(str(content)))
        if known:
            return call.returned(content, is_error=failed, unblocks=call.waits)
        self._calls.doubt(call, UNKNOWN)
        return call.returned(UNKNOWN, is_error=True, unblocks=call.waits)

    def _settle(self, found: _Matches | None) -> tuple[list[Emit], list[str]]:
        """What becomes of the calls that have no result in the log, and what the agent is told of them. One that has a
        result is not to be made again because the agent's record lacks that.
        """
        emits: list[Emit] = []
        unknown, allowed, refused = [], [], []
        for entry in self._done():
            if entry.type not in CALLS:
                continue
            call, item = self._calls.past(entry), found.call(entry) if found else None
            if (result := self._past.result_of(entry)) is not None:
                is_known = found is not None and result.id in found.known
                if not is_known and self._why_not_run(call) is None:
                    self._calls.doubt(call, MADE_BEFORE + self._past.in_words([result]))
                continue
            named = f"{call.tool.name} {msgspec.json.encode(call.input).decode()}"
            if item is not None and item.call is not None and item.call.status == "completed":
                emits.append(self._outcome(call, item))
            elif self._is_allowed_now(call):
                self._calls.lose(call)
                self._calls.answer(self._answers[call.event_id])
                allowed.append(named)
            elif (why := self._why_not_run(call)) is not None:
                emits.append(call.returned(why, is_error=True, unblocks=call.waits))
                refused.append(f"{named}: {why}")
            else:
                self._calls.doubt(call, UNKNOWN)
                emits.append(call.returned(UNKNOWN, is_error=True))
                unknown.append(named)
        told = ((_CUT_OFF, unknown), (_ALLOWED, allowed), (_NOT_ALLOWED, refused))
        return emits, [head + "\n".join(names) for head, names in told if names]

    def _is_allowed_now(self, call: AcpCall) -> bool:
        """Whether it has waited, and may be made now. If the turn is taken again, it may have been."""
        answer = self._answers.get(call.event_id)
        fresh = call.waits and call.event_id in self._now and not self._again
        return fresh and answer is not None and bool(answer.fields["result"] == "allow")

    def _why_not_run(self, call: AcpCall) -> str | None:
        """Why it is certain that it has not run, and never will; None: it is not."""
        if call.verdict.permission == "deny":
            return f"Permission to use {call.tool.name} has been denied."
        answer = self._answers.get(call.event_id)
        if not call.waits or (answer is not None and answer.fields["result"] == "allow"):
            return None
        if answer is None:
            return NOT_RUN
        return answer.fields.get("deny_message") or f"The user did not allow {call.tool.name}."


class _Matches:
    """Which entries of the log an agent's record has. `known` are their ids."""

    def __init__(self, ids: StableIds, past: LoggedPast, replay: Replay) -> None:
        self.known: set[str] = set()
        self._items = replay.items
        self._texts = [_plain(item.text) for item in replay.items]
        self._calls = {ids.call(i.call.tool_call_id): i for i in replay.items if i.call is not None}
        self._of_items: dict[int, str] = {}
        at = 0
        for entry in past.told:
            if (result := RESULTS.get(entry.type)) is not None:
                self._note_result(entry, entry.fields[result])
            elif entry.type in CALLS:
                if entry.id in self._calls:
                    self.known.add(entry.id)
            else:
                at = self._look_for(entry, at)

    def call(self, entry: Entry) -> ReplayedItem | None:
        """The record's item of a call of the log."""
        return self._calls.get(entry.id)

    def unlogged(self, given: set[str]) -> list[ReplayedItem]:
        """What the record has and the log lacks, after the newest message to the agent; after `given`, if any."""
        heard = [n for n, id in self._of_items.items() if self._items[n].kind == "user"]
        given_at = [n for n, id in self._of_items.items() if id in given]
        first = min(given_at, default=max(heard, default=len(self._items)))
        return [
            item
            for n, item in enumerate(self._items)
            if n > first and item.kind != "user" and not self._is_known(n, item)
        ]

    def _is_known(self, n: int, item: ReplayedItem) -> bool:
        if item.call is not None:
            return any(item is known for id, known in self._calls.items() if id in self.known)
        return n in self._of_items or not self._texts[n]

    def _note_result(self, entry: Entry, call: str) -> None:
        item = self._calls.get(call)
        if item is None or item.call is None or not is_over(item.call):
            return
        given_up = item.call.status == "failed" and cut_off(str(content_of(item.call)))
        if not given_up or entry.fields.get("is_error"):
            self.known.add(entry.id)

    def _look_for(self, entry: Entry, at: int) -> int:
        """Note where the record has a message, from `at` on; where to look for the next one."""
        words = _words(entry)
        for n in range(at, len(self._items) if words else 0):
            if self._says(n, entry, words):
                self.known.add(entry.id)
                self._of_items[n] = entry.id
                # A note of ours may have many messages in it, anything else has one.
                return n if _NOTE in self._texts[n] else n + 1
        return at

    def _says(self, n: int, entry: Entry, words: str) -> bool:
        kind, text = self._items[n].kind, self._texts[n]
        if entry.type in HEARD:
            return kind == "user" and words in text
        return kind == "text" and words == text


def _words(entry: Entry) -> str:
    return _plain(as_text(entry.fields.get("content")))


def _plain(text: str) -> str:
    return " ".join(text.split())
