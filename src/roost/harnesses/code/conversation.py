"""Runs the messages of a session as code, one after the other.

An execution is begun once at most. What came of it is one event, whose id follows from the message's, so a turn that
is taken again sees in the log which of its messages are answered. Of the others, only the first can have been begun:
it is answered as aborted and not run again; those after it are run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from anyio.abc import TaskGroup, TaskStatus
from msgspec.structs import replace

from roost.domain.events import Draft, Entry
from roost.domain.execution import (
    FIELD,
    ExecutionError,
    ExecutionRequest,
    ExecutionResult,
    answer_id,
    explained,
    request_in,
    result_in,
)
from roost.errors import SandboxFailed
from roost.harnesses.code.interpreter import ResidentInterpreter
from roost.harnesses.turn_ends import END
from roost.ports.harness import Brief, Emit, Output
from roost.ports.sandbox import Sandbox

_READABLE = 4000  # characters of the output that are told as text, for people who read the session
_STOPPED = ExecutionResult(status="stopped")
_ABORTED = ExecutionResult(status="aborted")


class CodeConversation:
    """The interpreter of one session, and what it is asked."""

    def __init__(self, brief: Brief, sandbox: Sandbox, tasks: TaskGroup) -> None:
        self._brief = brief
        self._interpreter = ResidentInterpreter(sandbox, tasks)
        self._has_run: bool | None = None if brief.start.resumes else False
        self._stops = False

    def turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        self._stops = False  # now, and not when the first output is asked for: see `interrupt`
        return self._turn(inputs, again)

    async def up(self) -> bool:
        try:
            await self._interpreter.start()
        except SandboxFailed:
            return False
        return self._interpreter.is_up()

    async def interrupt(self) -> None:
        self._stops = True
        await self._interpreter.stop()

    async def start_ahead(self, *, task_status: TaskStatus[None]) -> None:
        """Start the interpreter before there is anything to run: `start` does so in any case."""
        task_status.started()

    async def start(self) -> None:
        """Have the interpreter up before anything is taken from the queue. :raises SandboxFailed: it does not start"""
        await self._interpreter.start()

    async def close(self) -> None:
        """End the interpreter, and with it all variables."""
        self._interpreter.kill()

    async def _turn(self, inputs: Sequence[Entry], again: bool) -> AsyncGenerator[Output, None]:
        messages = [entry for entry in inputs if entry.type == "user.message"]
        answered = await self._answered() if again else set()
        left = [entry for entry in messages if answer_id(entry.id) not in answered]
        for entry in left:
            may_have_begun = again and entry is left[0]
            yield Emit([await self._told(entry, may_have_begun=may_have_begun)])
        yield END

    async def _told(self, entry: Entry, *, may_have_begun: bool) -> Draft:
        """The event that says what came of a message."""
        try:
            request, code = request_in(entry)
        except msgspec.ValidationError as error:
            refused = ExecutionError("InvalidRequest", str(error))
            result = ExecutionResult(status="error", stderr=f"{error}\n", error=refused)
            return _event(entry, ExecutionRequest(id=entry.id), result)
        if may_have_begun:
            result = _ABORTED
        elif self._stops:
            result = _STOPPED
        else:
            result = await self._run(request, code)
        return _event(entry, request, result)

    async def _run(self, request: ExecutionRequest, code: str) -> ExecutionResult:
        """Run it. The first Python in an interpreter that is not the session's first says that variables are lost."""
        if request.kind != "python":
            return await self._interpreter.run(request, code)
        if self._has_run is None:
            self._has_run = await self._was_used()
        await self._interpreter.start()
        is_lost = self._has_run and self._interpreter.is_fresh
        self._has_run = True
        result = await self._interpreter.run(request, code)
        if result.restarted:  # the answer says so; the next one need not
            self._has_run = False
        return replace(result, lost=True) if is_lost else result

    async def _was_used(self) -> bool:
        """Whether an earlier interpreter of the session may have had variables."""
        async for entry in self._brief.history():
            result = result_in(entry) if entry.type == "agent.message" else None
            if result is not None and result.kind == "python":
                return True
        return False

    async def _answered(self) -> set[str]:
        return {e.id async for e in self._brief.history() if e.type == "agent.message"}


def _event(entry: Entry, request: ExecutionRequest, result: ExecutionResult) -> Draft:
    told = explained(request, result)
    fields: dict[str, Any] = {"content": [{"type": "text", "text": _readable(told)}], FIELD: told}
    return Draft.of_fields("agent.message", answer_id(entry.id), fields)


def _readable(told: ExecutionResult) -> str:
    """What came of it, as a person reads it who looks at the session."""
    parts = [told.stdout, told.stderr]
    if told.value is not None and told.value.value is not None:
        parts.append(str(told.value.value))
    parts += [f"[{image.format} image]" for image in told.images]
    text = "\n".join(part.rstrip("\n") for part in parts if part)
    if not text:
        return "(no output)"
    return text if len(text) <= _READABLE else f"{text[:_READABLE]}…"
