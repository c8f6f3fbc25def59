"""Our own worker, against a client that notes what it is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest

from roost.client.work import ClaimedWork, WorkClient, WorkRefused
from roost.client.worker import Worker

pytestmark = pytest.mark.anyio
CALL = {"type": "agent.tool_use", "id": "call_1", "name": "bash", "input": {"command": "true"}}
ENDED = {"type": "session.status_terminated"}


class NotedClient:
    """Offers the given items once, each with one call."""

    def __init__(self, *items: str, refused: str = "", failing: str = "") -> None:
        self.items = [ClaimedWork(item, f"of {item}", "token") for item in items]
        self.refused, self.failing = refused, failing
        self.tries = 0
        self.sent: list[Any] = []
        self.stopped: list[str] = []
        self.left = anyio.Event()
        self._changed = anyio.Event()

    async def poll(self) -> ClaimedWork | None:
        return self.items.pop(0) if self.items else None

    async def ack(self, work: ClaimedWork) -> None:
        if work.id == self.refused:
            raise WorkRefused(404, "it is gone")

    async def session(self, work: ClaimedWork) -> dict[str, Any]:
        if work.id == self.failing:
            self.tries += 1
            self.items.append(work)  # it is offered again as soon as it is given back
            raise WorkRefused(500, "not now")
        return {}

    async def heartbeat(self, _work: ClaimedWork, _last: str) -> dict[str, Any]:
        about = {"state": "active", "lease_extended": True}
        return {**about, "last_heartbeat": "then", "ttl_seconds": 90}

    async def events(self, _work: ClaimedWork) -> AsyncGenerator[dict[str, Any], None]:
        yield CALL
        yield {}
        await self._changed.wait()
        yield ENDED

    async def send(self, _work: ClaimedWork, result: Any) -> None:
        self.sent.append(result)
        self._changed.set()

    async def stop(self, work: ClaimedWork) -> None:
        self.stopped.append(work.id)
        self.left.set()


class Tools:
    """Has one tool, whose calls end when `free` is set."""

    names = frozenset({"bash"})

    def __init__(self, *, free: bool) -> None:
        self.begun, self._free = anyio.Event(), anyio.Event()
        if free:
            self._free.set()

    async def run(self, _id: str, _name: str, _given: object) -> tuple[list[Any], bool]:
        self.begun.set()
        await self._free.wait()
        return [], False

    async def cancel(self, _id: str) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def opened(
        self, _session: Any, _skill: Callable[[str, str], Awaitable[bytes]]
    ) -> AsyncGenerator[Tools, None]:
        yield self


async def test_told_to_end_in_the_middle_of_a_call_it_does_not_give_the_session_back() -> None:
    client, tools = NotedClient("one"), Tools(free=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Worker(cast(WorkClient, client), tools.opened, most=1).run)
        with anyio.fail_after(60):
            await tools.begun.wait()
        tasks.cancel_scope.cancel()
    assert (client.sent, client.stopped) == ([], [])


async def test_cut_off_while_it_brings_a_result_it_does_not_give_the_session_back() -> None:
    class Silent(NotedClient):
        async def send(self, _work: ClaimedWork, result: Any) -> None:
            self.sent.append(result)
            bringing.set()
            await anyio.sleep_forever()

    bringing = anyio.Event()
    client, tools = Silent("one"), Tools(free=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Worker(cast(WorkClient, client), tools.opened, most=1).run)
        with anyio.fail_after(60):
            await bringing.wait()
        tasks.cancel_scope.cancel()
    assert (len(client.sent), client.stopped) == (1, []), (
        "the call has run: nobody is to run it again"
    )


@pytest.mark.parametrize("refused", [1, 2])
async def test_a_result_that_is_refused_is_told(
    refused: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one that is refused as well, nothing is known here: the call ends with the lease."""

    class Refusing(NotedClient):
        async def send(self, work: ClaimedWork, result: Any) -> None:
            if len(self.sent) < refused:
                self.sent.append(result)
                raise WorkRefused(413, "it is too large")
            await super().send(work, result)

    caplog.set_level("INFO")
    client, tools = Refusing("one"), Tools(free=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Worker(cast(WorkClient, client), tools.opened, most=1).run)
        with anyio.fail_after(60):
            while "has left of one" not in caplog.text:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    said = client.sent[1]
    assert (len(client.sent), said["tool_use_id"], said["is_error"]) == (2, "call_1", True)
    assert "it is too large" in said["content"][0]["text"]
    assert client.stopped == (["one"] if refused == 1 else [])


async def test_an_item_that_is_refused_does_not_end_the_others() -> None:
    client, tools = NotedClient("gone", "one", refused="gone"), Tools(free=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Worker(cast(WorkClient, client), tools.opened, most=1).run)
        with anyio.fail_after(60):
            await client.left.wait()
        tasks.cancel_scope.cancel()
    assert [each["tool_use_id"] for each in client.sent] == ["call_1"]
    assert client.stopped == ["one"]


async def test_a_session_that_fails_is_not_begun_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Offered(NotedClient):
        """Offers the bad one whenever it is asked."""

        async def poll(self) -> ClaimedWork | None:
            return self.items[0]

        async def session(self, _work: ClaimedWork) -> dict[str, Any]:
            tries.append(now)
            if len(tries) == 5:
                enough.set()
            raise WorkRefused(500, "not now")

    now = 0.0
    tries: list[float] = []
    enough = anyio.Event()
    sleep = anyio.sleep

    async def noted(seconds: float) -> None:
        nonlocal now
        if seconds == 30:  # until the next heartbeat
            await anyio.sleep_forever()
        now += seconds
        await sleep(0)

    client, tools = Offered("bad"), Tools(free=True)
    async with anyio.create_task_group() as tasks:
        monkeypatch.setattr("roost.client.worker.anyio.sleep", noted)
        monkeypatch.setattr("roost.client.worker.anyio.current_time", lambda: now)
        tasks.start_soon(Worker(cast(WorkClient, client), tools.opened, most=1).run)
        with anyio.fail_after(60):
            await enough.wait()
        tasks.cancel_scope.cancel()
    assert tries[:5] == [0, 2, 6, 14, 30]


async def test_a_session_that_fails_does_not_keep_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep = anyio.sleep

    async def noted(seconds: float) -> None:
        await (sleep(0) if seconds <= 1 else anyio.sleep_forever())

    client, tools = NotedClient("bad", failing="bad"), Tools(free=True)
    client.items.extend([client.items[0]] * 4)  # offered again and again
    client.items.append(ClaimedWork("good", "of good", "token"))
    async with anyio.create_task_group() as tasks:
        monkeypatch.setattr("roost.client.worker.anyio.sleep", noted)
        monkeypatch.setattr("roost.client.worker.anyio.current_time", lambda: 0.0)
        tasks.start_soon(Worker(cast(WorkClient, client), tools.opened, most=2).run)
        with anyio.fail_after(60):
            while "good" not in client.stopped:
                await sleep(0.01)
        tasks.cancel_scope.cancel()
    assert client.stopped.count("bad") <= 2, "once in each slot, and then it is not taken up"


@pytest.mark.parametrize("reason", ["end_turn", "requires_action"])
async def test_a_session_that_waits_for_somebody_else_is_given_back(reason: str) -> None:
    class Waiting(NotedClient):
        async def events(self, _work: ClaimedWork) -> AsyncGenerator[dict[str, Any], None]:
            yield {**CALL, "name": "another's"}
            yield {"type": "session.status_idle", "stop_reason": {"type": reason}}
            yield {}
            await anyio.sleep_forever()

    client, tools = Waiting("one"), Tools(free=True)
    async with anyio.create_task_group() as tasks:
        worker = Worker(cast(WorkClient, client), tools.opened, most=1, max_idle=0.01)
        tasks.start_soon(worker.run)
        with anyio.fail_after(60):
            await client.left.wait()
        tasks.cancel_scope.cancel()
    assert (client.sent, client.stopped) == ([], ["one"])
