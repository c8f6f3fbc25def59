"""What the CLI's transcript has and the log has not, as events for the log.

A model request is not in the transcript, only its answer. The requests that the log has are those of
the first answers since the newest prompt; the answers after those get their spans, and are paid for, now.
"""

from __future__ import annotations

from roost.domain.events import Draft
from roost.domain.usage import Usage
from roost.harnesses.claude.calls import ToolCalls
from roost.harnesses.claude.frames import MessageEvents, end_of_span, usage_of
from roost.harnesses.claude.ids import StableIds
from roost.harnesses.claude.past import LoggedPast
from roost.harnesses.claude.shapes import Json
from roost.harnesses.claude.transcript import CliTranscript, TranscriptLine
from roost.ports.harness import Emit


class UnloggedEvents:
    """Reads a transcript into `calls`.

    `known` are the ids of all events in it, `emits` the unlogged ones since the newest prompt.
    """

    def __init__(self, ids: StableIds, calls: ToolCalls, past: LoggedPast) -> None:
        self.known: set[str] = set()
        self.emits: list[Emit] = []
        self._scribe = MessageEvents(ids, calls)
        self._calls = calls
        self._past = past
        self._begin()

    def read(self, transcript: CliTranscript) -> None:
        """Take in the whole transcript."""
        for line in transcript.lines:
            if line.is_prompt:
                self._begin()
            self._take(line)
        self._end_answer()
        if self._open_span is not None:
            self.emits.insert(0, Emit([end_of_span(self._open_span, Usage(), error=True)]))

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
            emits = self._scribe.spoken(line.said)
            if emits:
                self._begin_answer(line.said.message.id)
                self._answer.usage |= line.said.message.usage or {}
        else:
            emits = self._scribe.returned(line.said)
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
        start = Draft.of("span.model_request_start")
        self.span = start.id
        return [Emit([start])]

    def end(self) -> list[Emit]:
        """The end of its span, where that is missing."""
        if self.span is None:
            return []
        usage = usage_of(self.usage)
        return [Emit([end_of_span(self.span, usage, error=False)], spent=usage)]
