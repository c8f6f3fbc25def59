"""The other end of `roost/guest/interpreter.py`: one process in a session's sandbox, which runs its code.

It is started with the conversation or by the first execution, and again after it has died. What it says is a
sandbox's word: frames are bounded, and what is no answer is an interpreter that died.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from roost.domain.execution import ExecutionRequest, ExecutionResult
from roost.errors import SandboxFailed
from roost.harnesses.guest_frames import frame_of, greeted
from roost.ports.sandbox import Process, Sandbox

INSIDE: Final = "/run/roost/interpreter.py"
"""Where a sandbox shows the program."""

_ENDS_WITHIN: Final = 60.0  # seconds that are left to the program, which keeps time itself
_DIED: Final = ExecutionResult(status="died", restarted=True)


class ResidentInterpreter:
    """The interpreter of one session. `is_fresh`: nothing was run in the process that is up."""

    def __init__(self, sandbox: Sandbox, tasks: TaskGroup) -> None:
        self.is_fresh = True
        self._sandbox = sandbox
        self._tasks = tasks
        self._starting = anyio.Lock()
        self._process: Process | None = None
        self._running = ""
        self._ended = anyio.Event()
        self._answer: ExecutionResult | None = None

    async def start(self) -> None:
        """Have the process up. :raises SandboxFailed: there is no sandbox, or it does not start in it"""
        async with self._starting:
            if self._process is None:
                error = await self._tasks.start(self._serve)
                if error is not None:
                    raise error

    def is_up(self) -> bool:
        """Whether the process is there."""
        return self._process is not None

    async def run(self, request: ExecutionRequest, code: str) -> ExecutionResult:
        """Run a piece of code to its end. :raises SandboxFailed: it was not begun"""
        await self.start()
        process = self._process
        if process is None:
            raise SandboxFailed("the interpreter has ended")
        self._running, self._answer, self._ended = request.id, None, anyio.Event()
        if request.kind == "python":
            self.is_fresh = False
        try:
            with anyio.move_on_after(request.seconds + _ENDS_WITHIN):
                await process.send(frame_of(_asked(request, code)))
                await self._ended.wait()
        except SandboxFailed:
            pass  # it has ended, and may have begun: that is the answer
        finally:
            self._running = ""
        return self._taken()

    def _taken(self) -> ExecutionResult:
        """The answer. Without one, the process is not as it should be, and is not asked again."""
        answer, self._answer = self._answer, None
        if answer is None:
            self.kill()
            return _DIED
        return answer

    async def stop(self) -> None:
        """Ask what runs to end soon."""
        if self._process is not None and self._running:
            try:
                await self._process.send(frame_of({"stop": self._running}))
            except SandboxFailed:
                return

    def kill(self) -> None:
        """End the process with all that it runs; the next execution starts another."""
        if self._process is not None:
            self._process.signal(9)
            self._process = None

    async def _serve(self, *, task_status: TaskStatus[Exception | None]) -> None:
        has_begun = False
        process: Process | None = None
        try:
            process, frames = await self._spawned()
            self._process, self.is_fresh = process, True
            has_begun = True
            task_status.started(None)
            async for frame in frames:
                self._take(frame)
        except Exception as error:  # noqa: BLE001 - given to whoever waits
            if not has_begun:
                task_status.started(error)
        finally:
            if process is not None:
                process.signal(9)
                if self._process is process:
                    self._process = None
                self._ended.set()

    async def _spawned(self) -> tuple[Process, AsyncIterator[dict[str, Any]]]:
        """The process, once it has said hello, and what it says then. :raises SandboxFailed:"""
        command = ["/bin/sh", "-c", 'exec python3 -I "$ROOST_INTERPRETER"']
        process = await self._sandbox.spawn(command, environ={"ROOST_INTERPRETER": INSIDE})
        return process, await greeted(process, "the interpreter", "python3, 3.9 or later")

    def _take(self, frame: dict[str, Any]) -> None:
        if self._running and frame.pop("done", None) == self._running:
            try:
                self._answer = msgspec.convert(frame, ExecutionResult)
            except msgspec.ValidationError:
                self._answer = None  # what it says is no answer, so it is none of ours any more
            self._ended.set()


def _asked(request: ExecutionRequest, code: str) -> dict[str, Any]:
    given = list(request.argv) if request.kind == "exec" else code
    return {
        "run": request.id,
        "kind": request.kind,
        "code": given,
        "seconds": request.seconds,
        "most": request.most,
    }
