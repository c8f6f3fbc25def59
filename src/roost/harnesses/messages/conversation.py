"""One conversation with a model: it asks, makes the calls that the model wants, and asks again.

The order in which entries are written is in `journal`. Killed after any of them, the turn is taken again from there.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import takewhile
from typing import Final

import anyio
from anyio.abc import TaskGroup

from roost.domain.events import Draft, Entry
from roost.domain.usage import Usage
from roost.harnesses.logged_past import UNKNOWN
from roost.harnesses.message_history import INTERRUPTED
from roost.harnesses.messages.answers import AnswerEvents, result_of
from roost.harnesses.messages.compaction import Compaction
from roost.harnesses.messages.journal import LEFT_OUT, MOST_CUTS, STARTED, Journal, LoggedCall
from roost.harnesses.messages.request import WORKERS_SKILLS, RequestHead, system_prompt
from roost.harnesses.messages.running import CallWave, RunningTools
from roost.harnesses.messages.tools import AgentTools, ToolAnswer
from roost.harnesses.messages.window import ModelWindow
from roost.harnesses.messages_api import ModelAnswer
from roost.harnesses.model_requests import ModelRequests, Stop
from roost.harnesses.permissions import Json, Policy
from roost.harnesses.turn_ends import GIVEN_UP, span_end
from roost.ports.drafts import new_draft
from roost.ports.harness import Brief, Emit, Output, Show, Trouble, TurnEnd
from roost.ports.harness_profile import SKILLS

_MAX_REQUESTS: Final = 200  # in a row: a model that only ever calls tools must not go on
_MOST_HELD: Final = 64 * 1024
"""Bytes of a conversation that are kept while it rests. A larger one is read from the log again."""
_END: Final = TurnEnd({"type": "end_turn"})

# How servers of models refuse what can be mended; the status is in `retries.refused`.
_BAD_REQUEST: Final = re.compile(r"refused the request \((400|413) ")
_ABOUT_THINKING: Final = re.compile(r"thinking|signature", re.IGNORECASE)
_ABOUT_LENGTH: Final = re.compile(
    r"too (long|large)|context (length|limit|window|size)|maximum context|\(413 ", re.IGNORECASE
)
_MOST_REFUSALS: Final = 4


class MessagesConversation:
    """A conversation that is open. Its calls run in the task group of whoever has opened it."""

    def __init__(
        self,
        brief: Brief,
        requests: ModelRequests,
        toolbox: AgentTools,
        tools: RunningTools,
        tasks: TaskGroup,
        window: ModelWindow,
    ) -> None:
        self._brief = brief
        self._window = window
        self._requests = requests
        self._toolbox = toolbox
        self._policy = Policy(brief.session.spec.agent, brief.confinement)
        self._answers = AnswerEvents(toolbox, self._policy)
        self._tools = tools
        self._tasks = tasks
        self._journal: Journal | None = None
        self._last_head: tuple[Mapping[tuple[str, str], list[Json]], RequestHead] | None = None
        self._unlisted = set(toolbox.servers)  # servers that were not asked for their tools by now
        self._stop = Stop()

    def turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        self._stop = Stop()  # now, and not when the first output is asked for: see `interrupt`
        return self._turn(inputs, again, self._stop)

    async def up(self) -> bool:
        return True  # there is no program to wait for

    async def interrupt(self) -> None:
        self._stop.ask()

    async def _turn(
        self, inputs: Sequence[Entry], again: bool, stop: Stop
    ) -> AsyncGenerator[Output, None]:
        """Folds each event once it is logged, as if it had been read from the log."""
        journal = await self._caught_up(inputs, again)
        async with aclosing(self._steps(journal, stop)) as outputs:
            async for output in outputs:
                if isinstance(output, TurnEnd):
                    self._journal = journal if journal.size <= _MOST_HELD else None
                yield output
                if isinstance(output, Emit):
                    for draft in output.drafts:
                        journal.take(draft)

    async def _caught_up(self, inputs: Sequence[Entry], again: bool) -> Journal:
        journal = self._journal
        self._journal = None  # one whose turn is abandoned is not used again
        # With calls open, only the log knows whether they still are: an interrupt closes them.
        if journal is None or again or journal.calls:
            journal = Journal(self._toolbox.by_worker)
            async for entry in self._brief.history():
                # One that was queued stands again where it was taken up; a withdrawn one never was.
                if not (entry.queued or entry.withdrawn):
                    journal.take(entry)
        for entry in inputs:
            journal.take(entry)
        return journal

    async def _steps(self, journal: Journal, stop: Stop) -> AsyncGenerator[Output, None]:
        """Calls what is to be called and asks the model, as long as there is something to do."""
        if drafts := await self._loose_ends(journal, stop):
            yield Emit(drafts, aside=True)
        head = self._head(journal)
        if journal.bound_to not in (None, head.digest):
            yield Emit([new_draft(LEFT_OUT, what="thinking")], aside=True)
        for _ in range(_MAX_REQUESTS):
            for step in (self._settled(journal, stop), self._asked(head, journal, stop)):
                async with aclosing(step) as outputs:
                    async for output in outputs:
                        yield output
                        if isinstance(output, TurnEnd):
                            return
        said = f"The model called tools {_MAX_REQUESTS} times in a row; send a message to go on."
        yield Trouble("tool_use_limit_reached_error", said, "exhausted")
        yield GIVEN_UP

    async def _loose_ends(self, journal: Journal, stop: Stop) -> list[Draft]:
        """The end of a request that was cut off, and what was not known before."""
        cut_off = journal.open_span
        ended = [span_end(cut_off, Usage(), error=True)] if cut_off else []
        return [*ended, *await self._listed(journal, stop)]

    async def _listed(self, journal: Journal, stop: Stop) -> list[Draft]:
        """The tools of MCP servers that the log does not have yet; or why they cannot be had, once."""
        known = {name for name, _ in journal.mcp_tools}
        asked, self._unlisted = self._unlisted - known, set()
        drafts: list[Draft] = []
        if not asked:
            return drafts

        async def ask(name: str) -> None:
            drafts.append(await self._tools.listed(name, self._toolbox.servers[name]))

        with stop.cutting_short():
            async with anyio.create_task_group() as tasks:
                for name in sorted(asked):
                    tasks.start_soon(ask, name)
        return drafts

    def _head(self, journal: Journal) -> RequestHead:
        """The one of the last turn, unless MCP servers have other tools since: all else stays as it is."""
        if self._last_head is not None and self._last_head[0] == journal.mcp_tools:
            return self._last_head[1]
        agent = self._brief.session.spec.agent
        offered = self._toolbox.offered(journal.mcp_tools, self._policy)
        skills = WORKERS_SKILLS if self._toolbox.by_worker else SKILLS
        system = system_prompt(agent, self._brief.skills, skills)
        head = RequestHead(agent, system, offered, self._window)
        self._last_head = dict(journal.mcp_tools), head
        return head

    # Asking

    async def _asked(
        self, head: RequestHead, journal: Journal, stop: Stop
    ) -> AsyncGenerator[Output, None]:
        """Makes one request, if the model has something to answer; rests otherwise, or if that is the end."""
        if rest := _rest(journal, stop):
            yield rest
            return
        compaction = Compaction(journal, self._window) if self._is_full(journal) else None
        if compaction is not None and compaction.is_useful:
            step = self._summed_up(head, compaction, stop)
        else:
            step = self._answered(head, journal, stop)
        async with aclosing(step) as outputs:
            async for output in outputs:
                if isinstance(output, Trouble) and (what := _refused(output, journal)):
                    # It is made again, and the turn is not given up, as would follow.
                    yield Emit([new_draft(LEFT_OUT, what=what)], aside=True)
                    return
                yield output

    def _is_full(self, journal: Journal) -> bool:
        return journal.tokens >= self._window.full

    async def _answered(
        self, head: RequestHead, journal: Journal, stop: Stop
    ) -> AsyncGenerator[Output, None]:
        """Has the model answer; rests if it never does, or if that is the end."""
        answers: list[ModelAnswer] = []

        def finish(answer: ModelAnswer, end: Draft) -> Emit:
            answers.append(answer)
            return self._answers.of(answer, end, head.digest)

        body = head.request(journal.messages())
        async with aclosing(self._requests.outputs(body, stop, finish)) as outputs:
            async for output in outputs:
                yield output
        if not answers or stop.asked:
            return
        match answers[-1].stop_reason:
            case "refusal":
                yield TurnEnd({"type": "refusal"})
            case "max_tokens" if journal.cuts >= MOST_CUTS:
                said = f"The model's answers were too long {MOST_CUTS} times in a row; send a message to go on."
                yield Trouble("model_request_failed_error", said, "exhausted")
                yield GIVEN_UP

    async def _summed_up(
        self, head: RequestHead, compaction: Compaction, stop: Stop
    ) -> AsyncGenerator[Output, None]:
        """Has the model sum the conversation up. What it says is for itself, so nobody is shown it."""
        body = head.request(compaction.messages)
        async with aclosing(self._requests.outputs(body, stop, compaction.finish)) as outputs:
            async for output in outputs:
                if not isinstance(output, Show):
                    yield output

    # Calling

    async def _settled(self, journal: Journal, stop: Stop) -> AsyncGenerator[Output, None]:
        """Gives every call a result that can have one now."""
        known = [
            result_of(call.tool, call.id, said)
            for call in journal.calls.values()
            if (said := _known(call)) is not None
        ]
        if known:
            yield Emit(known)
        while not stop.asked and (wave := _next_wave(journal)):
            async with aclosing(self._made(wave, stop)) as outputs:
                async for output in outputs:
                    yield output
        if stop.asked:  # what has not begun by now never does
            left = [call for call in journal.calls.values() if call.status == "due"]
            if left:
                yield Emit(
                    [result_of(call.tool, call.id, ToolAnswer.error(INTERRUPTED)) for call in left]
                )

    async def _made(self, wave: Sequence[LoggedCall], stop: Stop) -> AsyncGenerator[Output, None]:
        """Makes calls beside each other; each result is logged as it comes.

        :raises SandboxFailed: nobody knows how some of them have ended
        """
        in_sandbox = any(call.tool.kind == "builtin" for call in wave)
        if in_sandbox:
            with stop.cutting_short():
                # Before anything is noted: a sandbox that cannot be had has run nothing.
                await self._tools.guest.start()
            if stop.asked:
                return
        if noted := [call.id for call in wave if not call.is_repeatable]:
            yield Emit([new_draft(STARTED, tool_use_ids=noted, sandbox=in_sandbox)])
            if stop.asked:
                yield Emit(
                    [result_of(call.tool, call.id, ToolAnswer.error(INTERRUPTED)) for call in wave]
                )
                return
        async with aclosing(
            CallWave(wave, self._tools, self._policy, self._tasks).results(stop)
        ) as results:
            async for call, answer in results:
                yield Emit([result_of(call.tool, call.id, answer)])


def _refused(trouble: Trouble, journal: Journal) -> str | None:
    """What of a request was refused that can be left out; None: it was not that, or it was tried."""
    if trouble.retry != "exhausted" or not _BAD_REQUEST.search(trouble.message):
        return None
    if _ABOUT_THINKING.search(trouble.message) and journal.has_thoughts:
        return "thinking"
    if _ABOUT_LENGTH.search(trouble.message) and journal.refusals < _MOST_REFUSALS:
        return "length"
    return None


def _rest(journal: Journal, stop: Stop) -> TurnEnd | None:
    """The reason to rest, unless the model has something to answer."""
    if stop.asked:
        return _END
    if waiting := journal.waiting:
        return TurnEnd({"type": "requires_action", "event_ids": waiting})
    return None if journal.due else _END


def _next_wave(journal: Journal) -> list[LoggedCall]:
    """The calls to make next: one that may change the sandbox alone, in its place; others beside each other."""
    due = [call for call in journal.calls.values() if call.status == "due"]
    if due and due[0].is_ordered:
        return due[:1]
    return list(takewhile(lambda call: not call.is_ordered, due))


def _known(call: LoggedCall) -> ToolAnswer | None:
    """The result of a call that is not going to be made; None if it has none yet."""
    if call.status == "unknown":
        return ToolAnswer.error(UNKNOWN)
    if call.status == "refused":
        verdict = call.verdict or {}
        return ToolAnswer.error(
            verdict.get("deny_message") or f"The user did not allow {call.tool.name}."
        )
    return None
