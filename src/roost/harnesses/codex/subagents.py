"""The agent of a session and the subagents that it starts, all in one process of Codex.

A subagent is another conversation of the same process. It begins when the agent calls `Agent`, a tool that Codex asks
us to carry out: the prompt is said to it as text, and what it says last is the result of the call. It has the agent's
tools but this one; what it calls is judged, asked about and logged in the same way, with its thread.

Codex's own tools for subagents are off. What is told by them is encrypted by the model's server, their agents work on
when the turn is over, and a file that is named to them is read without a call that anybody could be asked about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from roost.domain.events import Draft, Entry
from roost.domain.usage import Usage
from roost.harnesses.codex.process import CodexProcess
from roost.harnesses.codex.tools import CodexCall
from roost.harnesses.codex.wire import object_in, text_in
from roost.harnesses.content import as_text, text_block
from roost.harnesses.json_lines import Json
from roost.harnesses.logged_past import ANSWERS, CALLS, RESULTS
from roost.harnesses.permissions import SUBAGENT
from roost.harnesses.stable_ids import thread_of
from roost.harnesses.turn_ends import span_end
from roost.ports.drafts import new_draft
from roost.ports.harness import Emit, Output, Trouble, TurnEnd

_NAME: Final = "subagent"
_CALLED: Final = "item/tool/call"
_SILENT: Final = "The subagent has ended without a report."
_STOPPED: Final = "The subagent was stopped before it began."
_NO_PROMPT: Final = "Refused: `prompt` has to be a text that says what the subagent is to do."


class _Subagent:
    """A subagent that a call has started. `asked` is Codex's request for the call's outcome, until it is answered."""

    def __init__(self, call: CodexCall, asked: Json, own: CodexProcess, request: int) -> None:
        self.call = call
        self.asked: Json | None = asked
        self.own = own
        self.request = request  # which begins its conversation
        self.thread = thread_of(call.event_id)
        self.ended = False
        self.report = ""
        self.failed = False
        self._spent = Usage()

    @property
    def prompt(self) -> list[Json]:
        return [text_block(text_in(self.call.input, "prompt"))]

    def end(self, report: str, *, failed: bool) -> None:
        self.ended, self.report, self.failed = True, report, failed

    def created(self, event_id: str) -> Emit:
        fields = {"session_thread_id": self.thread, "workflow_run_id": None, "agent_name": _NAME}
        return Emit([Draft.of("session.thread_created", event_id, **fields)])

    def shown(self, outputs: Sequence[Output]) -> list[Output]:
        """What it does, as events of its thread. What its requests use is told when it ends."""
        found: list[Output] = []
        for output in outputs:
            if isinstance(output, Emit):
                self._spent = self._spent.plus(output.spent or Usage())
                drafts = [d for d in map(self._of_thread, output.drafts) if d is not None]
                if drafts:
                    found.append(Emit(drafts, blocks=output.blocks, unblocks=output.unblocks))
            elif isinstance(output, Trouble) and output.retry == "retrying":
                found.append(output)
        return found

    def over(self) -> list[Output]:
        """It has nothing left to do: what it has come to, and what its requests used."""
        *troubles, end = self.own.end_of_turn()
        for trouble in troubles:
            if isinstance(trouble, Trouble):
                self.end(f"The subagent has failed: {trouble.message}", failed=True)
        if not self.ended:
            refused = isinstance(end, TurnEnd) and end.stop_reason["type"] == "refusal"
            self.end(self.report or _SILENT, failed=refused)
        start = new_draft("span.model_request_start")
        span = [start, span_end(start.id, self._spent, error=False)]
        return [Emit(span, spent=self._spent)] if self._spent != Usage() else []

    def _of_thread(self, draft: Draft) -> Draft | None:
        if draft.type in RESULTS:
            return draft
        fields: Any = msgspec.json.decode(draft.body)
        if draft.type in CALLS:
            return Draft.of(draft.type, draft.id, **fields, session_thread_id=self.thread)
        if draft.type != "agent.message":
            return None
        self.report = as_text(fields["content"])
        who = {"from_session_thread_id": self.thread, "from_agent_name": _NAME}
        content = fields["content"]
        return Draft.of("agent.thread_message_received", draft.id, **who, content=content)


class LeadingCodex(CodexProcess):
    """A Codex whose agent may start subagents; `subagent` is how the conversation of one is started."""

    def __init__(self, *parts: Any, subagent: Json, since: float) -> None:
        super().__init__(*parts, since=since)
        self._subagent = subagent
        self._how: Json = {}
        self._started: list[_Subagent] = []

    @property
    def _active(self) -> list[_Subagent]:
        return [each for each in self._started if not each.ended]

    @property
    def done(self) -> bool:
        return super().done and not self._active

    @property
    def waits(self) -> bool:
        """Whether neither it nor any of its subagents can go on before somebody answers."""
        if not self._active:
            return super().waits
        return not self.is_busy and all(each.own.waits for each in self._active)

    def ready(self) -> Json | None:
        own = (each.own.ready() for each in self._active)
        return super().ready() or next((frame for frame in own if frame is not None), None)

    async def say(self, content: Sequence[Json], settings: Json) -> list[Output]:
        self._how = settings
        return await super().say(content, settings)

    async def interrupt(self) -> None:
        await super().interrupt()
        for each in self._active:
            await each.own.interrupt()

    async def answer(self, entry: Entry) -> None:
        event_id = entry.fields[ANSWERS[entry.type]]
        made = (each.own for each in self._active if each.own.has_made(event_id))
        maker = next(made, None)
        await (super().answer(entry) if maker is None else maker.answer(entry))

    async def take(self, frame: Json) -> list[Output]:
        subagent = next((each for each in self._started if _is_for(each, frame)), None)
        if subagent is None:
            return await super().take(frame)
        if frame.get("id") == subagent.request and "method" not in frame:
            return await self._begin(subagent, frame)
        outputs = subagent.shown(await subagent.own.take(frame))
        if subagent.own.done and not subagent.ended:
            outputs += subagent.over()
        return outputs

    async def after(self) -> None:
        await super().after()
        for each in self._started:
            if each.own.thread:
                await each.own.after()
            if self._idle and not each.ended and not each.own.is_stopping:
                await each.own.interrupt()  # nobody waits for it any more
            if each.ended and each.asked is not None:
                asked, each.asked = each.asked, None
                await self._report(each, asked)

    def unanswered(self) -> list[str]:
        return [*super().unanswered(), *(id for e in self._active for id in e.own.unanswered())]

    async def _asked(self, method: str, params: Json, frame: Json) -> None:
        call = self._calls.get(text_in(params, "callId"))
        if method != _CALLED or call is None or call.tool.name != SUBAGENT:
            await super()._asked(method, params, frame)
            return
        if not text_in(call.input, "prompt").strip():
            self._broken.add(call.call_id)
            await self.pipe.respond(frame["id"], _outcome(_NO_PROMPT, failed=True))
            return
        request = await self.pipe.request("thread/start", **self._subagent)
        own = CodexProcess(self.pipe, self._tools, self._ids, self._about_key, since=self.since)
        self._started.append(_Subagent(call, frame, own, request))

    async def _begin(self, subagent: _Subagent, frame: Json) -> list[Output]:
        """Its conversation is there, or cannot be had."""
        if "error" in frame:
            said = text_in(object_in(frame, "error"), "message")
            subagent.end(f"The subagent could not be started: {said}"[:2000], failed=True)
            return []
        subagent.own.thread = text_in(object_in(frame, "result", "thread"), "id")
        if self._stopping:
            subagent.end(_STOPPED, failed=True)
            return []
        begun = subagent.created(self._ids.begun(subagent.call.call_id))
        return [begun, *subagent.shown(await subagent.own.say(subagent.prompt, self._how))]

    async def _report(self, subagent: _Subagent, asked: Json) -> None:
        if subagent.failed:
            self._broken.add(subagent.call.call_id)
        if not self._idle:
            outcome = _outcome(subagent.report, failed=subagent.failed)
            await self.pipe.respond(asked["id"], outcome)


def _is_for(subagent: _Subagent, frame: Json) -> bool:
    """Whether a message of Codex's is about a subagent."""
    if "method" in frame:
        thread = text_in(object_in(frame, "params"), "threadId")
        return bool(thread) and thread == subagent.own.thread
    return frame.get("id") == subagent.request or subagent.own.is_response(frame)


def _outcome(text: str, *, failed: bool) -> Json:
    return {"contentItems": [{"type": "inputText", "text": text}], "success": not failed}
