"""Many sessions with work at once: how many agents start, in which order, and who gives way."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.core.node import Node, message, node, texts, use_parts
from tests.core.test_sandboxes import FakeEgress, FakeProvider, SandboxedHarness, sandboxes

from roost.core.work.start_limit import StartLimit
from roost.domain.events import Entry
from roost.domain.session import Session, Status
from roost.ports.harness import Brief, Conversation, Output
from roost.ports.notifier import WORK
from roost.stores.notifier import LocalNotifier
from roost.testing.null_parts import runner_parts


class Sleepy:
    """A conversation that does nothing before its agent is up."""

    def __init__(self, inner: Conversation) -> None:
        self.risen = anyio.Event()
        self._inner = inner

    async def up(self) -> bool:
        await self.risen.wait()
        return True

    async def turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        await self.up()
        async with aclosing(self._inner.turn(inputs, again=again)) as outputs:
            async for output in outputs:
                yield output

    async def interrupt(self) -> None:
        await self._inner.interrupt()


class Slow(SandboxedHarness):
    """An agent that comes up when a test says so; `opened` are its sessions, in order."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.opened: list[str] = []
        self._sleepy: list[Sleepy] = []
        self._changed = anyio.Event()

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        async with super().open(brief) as conversation:
            sleepy = Sleepy(conversation)
            self.opened.append(brief.session.id)
            self._sleepy.append(sleepy)
            self._changed.set()
            self._changed = anyio.Event()
            yield sleepy

    async def until_opened(self, count: int) -> None:
        with anyio.fail_after(60):
            while len(self.opened) < count:
                await self._changed.wait()

    def come_up(self, number: int) -> None:
        self._sleepy[number].risen.set()


@asynccontextmanager
async def slow_node(
    data: Path, provider: FakeProvider, most: int
) -> AsyncGenerator[tuple[Node, Slow], None]:
    """A node that begins to work only when it is told to."""
    async with node(data, working=False) as roost:
        store = roost.store
        opens = sandboxes(data / "vault", provider, FakeEgress(), roost)
        scripted = roost.harnesses["scripted"]
        slow = Slow(scripted)
        use_parts(
            roost,
            runner_parts(
                *(store, roost.notifier, {"in-sandbox": slow, "scripted": scripted}),
                sandboxes=opens,
                limit=StartLimit(roost.notifier, most),
            ),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_run_when_notified, roost)
            yield roost, slow
            roost.dispatcher.stop()


async def _run_when_notified(roost: Node) -> None:
    with roost.notifier.subscribe("begin") as subscription:
        await subscription.wait(60)
    async with anyio.create_task_group() as tasks:
        await tasks.start(roost.dispatcher.run, 0.01)


def busy(text: str) -> str:
    """A prompt that the model answers after ten minutes."""
    error = {"status": 429, "times": 1, "headers": {"retry-after": "600"}}
    return f"SCRIPT{json.dumps([{'error': error, 'text': text}])}"


async def statuses(roost: Node, sessions: Sequence[Session]) -> set[Status]:
    found = [await roost.store.sessions.find(session.id) for session in sessions]
    return {session.state.status for session in found}


async def test_no_more_agents_start_at_once_than_allowed_and_the_oldest_wait_starts_first(
    tmp_path: Path,
):
    async with slow_node(tmp_path, FakeProvider(), most=2) as (roost, slow):
        sessions = [await roost.session(message("Hello"), harness="in-sandbox") for _ in range(7)]
        roost.notifier.notify("begin")
        for up in range(5):
            await slow.until_opened(up + 2)
            while await statuses(roost, sessions[up + 2 :]) != {Status.RUNNING}:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await anyio.sleep(0.02)
            assert len(slow.opened) == up + 2
            assert roost.dispatcher.starting == 2
            slow.come_up(up)
        for up in (5, 6):
            await slow.until_opened(up + 1)
            slow.come_up(up)
        for session in sessions:
            assert len(texts(await roost.until(session, "session.status_idle"))) == 1
        assert sorted(slow.opened[:2]) == sorted(session.id for session in sessions[:2])
        assert slow.opened[2:] == [session.id for session in sessions[2:]]
        assert roost.dispatcher.starting == 0


async def test_sessions_that_wait_for_a_room_keep_nobody_else_from_starting(tmp_path: Path):
    async with slow_node(tmp_path, FakeProvider(available=False), most=1) as (roost, _):
        homeless = [await roost.session(message("Hello"), harness="in-sandbox") for _ in range(3)]
        quick = await roost.session(message("Hello"))
        roost.notifier.notify("begin")
        assert len(texts(await roost.until(quick, "session.status_idle"))) == 1
        assert await statuses(roost, homeless) == {Status.RESCHEDULING}


async def test_a_start_that_failed_keeps_nobody_else_from_starting_until_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.work.failures._PAUSES", (600,))
    provider = FakeProvider()
    provider.taken = 1
    async with slow_node(tmp_path, provider, most=1) as (roost, slow):
        failed = await roost.session(message("Hello"), harness="in-sandbox")
        roost.notifier.notify("begin")
        await roost.until(failed, "session.status_rescheduled")
        other = await roost.session(message("Hello"), harness="in-sandbox")
        await slow.until_opened(1)
        assert slow.opened == [other.id]
        slow.come_up(0)
        assert len(texts(await roost.until(other, "session.status_idle"))) == 1


async def test_a_session_that_waits_out_a_pause_gives_its_place_to_another(tmp_path: Path):
    async with node(tmp_path, max_runners=1) as roost:
        waiting = await roost.session(message(busy("late")))
        await roost.until(waiting, "session.status_rescheduled")
        for _ in range(2):
            other = await roost.session(message("Hello"))
            assert len(texts(await roost.until(other, "session.status_idle"))) == 1
        assert await statuses(roost, [waiting]) == {Status.RESCHEDULING}


async def test_only_so_many_wait_on_top_of_those_that_work(tmp_path: Path):
    async with node(tmp_path, max_runners=1) as roost:
        for text in ("one", "two"):
            waiting = await roost.session(message(busy(text)))
            await roost.until(waiting, "session.status_rescheduled")
        third = await roost.session(message("Hello"))
        await anyio.sleep(0.1)
        assert roost.dispatcher.running == 2
        assert len(await roost.store.log.inputs(third.id)) == 1


async def test_a_start_that_ended_twice_counts_once():
    notifier = LocalNotifier()
    wakes = StartLimit(notifier, 2)
    wakes.expect("a")
    wakes.expect("a")
    await wakes.begin("a")
    await wakes.begin("b")
    assert (len(wakes), wakes.free) == (2, 0)
    with notifier.subscribe(WORK) as subscription:
        wakes.end("a")
        wakes.end("a")
        assert (len(wakes), wakes.free) == (1, 1)
        assert subscription.notified()
