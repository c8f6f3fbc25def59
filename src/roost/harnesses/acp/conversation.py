"""A session's conversation with an agent that speaks the Agent Client Protocol, over as many processes as it takes.

It goes through the states of `conversation_states`: the agent is a process that may
die at any moment, a turn talks to the one that runs or starts one, and while the agent waits for permission the
turn rests. What differs is how a new process learns where the conversation stands: see `recovery`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from hashlib import blake2b
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from roost.domain.events import Entry
from roost.errors import AgentFailed, RoostError
from roost.harnesses.acp.agents import STATE, AcpAgent
from roost.harnesses.acp.calls import AcpCalls
from roost.harnesses.acp.process import AcpProcess, AgentRefused, ProcessDied, prompt_blocks
from roost.harnesses.acp.recovery import AcpPlan, AcpRecovery
from roost.harnesses.acp.updates import Replay, UpdateReader
from roost.harnesses.acp.wire import AcpPipe, Json
from roost.harnesses.content import text_block
from roost.harnesses.conversation_states import (
    IN_A_TURN,
    TABLE,
    ConversationMove,
    ConversationState,
)
from roost.harnesses.logged_past import ANSWERS, LoggedPast, is_plain, messages_in
from roost.harnesses.permissions import Policy
from roost.harnesses.stable_ids import StableIds
from roost.harnesses.turn_ends import END, GIVEN_UP
from roost.ports.harness import Brief, Output, Trouble, TurnEnd
from roost.ports.sandbox import Sandbox

_log = logging.getLogger(__name__)
_PAUSES: Final = (0.1, 1.0, 5.0)  # seconds before each start after the first that one turn makes
_LOOK_UP = 2.0  # seconds between looks at the clock while the agent is silent
_STOPS_WITHIN = 10.0  # seconds an agent has to heed an interrupt before it is killed
_MORE_WITHIN = 0.2  # seconds in which an agent that asks may ask for more, before the turn rests
_WRITES_WITHIN = 0.25  # seconds after which the agent's record has what the agent has said
_PATIENCE = 60.0  # seconds; a disk that takes longer is broken
_NOT_FOUND = 127
_READ: Final = 'pwd; cat "$ROOST_STATE/session.json" 2>/dev/null; exit 0'
_WRITE: Final = 'cd "$ROOST_STATE" 2>/dev/null || mkdir -p "$ROOST_STATE" && cd "$ROOST_STATE" && cat > new && mv new session.json'
_INSTRUCTIONS: Final = "These are your instructions for this session:\n\n"


class AgentsSession(msgspec.Struct, frozen=True):
    """What the agent calls the session, and which instructions it was told in it."""

    id: str
    instructions: str = ""


class SessionNote(msgspec.Struct, frozen=True):
    """What was found in the session's home: the directory it works in, and the agent's session."""

    cwd: str
    session: AgentsSession | None


class StateFile:
    """Where it is kept which of the agent's sessions a session is: beside the agent's own record, so that both are
    stored and restored together.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._environ = {"ROOST_STATE": f"/home/sandbox/{STATE}"}

    async def read(self) -> SessionNote:
        """What is there. Whatever a program inside has written in its place counts as nothing."""
        output = await self._run(_READ)
        cwd, _, rest = output.partition(b"\n")
        try:
            session = msgspec.json.decode(rest, type=AgentsSession)
        except msgspec.MsgspecError:
            session = None
        return SessionNote(cwd.decode(errors="replace"), session)

    async def write(self, session: AgentsSession) -> None:
        """Write it down, at once."""
        await self._run(_WRITE, msgspec.json.encode(session))

    async def _run(self, script: str, data: bytes = b"") -> bytes:
        try:
            with anyio.fail_after(_PATIENCE):
                process = await self._sandbox.spawn(["sh", "-c", script], environ=self._environ)
                if data:
                    await process.send(data)
                await process.close_input()
                output = bytearray()
                while piece := await process.receive():
                    output += piece[: 65536 - len(output)]
                await process.wait()
                return bytes(output)
        except TimeoutError:
            raise RoostError("the session's home could not be reached") from None


class AcpConversation:
    """See `ports.harness.Conversation`. `tasks` run beside it, until `close`."""

    def __init__(
        self, name: str, brief: Brief, sandbox: Sandbox, agent: AcpAgent, tasks: TaskGroup
    ) -> None:
        self._name = name
        self._brief = brief
        self._sandbox = sandbox
        self._agent = agent
        self._tasks = tasks
        self._definition = brief.session.spec.agent
        self._policy = Policy(self._definition, others=True)
        self._ids = StableIds.of(brief.session)
        self._file = StateFile(sandbox)
        self._resumes = brief.start.resumes
        self._state = ConversationState.ABSENT
        self._since = anyio.current_time()
        self._process: AcpProcess | None = None
        self._opened: Replay | None = None  # what the process replayed, until it is told something
        self._note: SessionNote = SessionNote("", None)
        self._told: AgentsSession | None = None  # its instructions were said, and perhaps not heard
        self._logged: set[str] = set()
        self._starts = 0  # processes that were started for the turn which is under way
        self._starting = anyio.Lock(fast_acquire=True)
        self._up = anyio.Event()

    def _move(self, move: ConversationMove) -> None:
        self._state = TABLE[self._state, move]
        self._since = anyio.current_time()

    async def start_ahead(self, *, task_status: TaskStatus[None]) -> None:
        """Start the agent before there is anything to tell it. If it cannot be, the turn finds out why."""
        self._move(ConversationMove.START_AHEAD)
        async with self._starting:
            task_status.started()  # from here on, a turn waits for it
            try:
                await self._start()
            except (RoostError, ProcessDied) as error:
                about = {"session": self._brief.session.id}
                _log.warning("not started early: %s", error, extra=about)
                await self.close()
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
                            waits = output.stop_reason["type"] == "requires_action"
                            self._move(ConversationMove.WAIT if waits else ConversationMove.REST)
                        yield output
                return
            except ProcessDied:
                again = self._resumes = True
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
        """One process's part of a turn. :raises ProcessDied:"""
        process = await self._process_for(inputs, again)
        if process.was_told:
            then = await self._hand_over(process, inputs)
        else:
            plan = await self._plan(process, inputs, again)
            for emit in plan.emits:
                yield emit
            said = prompt_blocks(plan.messages, process.capabilities.prompt_capabilities)
            then = None if plan.over else plan.blocks(said)
            self._resumes = True  # whatever becomes of this process
        async with aclosing(self._until_it_rests(process, then)) as outputs:
            async for output in outputs:
                yield output
        await self._note_instructions()
        for output in process.end_of_turn():
            yield output

    async def _process_for(self, inputs: Sequence[Entry], again: bool) -> AcpProcess:
        async with self._starting:
            process = self._process
        # One that was told nothing has asked nothing that an answer could be for.
        takes = process is not None and (process.was_told or is_plain(inputs))
        if process is not None and takes and not process.pipe.ended and not again:
            return process
        await self.close()
        self._starts += 1
        return await self._start()

    async def _until_it_rests(
        self, process: AcpProcess, then: list[Json] | None
    ) -> AsyncGenerator[Output, None]:
        """What it does until it is done or waits; `then` is what it is told when it is done."""
        while not await self._rests(process):
            if process.done:
                if process.follow_up is not None and not self._is_interrupted:
                    then = [text_block(process.follow_up), *(then or [])]
                if then is None:
                    return
                for output in await self._say(process, then):
                    yield output
                then = None
            for output in await process.take(await self._next(process)):
                yield output
            await process.reply()  # now that what it asks about is logged

    async def _rests(self, process: AcpProcess) -> bool:
        """Whether it waits for an answer, and has no more to say first, such as another call."""
        waits = process.waits and not self._is_interrupted
        return waits and not await process.pipe.has_more(_MORE_WITHIN)

    async def _start(self) -> AcpProcess:
        """A process that has a session of its own: the one that it had before, if there is one.

        :raises ProcessDied: :raises AgentFailed: it cannot be used
        """
        self._note = await self._file.read()
        started = await self._sandbox.spawn(self._agent.command, environ=self._agent.environ)
        pipe = AcpPipe(started)
        self._tasks.start_soon(pipe.pump)
        asks = self._agent.profile.abilities.approvals
        calls = AcpCalls(self._ids, self._policy, self._servers, self._logged, asks=asks)
        reader = UpdateReader(calls, self._name)
        self._process = process = AcpProcess(pipe, calls, reader, since=anyio.current_time())
        await process.introduce()
        self._opened = await self._loaded(process) if self._resumes else None
        if self._opened is None:
            await self._begin(process)
        self._up.set()
        return process

    async def _loaded(self, process: AcpProcess) -> Replay | None:
        """The session that the agent had before, as it replays it; None if there is none to be had."""
        session, can = self._note.session, process.capabilities
        if session is None or not can.load_session:
            return None
        try:
            return await process.load(session.id, self._place(process))
        except AgentRefused as refused:
            about = {"session": self._brief.session.id}
            _log.info("the agent does not load its session: %s", refused, extra=about)
            return None

    async def _begin(self, process: AcpProcess) -> None:
        """Begin a new session of the agent's, and write down which one it is."""
        try:
            session = AgentsSession(await process.begin(self._place(process)))
        except AgentRefused as refused:
            raise AgentFailed(f"the agent does not begin a session: {refused}") from None
        await self._file.write(session)
        self._note = SessionNote(self._note.cwd, session)

    def _place(self, process: AcpProcess) -> Json:
        servers = self._mcp() if process.capabilities.mcp_capabilities.http else []
        meta = {"_meta": self._agent.meta} if self._agent.meta else {}
        return {"cwd": self._note.cwd, "mcpServers": servers, **meta}

    @property
    def _servers(self) -> Mapping[str, str]:
        return {s["name"]: s["url"] for s in self._definition.get("mcp_servers") or []}

    def _mcp(self) -> list[Json]:
        """The agent's MCP servers, at the addresses they have inside; their tokens are put on outside."""
        given = []
        for name, url in self._servers.items():
            local = self._brief.addresses.get(url)
            token = {"name": "Authorization", "value": "Bearer placeholder"}
            headers = [] if local is None else [token]
            given.append({"type": "http", "name": name, "url": local or url, "headers": headers})
        return given

    async def _plan(self, process: AcpProcess, inputs: Sequence[Entry], again: bool) -> AcpPlan:
        """What a process that was told nothing is told first."""
        replay = self._opened
        if not self._resumes and not again:
            plan = AcpPlan(messages=messages_in(inputs))
        else:
            past = await LoggedPast.read(self._brief.history())
            self._logged |= past.ids
            recovery = AcpRecovery(self._ids, process.calls, past, inputs, again=again)
            if replay is not None and recovery.is_lost(replay):
                replay = self._opened = None
                await self._begin(process)
            plan = recovery.anew() if replay is None else recovery.after(replay)
        if not plan.over:  # else it is still told nothing
            self._opened = None
        return await self._instructed(plan)

    async def _instructed(self, plan: AcpPlan) -> AcpPlan:
        """With the instructions of the agent's definition, if this session of the agent's was not told them."""
        system, session = self._definition.get("system") or "", self._note.session
        digest = blake2b(system.encode(), digest_size=8).hexdigest() if system else ""
        if session is None or session.instructions == digest or plan.over:
            return plan
        self._told = AgentsSession(session.id, digest)
        told = [_INSTRUCTIONS + system] if system else []
        return msgspec.structs.replace(plan, notes=[*told, *plan.notes])

    async def _note_instructions(self) -> None:
        """Write down that they were told. Only now: a process that dies earlier may not have heard them, and then
        they are told again.
        """
        session, self._told = self._told, None
        if session is not None:
            await self._file.write(session)
            self._note = SessionNote(self._note.cwd, session)

    async def _hand_over(self, process: AcpProcess, inputs: Sequence[Entry]) -> list[Json] | None:
        """Give the inputs to an agent that runs; gives what is said when it is done."""
        for entry in inputs:
            if entry.type in ANSWERS:
                process.answer(entry)
        messages = messages_in(inputs)
        if messages and process.waits:
            await process.interrupt()  # nobody has answered, and the runner has closed it
        await process.reply()
        can = process.capabilities.prompt_capabilities
        return prompt_blocks(messages, can) if messages else None

    async def _say(self, process: AcpProcess, blocks: Sequence[Json]) -> list[Output]:
        outputs = await process.prompt(blocks)
        if self._is_interrupted:  # it had nothing to do when that came, or was not yet there
            await process.interrupt()
        return outputs

    async def _next(self, process: AcpProcess) -> Json:
        while True:
            try:
                return await process.pipe.next(_LOOK_UP)
            except TimeoutError:
                if self._is_interrupted and anyio.current_time() > self._since + _STOPS_WITHIN:
                    await process.pipe.kill()
                    raise ProcessDied from None
            except anyio.EndOfStream:
                raise ProcessDied from None

    async def _after_death(self, *, last: bool) -> list[Output]:
        """What is to be said about a process that died. :raises AgentFailed: it cannot run here at all"""
        process, self._process = self._process, None
        self._up.set()
        if process is None:
            return []
        code, words = await process.pipe.exit_status()
        if code == _NOT_FOUND:
            raise AgentFailed(f"the agent's program cannot be started: {words}")
        outputs = process.closed()
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
        """End the agent: by itself if it has nothing to do, else as it stands."""
        process, self._process = self._process, None
        if process is None:
            return
        if left_alone := process.not_understood():
            about = {"session": self._brief.session.id}
            _log.info("not understood of the agent: %s", left_alone, extra=about)
        if self._state in IN_A_TURN or not process.done:
            await anyio.sleep(_WRITES_WITHIN)
            await process.pipe.kill()
        else:
            await process.pipe.end()
