"""A session's conversation with the CLI, over as many processes as it takes.

The CLI is a process that lives as long as it is needed and may die at any moment. A turn talks to
the one that runs, or starts one from what the log and the CLI's transcript say (`recovery`); when it
dies in the middle, the turn starts another one in the same way. Approvals, questions and custom tools
are questions the CLI asks us: while one is open the turn rests, and the answer comes as another turn.

Where it stands is one of `conversation_states`. An idle process that dies is noticed by the next turn. Interrupts count while
a turn is under way, and are nothing otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from enum import Enum
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from roost.domain.events import Entry
from roost.errors import AgentFailed, RoostError
from roost.harnesses.claude.calls import ToolCalls
from roost.harnesses.claude.frames import FrameReader
from roost.harnesses.claude.launch import CliCommand
from roost.harnesses.claude.process import CliProcess
from roost.harnesses.claude.recovery import Recovery, StartPlan
from roost.harnesses.claude.tools import Toolbox
from roost.harnesses.claude.transcript import CliTranscript, TranscriptFile
from roost.harnesses.claude.wire import CliPipe, Prompt
from roost.harnesses.content import blocks_of_inputs
from roost.harnesses.conversation_states import (
    IN_A_TURN,
    TABLE,
    ConversationMove,
    ConversationState,
)
from roost.harnesses.json_lines import Json
from roost.harnesses.logged_past import ANSWERS, LoggedPast, is_plain, messages_in
from roost.harnesses.permissions import Policy
from roost.harnesses.stable_ids import StableIds
from roost.harnesses.turn_ends import END, GIVEN_UP
from roost.ports.harness import Brief, Output, StartMode, Trouble, TurnEnd
from roost.ports.sandbox import Sandbox

_log = logging.getLogger(__name__)
_PAUSES: Final = (0.1, 1.0, 5.0)  # seconds before each start after the first that one turn makes
_LOOK_UP = 2.0  # seconds between looks at the clock while the CLI is silent
_SPEAKS_WITHIN = 60.0  # seconds a CLI that was started has to say anything before it is killed
_STOPS_WITHIN = 10.0  # seconds a CLI has to heed an interrupt before it is killed
_NOT_FOUND = 127


class TranscriptState(Enum):
    """What the CLI's own record of the conversation is worth."""

    NONE = "none"
    """The CLI has not yet begun one."""
    KNOWN = "known"
    """There is one, as far as anybody knows, and it ends where the log ends."""
    BEHIND = "behind"
    """It may lack turns that the log has; the agent is told, in the next turn."""
    LOST = "lost"
    """The CLI has not found it; the next process begins a new one, and is told what the log has."""


_FOUND: Final = {
    StartMode.FRESH: TranscriptState.NONE,
    StartMode.FRESH_AHEAD: TranscriptState.NONE,
    StartMode.RESUME: TranscriptState.KNOWN,
    StartMode.RESUME_AHEAD: TranscriptState.KNOWN,
    StartMode.RESUME_BEHIND: TranscriptState.BEHIND,
}


class _Died(Exception):
    """The CLI ended in the middle of a turn."""


class ClaudeConversation:
    """See `ports.harness.Conversation`. `tasks` run beside it, until `close`."""

    def __init__(
        self,
        brief: Brief,
        sandbox: Sandbox,
        command: CliCommand,
        toolbox: Toolbox,
        tasks: TaskGroup,
    ) -> None:
        self._brief = brief
        self._sandbox = sandbox
        self._command = command
        self._toolbox = toolbox
        self._tasks = tasks
        self._policy = Policy(brief.session.spec.agent, brief.confinement)
        self._ids = StableIds.of(brief.session)
        self._file = TranscriptFile(
            sandbox, self._ids.conversation, command.home, toolbox.is_custom
        )
        self._transcript = _FOUND[brief.start]
        self._state = ConversationState.ABSENT
        self._since = anyio.current_time()
        self._process: CliProcess | None = None
        self._starts = 0  # processes that were started for the turn which is under way
        self._starting = anyio.Lock(fast_acquire=True)
        self._up = anyio.Event()

    def _move(self, move: ConversationMove) -> None:
        self._state = TABLE[self._state, move]
        self._since = anyio.current_time()

    async def start_ahead(self, *, task_status: TaskStatus[None]) -> None:
        """Start the CLI before there is anything to tell it. If it cannot be, the turn finds out why."""
        self._move(ConversationMove.START_AHEAD)
        async with self._starting:
            task_status.started()  # from here on, a turn waits for it
            try:
                calls = ToolCalls(self._ids, self._toolbox, self._policy)
                await self._spawn(calls, resume=self._transcript is not TranscriptState.NONE)
            except RoostError as error:
                about = {"session": self._brief.session.id}
                _log.warning("not started early: %s", error.message, extra=about)
                self._up.set()
                if self._state is ConversationState.AHEAD:  # else a turn has begun meanwhile
                    self._move(ConversationMove.GIVE_UP)

    async def up(self) -> bool:
        await self._up.wait()
        return self._process is not None and not self._process.pipe.ended

    def turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        abandoned = self._state in IN_A_TURN  # what the last turn has left behind is not known
        self._move(ConversationMove.TAKE)  # now: an interrupt may come before the first output
        return self._turn(inputs, again or abandoned)

    async def _turn(self, inputs: Sequence[Entry], again: bool) -> AsyncGenerator[Output, None]:
        """Tries until the agent rests, each time in a new process if the last one died.

        A process that was there before the turn is none of its starts: it may have died while nobody
        looked, and a turn that had no part in that still has all of them.
        """
        self._starts = 0
        while True:
            try:
                async with aclosing(self._try(inputs, again)) as outputs:
                    async for output in outputs:
                        if isinstance(output, TurnEnd):
                            self._note_end(output)
                        yield output
                return
            except _Died:
                again = True
                self._move(ConversationMove.DIE)
                last = self._starts > len(_PAUSES)
                dead = self._process
                left = await self._after_death(last=last)
            for output in left:
                yield output
            if not await self._may_restart(last=last):
                break
        for output in self._given_up(dead):
            yield output

    async def _try(self, inputs: Sequence[Entry], again: bool) -> AsyncGenerator[Output, None]:
        """One process's part of a turn. :raises _Died:"""
        async with self._starting:
            process = self._process
        if process is None or process.pipe.ended or again or not process.takes(inputs):
            await self.close()
            plan, calls = await self._plan(inputs, again)
            for emit in plan.emits:
                yield emit
            self._starts += 1
            process, then = await self._start(plan, calls), plan.then
        else:
            then = await self._hand_over(process, inputs)
        while self._is_interrupted or not process.waits:
            if process.done:
                if then is None:
                    break
                await self._say(process, then)
                then = None
            for output in await process.take(await self._next(process)):
                yield output
        for output in process.end_of_turn():
            yield output

    async def _plan(self, inputs: Sequence[Entry], again: bool) -> tuple[StartPlan, ToolCalls]:
        """How to start a process for these inputs, and the calls that it will know about."""
        calls = ToolCalls(self._ids, self._toolbox, self._policy)
        has_none = self._transcript is TranscriptState.NONE
        # Whether there is a transcript, the CLI finds out soon enough: see `CliProcess.knows_nothing`.
        ends_as_the_log = self._transcript is TranscriptState.KNOWN and not again
        if has_none or (ends_as_the_log and is_plain(inputs)):
            prompt = Prompt(self._ids.prompt(inputs), blocks_of_inputs(inputs))
            return StartPlan(resume=not has_none, prompt=prompt), calls
        lost = self._transcript is TranscriptState.LOST
        transcript = None if lost else await self._file.read()
        past = await LoggedPast.read(self._brief.history(), self._unheard(inputs, transcript))
        behind = self._transcript is TranscriptState.BEHIND
        recovery = Recovery(self._ids, calls, past, inputs, again=again, behind=behind)
        if transcript is None:
            await self._file.put_aside()
            self._transcript = TranscriptState.LOST
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
            await self._file.append(plan.mark)
        process = await self._spawn(calls, resume=plan.resume, environ=plan.environ)
        await self._say(process, plan.prompt, repeated=plan.goes_on)
        return process

    async def _spawn(
        self, calls: ToolCalls, *, resume: bool, environ: Mapping[str, str] | None = None
    ) -> CliProcess:
        started = await self._sandbox.spawn(
            self._command.argv(resume=resume), environ=self._command.environ(environ or {})
        )
        pipe = CliPipe(started, self._ids.conversation, self._up.set)
        self._tasks.start_soon(pipe.pump)
        reader = FrameReader(self._ids, calls)
        self._process = process = CliProcess(
            pipe, calls, reader, self._toolbox, since=anyio.current_time()
        )
        if self._transcript is not TranscriptState.BEHIND:  # that ends with the turn which tells it
            self._transcript = TranscriptState.KNOWN
        await pipe.request("initialize", **self._command.introduction())
        return process

    async def _hand_over(self, process: CliProcess, inputs: Sequence[Entry]) -> Prompt | None:
        """Give the inputs to a CLI that runs; gives what has to wait until it is done."""
        messages = messages_in(inputs)
        prompt = (
            Prompt(self._ids.prompt(messages), blocks_of_inputs(messages)) if messages else None
        )
        for entry in inputs:
            if entry.type in ANSWERS:
                await process.answer(entry)
        if prompt is None or not process.done:
            if prompt is not None and process.waits:
                await process.drop_what_waits()
            return prompt
        await self._say(process, prompt)
        return None

    async def _say(self, process: CliProcess, prompt: Prompt, *, repeated: bool = False) -> None:
        await process.say(prompt, repeated=repeated)
        if (
            self._is_interrupted
        ):  # the process had nothing to do when that came, or was not yet there
            await process.interrupt()

    async def _next(self, process: CliProcess) -> Json:
        while True:
            try:
                return await process.pipe.next(_LOOK_UP)
            except TimeoutError:
                if self._is_overdue(process):
                    await process.pipe.kill()
                    raise _Died from None
            except anyio.EndOfStream:
                raise _Died from None

    def _is_overdue(self, process: CliProcess) -> bool:
        now = anyio.current_time()
        if self._is_interrupted and now > self._since + _STOPS_WITHIN:
            return True
        return not process.pipe.spoke and now > process.since + _SPEAKS_WITHIN

    def _note_end(self, end: TurnEnd) -> None:
        waits = end.stop_reason["type"] == "requires_action"
        self._move(ConversationMove.WAIT if waits else ConversationMove.REST)
        if self._transcript is TranscriptState.BEHIND:
            self._transcript = TranscriptState.KNOWN

    async def _after_death(self, *, last: bool) -> list[Output]:
        """What is to be said about a process that died. :raises AgentFailed: it cannot run here at all"""
        process, self._process = self._process, None
        if process is None:
            return []
        code, words = await process.pipe.exit_status()
        begins_anew = process.knows_nothing(words)
        if begins_anew:
            self._transcript = TranscriptState.LOST
        if code == _NOT_FOUND:
            raise AgentFailed(f"the agent's program cannot be started: {words}")
        outputs = process.close_request()
        if not self._is_interrupted and not (begins_anew and not last):
            said = f"The agent's process ended unexpectedly (exit code {code}). {words}".strip()
            outputs.append(Trouble("agent_failed", said, "exhausted" if last else "retrying"))
        return outputs

    async def _may_restart(self, *, last: bool) -> bool:
        """Whether the turn goes on in another process, after a pause."""
        if not (last or self._is_interrupted):
            await anyio.sleep(_PAUSES[self._starts - 1] if self._starts else 0)
        if last or self._is_interrupted:
            return False
        self._move(ConversationMove.RESTART)
        return True

    def _given_up(self, dead: CliProcess | None) -> list[Output]:
        """How a turn ends that is not tried again."""
        end = END if self._is_interrupted else GIVEN_UP
        self._move(ConversationMove.GIVE_UP)
        return [*(dead.cut_off_calls() if dead is not None else ()), end]

    async def interrupt(self) -> None:
        if self._state not in IN_A_TURN:
            return
        self._move(ConversationMove.INTERRUPT)
        process = self._process
        if process is not None and not process.done:  # else it is told right after its prompt
            await process.interrupt()

    @property
    def _is_interrupted(self) -> bool:
        return self._state is ConversationState.INTERRUPTED

    async def close(self) -> None:
        """End the CLI: by itself if it has nothing to do, else as it stands."""
        process, self._process = self._process, None
        if process is None:
            return
        if left_alone := process.not_understood():
            about = {"session": self._brief.session.id}
            _log.info("not understood of the agent: %s", left_alone, extra=about)
        if self._state in IN_A_TURN or not process.done:
            # At the end of its input it would refuse whatever waits for an answer, and go on.
            await self._kill(process.pipe)
        else:
            await process.pipe.end()

    async def _kill(self, pipe: CliPipe) -> None:
        """What the CLI has printed is logged, so it should be in its transcript as well."""
        pipe.stop_listening()
        if pipe.last_message is not None:
            await self._file.until_it_has(pipe.last_message)
        await pipe.kill()
