"""How a process of the CLI is started so that a conversation goes on where the log says it stands.

Between the log and the CLI's transcript, each may have what the other lacks: the CLI prints before it
writes, and a server may die before it logs. What only the transcript has is logged now. What only the
log has is told to the agent as a note. A call that is open in both may have run, or not:

* it waited for somebody: it did not run. It is put up again, and its answer, if there is one, given.
* it was allowed: nobody knows. The agent is told so, and nothing is run again on its behalf.
* it stood behind another one: it did not run, and the CLI forgets it. The agent is told.

One that only the log has may have run too. If the agent makes it again, it is refused once, with the
reason.

A subagent is not in the transcript, and its program cannot go on with it. If its call is over, its own calls are, too.
If it was cut off, its calls are closed like those that only the log has, and the agent is told what it had done.

If the transcript came back from a snapshot, whole turns may be missing from it. They are over, and nothing
of them is made again; the agent is told what was said and done.

The prompt is always sent again under its own name. The CLI acts on a name once, so this is safe, and
what it says about the name is how we learn that it has nothing left to do.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from roost.domain.events import Entry
from roost.domain.usage import Usage
from roost.harnesses.claude.calls import ToolCall, ToolCalls
from roost.harnesses.claude.frames import MessageEvents, result_of, usage_of
from roost.harnesses.claude.launch import GO_ON
from roost.harnesses.claude.transcript import CliTranscript, TranscriptLine
from roost.harnesses.claude.wire import Prompt
from roost.harnesses.content import as_text, blocks_of_inputs, reminder, text_block
from roost.harnesses.json_lines import Json
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

_LONGEST_NOTE = 30_000  # it travels in a variable, which the kernel limits to four times that
_GO_ON = "Continue from where you left off."
_LOST = (
    "This session was restarted, and your own record of it was lost. "
    "What follows is taken from the session's log, oldest first.\n\n"
)
_FORGOTTEN = (
    "The session was restarted. Just before that you did what follows, which is not in your own "
    "record. Where a call has no result, check whether it took effect before repeating it.\n\n"
)
_BEHIND = (
    "The session was moved to another machine, and the end of your own record of it was lost. What "
    "follows is taken from the session's log, oldest first. Files may be older than that, too: look "
    "before you rely on them.\n\n"
)
_NOT_MADE = (
    "The session was restarted before these calls of yours were made, and you do not see them any "
    "more. Make those again that are still needed, exactly as they were:\n\n"
)
_CUT_OFF = (
    "The session was restarted while subagents of yours were running. They are gone, and you have no report of them. "
    "What follows is what they said and did. Where a call has no result, check whether it took effect before it is "
    "repeated.\n\n"
)
_NOT_RUN = "This call was not run: the session was restarted before its turn came."


class UnloggedEvents:
    """Reads a transcript into `calls`.

    `known` are the ids of all events in it, `emits` the unlogged ones since the newest prompt.
    """

    def __init__(self, ids: StableIds, calls: ToolCalls, past: LoggedPast) -> None:
        self.known: set[str] = set()
        self.emits: list[Emit] = []
        self._events = MessageEvents(ids, calls)
        self._calls = calls
        self._past = past
        self._begin()

    def over(self) -> set[str]:
        """The calls whose results are among what the log lacks."""
        fields = [msgspec.json.decode(emit.drafts[0].body) for emit in self.emits]
        return {each[name] for each in fields for name in RESULTS.values() if name in each}

    def read(self, transcript: CliTranscript) -> None:
        """Read the whole transcript, and collect what the log lacks."""
        for line in transcript.lines:
            if line.is_prompt:
                self._begin()
            self._take(line)
        self._end_answer()
        if self._open_span is not None:
            self.emits.insert(0, Emit([span_end(self._open_span, Usage(), error=True)]))

    def _begin(self) -> None:
        self._calls.prompted()
        self.emits = []
        self._answer = _Answer("", paid=True)
        self._paid = self._past.answered
        self._open_span = self._past.open_span

    def _take(self, line: TranscriptLine) -> None:
        if line.said is None:
            return
        if line.by_agent:
            emits = self._events.spoken(line.said)
            if emits:
                self._begin_answer(line.said.message.id)
                self._answer.usage |= line.said.message.usage or {}
        else:
            emits = self._events.returned(line.said)
            self._end_answer()
        self.known |= {emit.drafts[0].id for emit in emits}
        unlogged = [emit for emit in emits if emit.drafts[0].id not in self._past.ids]
        self.emits += [*self._answer.begin(), *unlogged] if unlogged else []

    def _begin_answer(self, message_id: str) -> None:
        if message_id == self._answer.message_id:
            return
        self._end_answer()
        self._answer = _Answer(message_id, paid=self._paid > 0)
        if self._paid:
            self._paid -= 1
        else:
            self._answer.span, self._open_span = self._open_span, None

    def _end_answer(self) -> None:
        self.emits += self._answer.end()
        self._answer = _Answer("", paid=True)


class _Answer:
    """An answer of the model's, and its span: logged, or begun with the first unlogged event."""

    def __init__(self, message_id: str, *, paid: bool) -> None:
        self.message_id = message_id
        self.usage: Json = {}
        self.span: str | None = None
        self._paid = paid

    def begin(self) -> list[Emit]:
        """The beginning of its span, where that is missing."""
        if self._paid or self.span is not None:
            return []
        start = new_draft("span.model_request_start")
        self.span = start.id
        return [Emit([start])]

    def end(self) -> list[Emit]:
        """The end of its span, where that is missing."""
        if self.span is None:
            return []
        usage = usage_of(self.usage)
        return [Emit([span_end(self.span, usage, error=False)], spent=usage)]


class StartPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to start. `emits` come first; `mark` goes into the transcript; `prompt` is sent at once,
    `then` when the CLI has nothing left to do.
    """

    resume: bool
    prompt: Prompt
    emits: Sequence[Emit] = ()
    mark: bytes | None = None
    environ: Mapping[str, str] = {}
    then: Prompt | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the CLI goes on by itself, with the turn that the prompt has begun."""
        return bool(self.environ)


class Recovery:
    """Works out the plan. `calls` is filled with what is known of the session's open calls."""

    def __init__(
        self,
        ids: StableIds,
        calls: ToolCalls,
        past: LoggedPast,
        inputs: Sequence[Entry],
        *,
        again: bool,
        behind: bool = False,
    ) -> None:
        self._ids = ids
        self._calls = calls
        self._past = past
        self._again = again
        self._behind = behind
        self._messages = messages_in(inputs)
        self._answered = {e.fields[ANSWERS[e.type]] for e in inputs if e.type in ANSWERS}
        self._name = ids.prompt(self._messages or inputs)
        self._said = blocks_of_inputs(self._messages) if self._messages else [text_block(_GO_ON)]
        for entry in [*past.answers, *inputs]:
            if entry.type in ANSWERS:
                calls.answer(entry)

    def without_transcript(self) -> StartPlan:
        """A new conversation of the CLI's, told what the log has of the old one."""
        given = {entry.id for entry in self._messages}
        told = [entry for entry in self._past.told if entry.id not in given]
        note = [text_block(reminder(_LOST + self._past.in_words(told)))] if told else []
        left = self._past.by_subagents(())
        emits = [*self._close(self._past.recent()), *self._close_subagents(left)]
        note += map(text_block, self._about_subagents(left))
        if any(entry.type in HEARD for entry in told):
            # The API's word for a context that was replaced by an account of it.
            emits.insert(0, Emit([new_draft("agent.thread_context_compacted")]))
        if self._past.open_span is not None:
            emits.insert(0, Emit([span_end(self._past.open_span, Usage(), error=True)]))
        return StartPlan(resume=False, emits=emits, prompt=Prompt(self._name, [*note, *self._said]))

    def with_transcript(self, transcript: CliTranscript) -> StartPlan:
        """The old conversation of the CLI's, from where its transcript ends."""
        found = UnloggedEvents(self._ids, self._calls, self._past)
        found.read(transcript)
        lost = [entry for entry in self._done() if entry.id not in found.known]
        left = self._past.by_subagents(found.over())
        unlogged = [*found.emits, *self._close(lost), *self._close_subagents(left)]
        note = [reminder(_FORGOTTEN + self._past.in_words(lost, _LONGEST_NOTE))] if lost else []
        if self._behind:
            note = self._whole_turns(transcript, found.known)
        note += self._about_subagents(left)
        if self._messages and not transcript.has(self._name):
            return self._not_heard(transcript, unlogged, note)
        return self._cut_off(transcript, unlogged, note)

    def _done(self) -> list[Entry]:
        """What the agent did in the turn that goes on now. If its record may lack turns that were over
        before, those are no part of that.
        """
        given = {entry.id for entry in self._messages}
        return self._past.since(given) if self._behind and given else self._past.recent()

    def _whole_turns(self, transcript: CliTranscript, known: Collection[str]) -> list[str]:
        """The note about what was said and done after the transcript ends."""
        given = {entry.id for entry in self._messages}
        missing = [
            entry
            for entry in self._past.after(known)
            if entry.id not in given and not transcript.has(self._ids.prompt([entry]))
        ]
        if not missing:
            return []
        return [reminder(_BEHIND + self._past.in_words(missing, _LONGEST_NOTE))]

    def _not_heard(
        self, transcript: CliTranscript, emits: list[Emit], note: list[str]
    ) -> StartPlan:
        """The CLI never took the messages down. Calls that were answered with them come first."""
        prompt = Prompt(self._name, [*map(text_block, note), *self._said])
        if not any(call.event_id in self._answered for call in self._calls.open.values()):
            return StartPlan(resume=True, emits=emits, prompt=prompt)
        return replace(self._cut_off(transcript, emits, []), then=prompt)

    def _cut_off(self, transcript: CliTranscript, emits: list[Emit], note: list[str]) -> StartPlan:
        mark, behind = self._put_up(transcript)
        if behind:
            named = "\n".join(f"{call.name} {json.dumps(call.input)}" for call in behind)
            note = [*note, reminder(_NOT_MADE + named[:_LONGEST_NOTE])]
        nudge = transcript.nudge if mark is None else None
        return StartPlan(
            resume=True,
            emits=[*emits, *self._settle(put_up=mark is not None)],
            mark=mark,
            environ={**GO_ON, "CLAUDE_CODE_RESUME_PROMPT": _variable([_GO_ON, *note])},
            prompt=Prompt(transcript.prompt.uuid, transcript.prompt.frame["message"]["content"]),
            then=Prompt(nudge, [*map(text_block, [_GO_ON, *note])]) if nudge else None,
        )

    def _put_up(self, transcript: CliTranscript) -> tuple[bytes | None, list[ToolCall]]:
        """The mark for the first open call, if it is one to put up again, and the calls behind it."""
        for tool_use_id, call in self._calls.open.items():
            if self._did_not_run(call):
                return transcript.mark(tool_use_id, call), list(self._calls.open.values())[1:]
            break
        return None, []

    def _did_not_run(self, call: ToolCall) -> bool:
        """Whether it is certain that the call has not run."""
        if not call.waits or self._has_result(call):
            return False
        answer = self._calls.answer_of(call)
        if answer is None or call.tool.answered_by_client or not self._again:
            return True
        return bool(answer.fields.get("result") == "deny")

    def _has_result(self, call: ToolCall) -> bool:
        return self._past.has_result(call.event_id) and not call.tool.answered_by_client

    def _settle(self, *, put_up: bool) -> list[Emit]:
        """What becomes of the open calls, apart from a first one that is put up again."""
        emits = []
        for tool_use_id, call in list(self._calls.open.items())[put_up:]:
            if not self._has_result(call):
                emits += self._give_up(call, self._ids.result(tool_use_id), put_up=put_up)
            self._calls.settle(tool_use_id)
        return emits

    def _close_subagents(self, left: Sequence[Entry]) -> list[Emit]:
        """What becomes of the calls of subagents that were cut off. Nobody need answer one that waits."""
        emits = []
        for entry in left:
            if entry.type not in CALLS:
                continue
            call, result = self._calls.logged(entry), self._past.result_of(entry)
            if result is None and call.waits and self._calls.answer_of(call) is None:
                draft = result_of(call, None, _NOT_RUN, is_error=True)
                emits.append(Emit([draft], unblocks=[call.event_id]))
            elif result is None or as_text(result.fields.get("content")) != _NOT_RUN:
                emits += self._close_one(call, result)
        return emits

    def _about_subagents(self, left: Sequence[Entry]) -> list[str]:
        """The note about what subagents had done that were cut off."""
        return [reminder(_CUT_OFF + self._past.in_words(left, _LONGEST_NOTE))] if left else []

    def _close(self, lost: Sequence[Entry]) -> list[Emit]:
        """What becomes of calls that only the log knows about."""
        emits = []
        for entry in lost:
            if entry.type in CALLS:
                emits += self._close_one(self._calls.logged(entry), self._past.result_of(entry))
        return emits

    def _close_one(self, call: ToolCall, result: Entry | None) -> list[Emit]:
        if result is not None and not call.tool.answered_by_client:
            self._calls.doubt(call, MADE_BEFORE + self._past.in_words([result]))
            return []
        emits = self._give_up(call, None, put_up=False)
        if emits:
            self._calls.doubt(call, UNKNOWN)
        return emits

    def _give_up(self, call: ToolCall, result_id: str | None, *, put_up: bool) -> list[Emit]:
        """The agent may make the call again, and nobody is asked twice; else it has come to nothing."""
        if self._did_not_run(call):
            self._calls.lose(call)
            return []
        if call.tool.answered_by_client:
            return []
        said = _NOT_RUN if put_up else UNKNOWN
        return [Emit([result_of(call, result_id, said, is_error=True)])]


def _variable(parts: Sequence[str]) -> str:
    return "\n\n".join(parts).replace("\0", "")  # no variable can hold that one
