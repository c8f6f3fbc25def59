"""A session's conversation with Codex, over as many processes as it takes.

A process of Codex lives as long as it is needed and may die at any moment. A turn talks to the one that runs, or
starts one and tells it the conversation from the log (`history`); when it dies in the middle, the turn starts
another one in the same way. Approvals, questions and custom tools are questions that Codex asks us: while one is
open the turn rests, and the answer comes as another turn.

Where it stands is one of the states that every conversation with a program has (`conversation_states`).
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec.structs import replace

from roost.domain.events import Entry
from roost.domain.usage import Usage
from roost.errors import AgentFailed, RoostError
from roost.harnesses.codex.answers import returned
from roost.harnesses.codex.documents import CodexDocuments
from roost.harnesses.codex.history import CodexHistory
from roost.harnesses.codex.launch import CodexCommand
from roost.harnesses.codex.process import CodexProcess
from roost.harnesses.codex.subagents import LeadingCodex
from roost.harnesses.codex.tools import CodexCall, CodexTools, command_of
from roost.harnesses.codex.wire import AppServerPipe, object_in, text_in
from roost.harnesses.content import blocks_of_inputs, blocks_of_result, text_block
from roost.harnesses.conversation_states import (
    IN_A_TURN,
    TABLE,
    ConversationMove,
    ConversationState,
)
from roost.harnesses.json_lines import Json
from roost.harnesses.logged_past import ANSWERS, UNKNOWN, LoggedPast, messages_in
from roost.harnesses.permissions import SUBAGENT
from roost.harnesses.retries import fix_the_key
from roost.harnesses.stable_ids import StableIds, thread_of
from roost.harnesses.turn_ends import END, GIVEN_UP, span_end
from roost.ports.harness import Brief, Emit, Output, Trouble, TurnEnd
from roost.ports.sandbox import Sandbox

_log = logging.getLogger(__name__)
_PAUSES: Final = (0.1, 1.0, 5.0)  # seconds before each start after the first that one turn makes
_LOOK_UP = 2.0  # seconds between looks at the clock while Codex is silent
_SPEAKS_WITHIN = 60.0  # seconds a Codex that was started has to say anything before it is killed
_STOPS_WITHIN = 10.0  # seconds a Codex has to heed an interrupt before it is killed
_LONGEST_COMMAND = 600.0  # seconds, of one that was allowed while Codex was away
_MOST_PRINTED = 1_000_000  # characters of what it prints
_NOT_FOUND = 127
_SERVER_STARTED: Final = "mcpServer/startupStatus/updated"
_NOT_RUN: Final = "This call was not run: the session was restarted before its turn came. Make it again if it is needed."
_GONE: Final = (
    "The session was restarted while this subagent was running. It is gone, and there is no report of it. "
    "Check what took effect before you start another one. What it had said and done:\n"
)


class _Died(Exception):
    """Codex ended in the middle of a turn."""


class CodexConversation:
    """See `ports.harness.Conversation`. `tasks` run beside it, until `close`."""

    def __init__(
        self,
        brief: Brief,
        sandbox: Sandbox,
        command: CodexCommand,
        tools: CodexTools,
        tasks: TaskGroup,
    ) -> None:
        self._brief = brief
        self._sandbox = sandbox
        self._command = command
        self._tools = tools
        self._tasks = tasks
        self._documents = CodexDocuments(sandbox, command.environ(), readable=tools.has_shell)
        self._ids = StableIds.of(brief.session)
        self._state = ConversationState.ABSENT
        self._since = anyio.current_time()
        self._process: CodexProcess | None = None
        self._starts = 0  # processes that were started for the turn which is under way
        self._starting = anyio.Lock(fast_acquire=True)
        self._up = anyio.Event()

    def _move(self, move: ConversationMove) -> None:
        self._state = TABLE[self._state, move]
        self._since = anyio.current_time()

    async def start_ahead(self, *, task_status: TaskStatus[None]) -> None:
        """Start Codex before there is anything to tell it. If it cannot be, the turn finds out why."""
        self._move(ConversationMove.START_AHEAD)
        async with self._starting:
            task_status.started()  # from here on, a turn waits for it
            try:
                await self._spawn()
            except (RoostError, _Died) as error:
                about = {"session": self._brief.session.id}
                _log.warning("not started early: %s", error, extra=about)
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
        """Tries until the agent rests, each time in a new process if the last one died."""
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
                left = await self._after_death(last=last)
            for output in left:
                yield output
            if self._is_interrupted or last:
                break
            await anyio.sleep(_PAUSES[self._starts - 1] if self._starts else 0)
            if self._is_interrupted:
                break
            self._move(ConversationMove.RESTART)
        end = END if self._is_interrupted else GIVEN_UP
        self._move(ConversationMove.GIVE_UP)
        yield end

    async def _try(self, inputs: Sequence[Entry], again: bool) -> AsyncGenerator[Output, None]:
        """One process's part of a turn. :raises _Died:"""
        async with self._starting:
            process = self._process
        if process is not None and process.told and not process.pipe.ended and not again:
            begun = self._hand_over(process, inputs)
        else:
            begun = self._take_up(inputs, again)
        async with aclosing(begun) as outputs:
            async for output in outputs:
                yield output
                if isinstance(output, TurnEnd):
                    return
        async with aclosing(self._listen()) as outputs:
            async for output in outputs:
                yield output

    async def _hand_over(
        self, process: CodexProcess, inputs: Sequence[Entry]
    ) -> AsyncGenerator[Output, None]:
        """Give the inputs to a Codex that runs: answers first, a message once it has nothing left to do."""
        for entry in inputs:
            if entry.type in ANSWERS:
                await process.answer(await self._documents.placed(entry))
        messages = [await self._documents.placed(entry) for entry in messages_in(inputs)]
        if not messages:
            return
        if not process.done:
            if not any(entry.type in ANSWERS for entry in inputs):
                await (
                    process.interrupt()
                )  # nobody has answered what waits: the runner has closed it
            async with aclosing(self._listen(until_done=True)) as outputs:
                async for output in outputs:
                    yield output
        for output in await process.say(blocks_of_inputs(messages), self._command.turn()):
            yield output

    async def _take_up(self, inputs: Sequence[Entry], again: bool) -> AsyncGenerator[Output, None]:
        """Go on from what the log has: settle the calls that are open there, and tell a process the rest."""
        async with aclosing(self._settle(inputs, again)) as outputs:
            async for output in outputs:
                yield output
        history = await self._history(inputs)  # again, with what has just been logged
        if history.waiting:
            yield TurnEnd({"type": "requires_action", "event_ids": history.waiting})
            return
        if not history.due or self._is_interrupted:
            yield END
            return
        process = await self._fresh()
        await process.inject(history.items())
        for output in await process.say([], self._command.turn()):
            yield output
        if self._is_interrupted:  # it came before there was anything to interrupt
            await process.interrupt()

    async def _settle(self, inputs: Sequence[Entry], again: bool) -> AsyncGenerator[Output, None]:
        """End what the log has begun: a request to the model, and calls that wait for nobody."""
        history = await self._history(inputs)
        if history.open_span is not None:
            yield Emit([span_end(history.open_span, Usage(), error=True)])
        for call in history.settled_first():
            answer = history.answers.get(call.event_id)
            if call.waits and answer is None:  # of a subagent, which is gone
                result = returned(call, [text_block(_NOT_RUN)], is_error=True)
                yield Emit([result], unblocks=[call.event_id])
            else:
                content, failed = await self._outcome(call, answer, again)
                yield Emit([returned(call, content, is_error=failed)])

    async def _history(self, inputs: Sequence[Entry]) -> CodexHistory:
        given = {entry.id for entry in inputs}
        log = (await self._documents.placed(entry) async for entry in self._brief.history())
        return await CodexHistory.read(log, self._tools, given)

    async def _outcome(
        self, call: CodexCall, answer: Entry | None, again: bool
    ) -> tuple[list[Json], bool]:
        """What a call without a result has come to, and whether it failed."""
        if call.tool.name == SUBAGENT:
            return await self._account(call), True
        if call.waits and answer is not None and answer.fields["result"] != "allow":
            said = answer.fields.get("deny_message")
            return [text_block(said or f"The user did not allow {call.tool.name}.")], True
        if not call.waits or again:
            return [text_block(UNKNOWN)], True
        changed = None if answer is None else answer.fields.get("modified_input")
        call = call if changed is None else replace(call, input=changed)
        if call.tool.kind == "mcp":
            return await self._call_server(call)
        argv = command_of(call)
        return ([text_block(_NOT_RUN)], True) if argv is None else await self._carry_out(argv)

    async def _account(self, call: CodexCall) -> list[Json]:
        """What the log has of a subagent that was cut off."""
        past = await LoggedPast.read(self._brief.history())
        return [text_block(_GONE + past.in_words(past.of_thread(thread_of(call.event_id))))]

    async def _call_server(self, call: CodexCall) -> tuple[list[Json], bool]:
        """Call an MCP server's tool, by way of a Codex that did not ask for it itself."""
        process = await self._fresh()
        asked = await process.pipe.request(
            "mcpServer/tool/call",
            threadId=process.thread,
            server=self._tools.server_of(call.tool.server),
            tool=call.tool.name,
            arguments=call.input,
        )
        try:
            result = await self._response(process, asked)
        except AgentFailed as error:
            return [text_block(error.message)], True
        return blocks_of_result(result.get("content")), bool(result.get("isError"))

    async def _carry_out(self, argv: Sequence[str]) -> tuple[list[Json], bool]:
        """Run a command that was allowed after the Codex that had asked for it was gone."""
        process = await self._sandbox.spawn(argv)
        printed, code = bytearray(), None
        with anyio.move_on_after(_LONGEST_COMMAND):
            await process.close_input()
            while (data := await process.receive()) and not self._is_interrupted:
                printed += data[: _MOST_PRINTED - len(printed)]
            code = None if data else await process.wait()
        if code is None:
            process.signal(signal.SIGKILL)
            return [text_block("This command was stopped before it ended.")], True
        text = printed.decode(errors="replace").rstrip("\n")
        said = text if code == 0 else f"Exit code {code}\n{text}".rstrip("\n")
        return ([text_block(said)] if said else []), code != 0

    async def _fresh(self) -> CodexProcess:
        """A process that was told nothing yet: the one that was started ahead, or a new one."""
        process = self._process
        if process is not None and not process.told and not process.pipe.ended:
            return process
        await self.close()
        self._starts += 1
        return await self._spawn()

    async def _spawn(self) -> CodexProcess:
        started = await self._sandbox.spawn(self._command.argv(), environ=self._command.environ())
        pipe = AppServerPipe(started)
        self._tasks.start_soon(pipe.pump)
        about_key = fix_the_key("openai", self._brief.session.spec.model_vault)
        now = anyio.current_time()
        inner = self._command.thread(of_subagent=True)
        parts = (pipe, self._tools, self._ids, about_key)
        process = LeadingCodex(*parts, subagent=inner, since=now)
        self._process = process
        try:
            about = {"name": "roost", "title": "Roost", "version": "1"}
            first = await pipe.request(
                "initialize", clientInfo=about, capabilities={"experimentalApi": True}
            )
            await self._response(process, first)
            await pipe.notify("initialized")
            begun = await pipe.request("thread/start", **self._command.thread())
            result = await self._response(process, begun)
        finally:
            self._up.set()
        process.thread = text_in(object_in(result, "thread"), "id")
        return process

    async def _response(self, process: CodexProcess, request: int) -> Json:
        """Wait for what Codex answers. What it says before has nothing to do with a turn."""
        while True:
            frame = await self._next(process)
            if frame.get("method") == _SERVER_STARTED:
                process.held.append(frame)  # for the log, once there is a turn
            if frame.get("id") == request and "method" not in frame:
                if "error" in frame:
                    said = text_in(object_in(frame, "error"), "message")
                    raise AgentFailed(f"Codex refuses: {said}"[:2000])
                return object_in(frame, "result")

    async def _listen(self, *, until_done: bool = False) -> AsyncGenerator[Output, None]:
        """What Codex does until it has nothing left to do, or waits for somebody. :raises _Died:"""
        process = self._process
        if process is None:
            raise _Died
        while not process.done and (self._is_interrupted or until_done or not process.waits):
            frame = process.ready() or await self._next(process)
            for output in await process.take(frame):
                yield output
            await process.after()
        if not until_done:
            for output in process.end_of_turn():
                yield output

    async def _next(self, process: CodexProcess) -> Json:
        while True:
            try:
                return await process.pipe.next(_LOOK_UP)
            except TimeoutError:
                if self._is_overdue(process):
                    await process.pipe.kill()
                    raise _Died from None
            except anyio.EndOfStream:
                raise _Died from None

    def _is_overdue(self, process: CodexProcess) -> bool:
        now = anyio.current_time()
        if self._is_interrupted and now > self._since + _STOPS_WITHIN:
            return True
        return not process.pipe.spoke and now > process.since + _SPEAKS_WITHIN

    def _note_end(self, end: TurnEnd) -> None:
        waits = end.stop_reason["type"] == "requires_action"
        self._move(ConversationMove.WAIT if waits else ConversationMove.REST)

    async def _after_death(self, *, last: bool) -> list[Output]:
        """What is to be said about a process that died. :raises AgentFailed: it cannot run here at all"""
        process, self._process = self._process, None
        if process is None:
            return []
        code, words = await process.pipe.exit_status()
        if code == _NOT_FOUND:
            raise AgentFailed(f"the agent's program cannot be started: {words}")
        outputs = process.close_request()
        if not self._is_interrupted:
            said = f"The agent's process ended unexpectedly (exit code {code}). {words}".strip()
            outputs.append(Trouble("agent_failed", said, "exhausted" if last else "retrying"))
        return outputs

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
        """End Codex: by itself if it has nothing to do, else as it stands."""
        process, self._process = self._process, None
        if process is None:
            return
        if left_alone := dict(process.unknown + process.pipe.dropped):
            about = {"session": self._brief.session.id}
            _log.info("not understood of the agent: %s", left_alone, extra=about)
        if self._state in IN_A_TURN or not process.done:
            await process.pipe.kill()
        else:
            await process.pipe.end()
