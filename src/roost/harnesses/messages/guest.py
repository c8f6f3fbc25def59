"""The other end of `roost/guest/tools.py`: one process in a session's sandbox, which runs its tools.

It is started by the first call, and again after it has died. What it says is a sandbox's word: frames are bounded,
and what does not look like an answer is a sandbox that failed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

import roost
from roost.errors import SandboxFailed
from roost.harnesses.guest_frames import greeted
from roost.harnesses.messages.tools import ToolAnswer
from roost.harnesses.permissions import Json
from roost.ports.harness import Confinement
from roost.ports.sandbox import Process, Sandbox
from roost.ports.sandbox_provider import Mount

INSIDE: Final = "/run/roost/tools.py"
"""Where a sandbox shows the program."""

_PROGRAMS: Final = Path(roost.__file__).parent / "guest"
MOUNTS: Final = (
    Mount(_PROGRAMS / "tools.py", INSIDE),
    Mount(_PROGRAMS / "fetch.py", INSIDE.replace("tools", "fetch")),
)

_LARGEST_IN: Final = 60 * 1024**2
_LONGEST: Final = 700.0  # seconds; the tools have shorter limits of their own


class _Pending:
    """A call that was sent, and its answer."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.answer: ToolAnswer | None = None


class GuestTools:
    """Runs the built-in tools of one session. Its task groups are the conversation's. With a confinement, what
    searches find is kept to it, too.
    """

    def __init__(
        self, session_id: str, sandbox: Sandbox, tasks: TaskGroup, confinement: Confinement | None
    ) -> None:
        self._session_id = session_id
        self._bounds = [] if confinement is None else [confinement.root, *confinement.hidden]
        self._sandbox = sandbox
        self._tasks = tasks
        self._starting = anyio.Lock()
        self._process: Process | None = None
        self._pending: dict[str, _Pending] = {}
        self._why = ""

    async def start(self) -> None:
        """Have the process up. :raises SandboxFailed: there is no sandbox, or it does not start in it"""
        async with self._starting:
            if self._process is None:
                error = await self._tasks.start(self._serve)
                if error is not None:
                    raise error

    async def run(self, call: str, tool: str, given: Json) -> ToolAnswer:
        """Carry out a call; its id is sent once. :raises SandboxFailed: nobody knows how it ended"""
        body = msgspec.json.encode({"call": call, "tool": tool, "input": given})
        if len(body) > _LARGEST_IN:
            return ToolAnswer.error(f"{tool}: the input is too large")
        pending = self._pending[call] = _Pending()
        try:
            with anyio.fail_after(_LONGEST):
                await self._send(body)
                await pending.done.wait()
        except TimeoutError:
            self.kill()
            raise SandboxFailed(f"{tool} did not end, and the agent's tools were killed") from None
        finally:
            self._pending.pop(call, None)
        if pending.answer is None:
            raise SandboxFailed(f"the agent's tools have ended while {tool} ran{self._why}")
        return pending.answer

    async def cancel(self, calls: list[str]) -> None:
        """Ask calls to end soon. Whoever waits for them gets an answer, or an error."""
        for call in calls:
            try:
                await self._send(msgspec.json.encode({"cancel": call}))
            except SandboxFailed:
                return

    def kill(self) -> None:
        """End the process: what it runs gets no answer any more, and the next call starts another."""
        if self._process is not None:
            self._process.signal(9)

    async def _send(self, body: bytes) -> None:
        if self._process is None:
            raise SandboxFailed(f"the agent's tools have ended{self._why}")
        await self._process.send(len(body).to_bytes(4, "big") + body)

    async def _serve(self, *, task_status: TaskStatus[Exception | None]) -> None:
        """Start the process and read what it says until it ends. A start that fails is given back: raised, it
        would end the conversation.
        """
        has_begun = False
        try:
            self._why = ""
            process, frames = await self._spawned()
            try:
                self._process = process
                has_begun = True
                task_status.started(None)
                async for frame in frames:
                    self._take(frame)
                self._why = f": {process.errors()[-500:].decode(errors='replace').strip()}"
            finally:
                self._process = None
                process.signal(9)
        except Exception as error:  # noqa: BLE001 - given to whoever waits
            self._why = f": {error}"
            if not has_begun:
                task_status.started(error)
        finally:
            for pending in self._pending.values():
                pending.done.set()

    async def _spawned(self) -> tuple[Process, AsyncIterator[Json]]:
        """The process, once it has said hello, and what it says then. :raises SandboxFailed:"""
        # It is told whose it is only for whoever looks at the list of processes.
        start = 'exec python3 -I -S "$ROOST_TOOLS" . "$0" "$@"'
        command = ["/bin/sh", "-c", start, self._session_id, *map(str, self._bounds)]
        process = await self._sandbox.spawn(command, environ={"ROOST_TOOLS": INSIDE})
        return process, await greeted(process, "the agent's tools", "python3 and bash")

    def _take(self, frame: Json) -> None:
        pending = self._pending.get(str(frame.get("done")))
        if pending is not None:
            pending.answer = ToolAnswer.checked(
                frame.get("content"), is_error=frame.get("is_error") is not False
            )
            pending.done.set()
