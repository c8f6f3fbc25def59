"""A worker: polls for sessions of a self-hosted environment, runs their calls, and brings the results.

A call is run once by it. Killed in the middle of one, it says nothing more, and the server tells the model that the
outcome is unknown.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Any, Final, Protocol

import anyio
import httpx2

from roost.client.work import ClaimedWork, Json, WorkClient, WorkRefused
from roost.domain.work_item import NO_HEARTBEAT

_log = logging.getLogger(__name__)
_EMPTY: Final = 1.0  # seconds until the next poll, if there was nothing
_LONGEST_PAUSE: Final = 30.0
_SHORTEST_BEAT: Final = 1.0
_SLOWEST_BEAT: Final = 30.0
_TTL: Final = 90.0  # seconds, until the server says otherwise
_LONGEST_REFUSAL: Final = 1000  # characters of what is told of a result that was not taken
_UNREACHABLE: Final = (httpx2.HTTPError, OSError)


class ToolRunner(Protocol):
    """Runs calls of one session's tools."""

    @property
    def names(self) -> frozenset[str]:
        """The tools it has; calls of others are somebody else's."""
        ...

    async def run(self, call_id: str, name: str, given: Json) -> tuple[list[Json], bool]:
        """The content of a call's result, and whether that is an error."""
        ...

    async def cancel(self, call_id: str) -> None:
        """End a call soon: nobody waits for it any more."""
        ...


OpenTools = Callable[
    [Json, Callable[[str, str], Awaitable[bytes]]], AbstractAsyncContextManager[ToolRunner]
]
"""Prepares what runs the calls of a session. It is given the session, and what fetches a skill by id and version."""


class Worker:
    """Serves up to `most` sessions at a time. One is given back when it was idle for `max_idle` seconds."""

    def __init__(
        self, client: WorkClient, tools: OpenTools, *, most: int, max_idle: float = 60
    ) -> None:
        self._client = client
        self._tools = tools
        self._slots = anyio.Semaphore(most)
        self._max_idle = max_idle
        self._failures: Counter[str] = Counter()  # of sessions, since they were last served
        self._not_before: dict[str, float] = {}  # when they may be tried again here

    async def run(self) -> None:
        """Poll and serve, until cancelled. :raises WorkRefused: the server will never let it in"""
        failures = 0
        async with anyio.create_task_group() as tasks:
            while True:
                await self._slots.acquire()
                work = None
                try:
                    work = await self._claimed()
                    failures = 0
                except (WorkRefused, *_UNREACHABLE) as error:
                    if isinstance(error, WorkRefused) and error.lasting:
                        raise
                    failures += 1
                    _log.warning("cannot poll: %s", error)
                if work is None:
                    self._slots.release()
                    await anyio.sleep(_pause(failures))
                else:
                    tasks.start_soon(self._served, work)

    async def _claimed(self) -> ClaimedWork | None:
        work = await self._client.poll()
        if work is None:
            return None
        if self._not_before.get(work.session_id, 0) > anyio.current_time():
            return None  # not acknowledged, it is handed out again after seconds, to others as well
        try:
            await self._client.ack(work)
        except WorkRefused as refused:  # of this item: the others are served
            _log.warning("%s is not to be had: %s", work.session_id, refused)
            return None
        _log.info("serves %s", work.session_id)
        return work

    async def _served(self, work: ClaimedWork) -> None:
        """Serve one item to its end; what fails there fails there only."""
        lease = _HeldLease(self._client, work)
        calls: _SessionCalls | None = None
        failed = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lease.keep, tasks.cancel_scope)
                session = await self._client.session(work)

                async def skill(skill_id: str, version: str) -> bytes:
                    return await self._client.skill(work, skill_id, version)

                async with self._tools(session, skill) as tools:
                    calls = _SessionCalls(self._client, work, tools, self._max_idle)
                    await calls.until_idle()
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - one bad item must not end the others
            failed = True
            causes = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
            _log.error("%s failed: %s", work.session_id, causes[0], exc_info=causes[0])
        finally:
            # Cut off in the middle of a call, it says nothing: when the lease ends, the server tells that the
            # outcome is unknown. Given back, the session would have the next worker make the call again.
            if not lease.lost and (calls is None or calls.running is None):
                with (
                    anyio.move_on_after(10, shield=True),
                    suppress(WorkRefused, *_UNREACHABLE),
                ):
                    await self._client.stop(work)
            _log.info("has left %s", work.session_id)
        self._note(work.session_id, failed=failed)
        self._slots.release()

    def _note(self, session_id: str, *, failed: bool) -> None:
        """One that failed is offered again at once. Others may take it; here it is not begun again and again. No slot
        waits for that: one bad session must not take them all.
        """
        if failed:
            self._failures[session_id] += 1
            pause = _pause(self._failures[session_id])
            self._not_before[session_id] = anyio.current_time() + pause
        else:
            self._failures.pop(session_id, None)
            self._not_before.pop(session_id, None)


def _pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return float(min(_EMPTY * 2 ** min(failures, 10), _LONGEST_PAUSE))


class _HeldLease:
    """Keeps the lease of an item. `lost`: it belongs to somebody else now."""

    def __init__(self, client: WorkClient, work: ClaimedWork) -> None:
        self._client = client
        self._work = work
        self.lost = False

    async def keep(self, serving: anyio.CancelScope) -> None:
        """Send heartbeats; ends what is served when the item is not ours any more."""
        last, ttl, interval = NO_HEARTBEAT, _TTL, _SLOWEST_BEAT
        heard = anyio.current_time()
        while True:
            try:
                with anyio.fail_after(interval):
                    beat = await self._client.heartbeat(self._work, last)
                last, ttl, heard = beat["last_heartbeat"], beat["ttl_seconds"], anyio.current_time()
                interval = max(_SHORTEST_BEAT, min(ttl / 2, _SLOWEST_BEAT))
                if beat["state"] in ("stopping", "stopped") or not beat["lease_extended"]:
                    break
            except WorkRefused as refused:
                if refused.lasting:
                    self.lost = True
                    break
            except (TimeoutError, *_UNREACHABLE):
                if anyio.current_time() - heard > ttl:
                    self.lost = True
                    break
            await anyio.sleep(interval)
        _log.warning("%s is to be left", self._work.session_id)
        serving.cancel()


class _SessionCalls:
    """What a session's events say of its calls: which are to be made, and whether it still works."""

    def __init__(
        self, client: WorkClient, work: ClaimedWork, tools: ToolRunner, max_idle: float
    ) -> None:
        self._client = client
        self._work = work
        self._tools = tools
        self._max_idle = max_idle
        self._calls: dict[str, Json] = {}
        self._verdicts: dict[str, str] = {}
        self._answered: set[str] = set()
        self._idle = False
        self._over = False
        self._is_known = False
        # The call whose result the server does not have yet: it is made, or was when it was cut off.
        self.running: str | None = None
        self._is_made = False
        self._changed = anyio.Event()

    async def until_idle(self) -> None:
        """Make calls one after the other, until the session is over or was idle for long."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            while not self._over:
                call = self._due()
                if call is not None:
                    await self._make(call)
                    continue
                with anyio.move_on_after(self._max_idle if self._idle else None) as waited:
                    await self._changed.wait()
                if waited.cancelled_caught:
                    break
            tasks.cancel_scope.cancel()

    def _due(self) -> Json | None:
        """The first call that is allowed and has no result."""
        for id, call in self._calls.items():
            permission = call.get("evaluated_permission") or "allow"
            is_allowed = permission == "allow" or self._verdicts.get(id) == "allow"
            if self._is_known and is_allowed and id not in self._answered:
                return call
        return None

    async def _make(self, call: Json) -> None:
        """Make one call and bring its result. It is shielded from nothing: whoever has lost the item stops."""
        id, self._is_made = call["id"], False
        self.running = id
        content, is_error = await self._tools.run(id, call["name"], call["input"])
        self._is_made = True
        if id not in self._answered:
            result = {"type": "user.tool_result", "tool_use_id": id, "is_error": is_error}
            await self._bring({**result, "content": content})
            self._answered.add(id)
        self.running = None

    async def _bring(self, result: Json) -> None:
        """If the result is not taken as it is, one that says so: without any, the call would be made again.

        :raises WorkRefused: that is not taken either
        """
        try:
            await self._bring_as_is(result)
        except WorkRefused as refused:
            _log.error("the result of %s was refused: %s", result["tool_use_id"], refused)
            text = f"The call was made, but the server did not take its result ({refused})."
            content = [{"type": "text", "text": text[:_LONGEST_REFUSAL]}]
            await self._bring_as_is({**result, "is_error": True, "content": content})

    async def _bring_as_is(self, result: Json) -> None:
        """As often as it takes: the lease says when that is in vain. :raises WorkRefused: it never will be taken"""
        pause = 0.5
        while True:
            try:
                return await self._client.send(self._work, result)
            except (WorkRefused, *_UNREACHABLE) as error:
                if isinstance(error, WorkRefused) and error.lasting:
                    raise
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _follow(self) -> None:
        """Read the session's events, again from the beginning if the stream breaks."""
        pause = 0.5
        while not self._over:
            try:
                async with aclosing(self._client.events(self._work)) as events:
                    async for event in events:
                        pause = 0.5
                        if event:
                            await self._take(event)
                        else:  # all that there was is read
                            self._is_known = True
                            self._signal()
            except (WorkRefused, *_UNREACHABLE) as error:
                if isinstance(error, WorkRefused) and error.lasting:
                    self._over = True
            self._signal()
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _take(self, event: Mapping[str, Any]) -> None:
        match event["type"]:
            case "agent.tool_use" if event["name"] in self._tools.names:
                self._calls.setdefault(event["id"], dict(event))
            case "user.tool_result":
                await self._close(event["tool_use_id"])
            case "user.tool_confirmation":
                self._verdicts[event["tool_use_id"]] = event["result"]
            case "session.status_running" | "session.status_idle":
                # What waits for somebody else, a permission or a custom tool, does not keep others waiting.
                self._idle = event["type"] == "session.status_idle"
            case "session.status_terminated" | "session.deleted":
                self._over = True
            case _:
                return
        if self._is_known:
            self._signal()

    async def _close(self, call_id: str) -> None:
        """A call has its result; if somebody else has given it one, it need not go on here."""
        self._answered.add(call_id)
        self._calls.pop(call_id, None)
        if call_id == self.running and not self._is_made:
            await self._tools.cancel(call_id)

    def _signal(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
