"""Making the calls of an agent: in its sandbox, and at its MCP servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.abc import TaskGroup

from roost.domain.events import Draft
from roost.errors import RoostError
from roost.harnesses.confinement import ToolRefused
from roost.harnesses.logged_past import UNKNOWN
from roost.harnesses.messages.guest import GuestTools
from roost.harnesses.messages.journal import MCP_TOOLS, LoggedCall
from roost.harnesses.messages.mcp import McpClient
from roost.harnesses.messages.mcp_transports import McpFailed
from roost.harnesses.messages.tools import ToolAnswer
from roost.harnesses.model_requests import Stop
from roost.harnesses.permissions import Json, Policy
from roost.ports.drafts import new_draft

_AT_ONCE: Final = 8
_ENDS_WITHIN: Final = 5.0  # seconds that a call has to end after an interrupt


@dataclass(frozen=True)
class RunningTools:
    """What carries out the calls of one conversation. `servers` are those that can be reached, by their names."""

    guest: GuestTools
    servers: Mapping[str, McpClient]

    async def listed(self, name: str, url: str) -> Draft:
        """The tools of a server, for the log; or why the agent goes on without them."""
        server = self.servers.get(name)
        try:
            if server is None:
                raise McpFailed("it can be reached only by sessions that are sandboxed")
            return new_draft(MCP_TOOLS, name=name, url=url, tools=await server.tools())
        except McpFailed as failed:
            error = {
                "type": "mcp_connection_failed_error",
                "mcp_server_name": name,
                "message": f"The agent goes on without the MCP server {name}: {failed}.",
                "retry_status": {"type": "retrying"},
            }
            return new_draft("session.error", error=error)


_Ended = tuple[LoggedCall, ToolAnswer | RoostError]


class CallWave:
    """Calls that are made beside each other."""

    def __init__(
        self, wave: Sequence[LoggedCall], tools: RunningTools, policy: Policy, tasks: TaskGroup
    ) -> None:
        self._left = {call.id: call for call in wave}
        self._tools = tools
        self._policy = policy
        self._tasks = tasks
        self._scope = anyio.CancelScope()
        self._ended, self._results = anyio.create_memory_object_stream[_Ended](len(wave))
        self._until: float | None = None
        self._outside: list[anyio.CancelScope] = []  # calls that are made by somebody else

    async def results(self, stop: Stop) -> AsyncGenerator[tuple[LoggedCall, ToolAnswer], None]:
        """What they come to, in the order in which they end. Interrupted, what does not end soon is unknown.

        :raises SandboxFailed: when all others have ended: what they say counts
        """
        failed: RoostError | None = None
        self._tasks.start_soon(self._make_all, list(self._left.values()))
        unheard = len(self._left)
        try:
            while unheard and (ended := await self._next(stop)) is not None:
                unheard -= 1
                call, answer = ended
                if isinstance(answer, RoostError):
                    failed = answer
                else:
                    del self._left[call.id]
                    yield call, answer
            if failed is not None and not stop.asked:
                raise failed
            for call in self._left.values():
                yield call, ToolAnswer.error(UNKNOWN)
        finally:
            self._scope.cancel()
            self._results.close()

    async def _next(self, stop: Stop) -> _Ended | None:
        """One that has ended; None: it was interrupted, and nothing has ended in time."""
        if not stop.asked:
            with stop.cutting_short():
                return await self._results.receive()
        if self._until is None:
            self._until = anyio.current_time() + _ENDS_WITHIN
            for scope in self._outside:
                scope.cancel()
            await self._tools.guest.cancel(list(self._left))
        with anyio.CancelScope(deadline=self._until):
            return await self._results.receive()
        self._tools.guest.kill()
        return None

    async def _make_all(self, wave: Sequence[LoggedCall]) -> None:
        places = anyio.Semaphore(_AT_ONCE)
        with self._scope, self._ended:
            async with anyio.create_task_group() as tasks:
                for call in wave:
                    tasks.start_soon(self._make, call, places)

    async def _make(self, call: LoggedCall, places: anyio.Semaphore) -> None:
        async with places:
            answer: ToolAnswer | RoostError
            try:
                given = self._policy.confined(call.tool, call.input)
                answer = await self._run(call, given)
            except ToolRefused as refusal:
                answer = ToolAnswer.error(str(refusal))
            except RoostError as error:
                answer = error
            await self._ended.send((call, answer))

    async def _run(self, call: LoggedCall, given: Json) -> ToolAnswer:
        if call.tool.kind == "builtin":
            return await self._tools.guest.run(call.id, call.tool.name, given)
        with anyio.CancelScope() as scope:
            self._outside.append(scope)
            return await self._tools.servers[call.tool.server].call(call.tool.name, given)
        return ToolAnswer.error(UNKNOWN)
