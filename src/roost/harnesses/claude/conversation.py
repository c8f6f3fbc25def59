"""A session's conversation with the CLI, over as many processes as it takes.

The CLI is a process that lives as long as it is needed and may die at any moment. A turn talks to
the one that runs, or starts one from what the log and the CLI's transcript say (`recovery`); when it
dies in the middle, the turn starts another one in the same way. Approvals, questions and custom tools
are questions the CLI asks us: while one is open the turn rests, and the answer comes as another turn.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from roost.domain.events import Entry
from roost.errors import AgentFailed, RoostError
from roost.harnesses.claude.calls import ANSWERS, ToolCalls
from roost.harnesses.claude.content import blocks_of_inputs
from roost.harnesses.claude.frames import FrameReader
from roost.harnesses.claude.ids import StableIds
from roost.harnesses.claude.launch import CliCommand
from roost.harnesses.claude.permissions import Policy
from roost.harnesses.claude.process import END, GIVEN_UP, CliProcess
from roost.harnesses.claude.recovery import LoggedPast, Recovery, StartPlan, messages_in
from roost.harnesses.claude.tools import Toolbox
from roost.harnesses.claude.transcript import CliTranscript, TranscriptFile
from roost.harnesses.claude.wire import CliPipe, Json, Prompt
from roost.ports.harness import Brief, Output, StartMode, Trouble, TurnEnd
from roost.ports.sandbox import Sandbox

_log = logging.getLogger(__name__)
_PAUSES: Final = (0.1, 1.0, 5.0)  # seconds before each restart of a CLI that died in one turn
_LOOK_UP = 2.0  # seconds between looks at the clock while the CLI is silent
_SPEAKS_WITHIN = 60.0  # seconds a CLI that was started has to say anything before it is killed
_STOPS_WITHIN = 10.0  # seconds a CLI has to heed an interrupt before it is killed
_WRITES_WITHIN = 0.25  # seconds after which the CLI's transcript has what the CLI has printed
_NOT_FOUND = 127


class _Died(Exception):
    """The CLI ended in the middle of a turn."""


class ClaudeConversation:
    """See `ports.harness.Conversation`. `tasks` run beside it, until `close`."""

    def __init__(
        self, brief: Brief, sandbox: Sandbox, launch: CliCommand, toolbox: Toolbox, tasks: TaskGroup
    ) -> None:
        self._brief = brief
        self._sandbox = sandbox
        self._launch = launch
        self._toolbox = toolbox
        self._tasks = tasks
        self._policy = Policy(brief.session.spec.agent, brief.confinement)
        self._ids = StableIds.of(brief.session)
        self._shelf = TranscriptFile(
            sandbox, self._ids.conversation, launch.home, toolbox.is_custom
        )
        self._has_past = brief.start.resumes
        self._transcript_lost = False
        self._behind = brief.start is StartMode.RESUME_BEHIND
        self._live: CliProcess | None = None
        self._busy = False
        self._interrupted: float | None = None
        self._starting = anyio.Lock(fast_acquire=True)
        self._up = anyio.Event()

    async def start_ahead(self, *, task_status: TaskStatus[None]) -> None:
        """Start the CLI before there is anything to tell it. If it cannot be, the turn finds out why."""
        async with self._starting:
            task_status.started()  # from here on, a turn waits for it
            try:
                calls = ToolCalls(self._ids, self._toolbox, self._policy)
                await self._spawn(calls, resume=self._has_past)
            except RoostError as error:
                about = {"session": self._brief.session.id}
                _log.warning("not started ahead: %s", error.message, extra=about)
                self._up.set()

    async def up(self) -> bool:
        await self._up.wait()
        return self._live is not None and not self._live.cli.ended

    def turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        self._interrupted = None  # now: an interrupt may come before the first output is asked for
        return self._turn(inputs, again)

    async def interrupt(self) -> None:
        self._interrupted = anyio.current_time()
        if self._busy and self._live is not None:
            await self._live.cli.request("interrupt")

    async def close(self) -> None:
        """End the CLI: by itself if it has nothing to do, else as it stands."""
        live, self._live = self._live, None
        if live is None:
            return
        if left_alone := live.not_understood():
            about = {"session": self._brief.session.id}
            _log.info("not understood of the agent: %s", left_alone, extra=about)
        if self._busy or not live.done:
            # At the end of its input it would refuse whatever waits for an answer, and go on.
            await live.cli.kill(after=_WRITES_WITHIN)
        else:
            await live.cli.end()

    async def _turn(self, inputs: Sequence[Entry], again: bool) -> AsyncGenerator[Output, None]:
        """Tries until the agent rests, each time in a new process if the last one died."""
        again = again or self._busy  # what an abandoned turn has left behind is not known
        self._busy = True
        for pause in (*_PAUSES, None):
            try:
                async with aclosing(self._try(inputs, again)) as outputs:
                    async for output in outputs:
                        self._busy = not isinstance(output, TurnEnd)
                        self._behind = self._behind and self._busy
                        yield output
                return
            except _Died:
                again = True
                farewell = await self._bury(last=pause is None)
            for output in farewell:
                yield output
            if self._interrupted is not None or pause is None:
                break
            await anyio.sleep(pause)
        self._busy = False
        yield END if self._interrupted is not None else GIVEN_UP

    async def _try(self, inputs: Sequence[Entry], again: bool) -> AsyncGenerator[Output, None]:
        """One process's part of a turn. :raises _Died:"""
        async with self._starting:
            live = self._live
        if live is None or live.cli.ended or again or not (live.told or _plain(inputs)):
            await self.close()
            plan, calls = await self._plan(inputs, again)
            for emit in plan.emits:
                yield emit
            live, then = await self._start(plan, calls), plan.then
        else:
            then = await self._hand_over(live, inputs)
        while self._interrupted is not None or not live.waits:
            if live.done:
                if then is None:
                    break
                await live.say(then)
                then = None
            for output in await live.take(await self._next(live)):
                yield output
        for output in live.rest():
            yield output

    async def _hand_over(self, live: CliProcess, inputs: Sequence[Entry]) -> Prompt | None:
        """Give the inputs to a CLI that runs; gives what has to wait until it is done."""
        messages = messages_in(inputs)
        prompt = (
            Prompt(self._ids.prompt(messages), blocks_of_inputs(messages)) if messages else None
        )
        for entry in inputs:
            if entry.type in ANSWERS:
                await live.answer(entry)
        if prompt is None or not live.done:
            if prompt is not None and live.waits:
                await live.drop_what_waits()
            return prompt
        await live.say(prompt)
        if self._interrupted is not None:  # it was not yet started then
            await live.cli.request("interrupt")
        return None

    async def _next(self, live: CliProcess) -> Json:
        while True:
            try:
                return await live.cli.next(_LOOK_UP)
            except TimeoutError:
                if self._is_overdue(live):
                    await live.cli.kill()
                    raise _Died from None
            except anyio.EndOfStream:
                raise _Died from None

    def _is_overdue(self, live: CliProcess) -> bool:
        now = anyio.current_time()
        if self._interrupted is not None and now > self._interrupted + _STOPS_WITHIN:
            return True
        return not live.cli.spoke and now > live.since + _SPEAKS_WITHIN

    async def _plan(self, inputs: Sequence[Entry], again: bool) -> tuple[StartPlan, ToolCalls]:
        calls = ToolCalls(self._ids, self._toolbox, self._policy)
        # Whether there is a transcript, the CLI finds out soon enough: see `Live.knows_nothing`.
        known = not (again or self._transcript_lost or self._behind)
        if not self._has_past or (known and _plain(inputs)):
            prompt = Prompt(self._ids.prompt(inputs), blocks_of_inputs(inputs))
            return StartPlan(resume=self._has_past, prompt=prompt), calls
        transcript = None if self._transcript_lost else await self._shelf.read()
        past = await LoggedPast.read(self._brief.history(), self._unheard(inputs, transcript))
        recovery = Recovery(self._ids, calls, past, inputs, again=again, behind=self._behind)
        if transcript is None:
            await self._shelf.put_aside()
            return recovery.without_transcript(), calls
        return recovery.with_transcript(transcript), calls

    def _unheard(self, inputs: Sequence[Entry], transcript: CliTranscript | None) -> set[str]:
        """The messages that the CLI has not taken down, though it has others."""
        messages = messages_in(inputs)
        if transcript is None or transcript.has(self._ids.prompt(messages)):
            return set()
        return {entry.id for entry in messages}

    async def _start(self, plan: StartPlan, calls: ToolCalls) -> CliProcess:
        if plan.mark is not None:
            await self._shelf.append(plan.mark)
        live = await self._spawn(calls, resume=plan.resume, environ=plan.environ)
        await live.say(plan.prompt, repeated=plan.goes_on)
        if self._interrupted is not None:
            await live.cli.request("interrupt")
        return live

    async def _spawn(
        self, calls: ToolCalls, *, resume: bool, environ: Mapping[str, str] | None = None
    ) -> CliProcess:
        process = await self._sandbox.spawn(
            self._launch.argv(resume=resume), environ=self._launch.environ(environ or {})
        )
        cli = CliPipe(process, self._ids.conversation, self._up.set)
        self._tasks.start_soon(cli.pump)
        self._live = live = CliProcess(cli, calls, FrameReader(self._ids, calls), self._toolbox)
        live.since = anyio.current_time()
        self._has_past, self._transcript_lost = True, False
        await cli.request("initialize", **self._launch.introduction())
        return live

    async def _bury(self, *, last: bool) -> list[Output]:
        """See to what a CLI that died has left. :raises AgentFailed: it cannot run here at all"""
        live, self._live = self._live, None
        if live is None:
            return []
        code, words = await live.cli.obituary()
        self._transcript_lost = live.knows_nothing(words)
        if code == _NOT_FOUND:
            raise AgentFailed(f"the agent's program cannot be started: {words}")
        outputs = live.last_words()
        if self._interrupted is None and not (self._transcript_lost and not last):
            said = f"The agent's process ended unexpectedly (exit code {code}). {words}".strip()
            outputs.append(Trouble("agent_failed", said, "exhausted" if last else "retrying"))
        return outputs


def _plain(inputs: Sequence[Entry]) -> bool:
    """Whether none of them answers a call."""
    return not any(entry.type in ANSWERS for entry in inputs)
