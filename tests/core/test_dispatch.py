"""When the dispatcher looks for work, and what it does when its database does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.core.node import message, node, texts

from roost.core.work.dispatch import Dispatcher
from roost.core.write.intake import inbox
from roost.domain.session import Lease
from roost.errors import LeaseLost, Unavailable
from roost.ports.notifier import WORK


class Stubborn:
    """A log that, for a while, has lost the node's lease and cannot renew it."""

    def __init__(self, log: Any, times: int) -> None:
        self._log = log
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def claim(self, node: str, limit: int) -> list[Lease]:
        if self.times:
            raise LeaseLost()
        leases: list[Lease] = await self._log.claim(node, limit)
        return leases

    async def renew(self, node: str, ttl: float) -> None:
        if self.times:
            self.times -= 1
            raise Unavailable("the disk is full")
        await self._log.renew(node, ttl)


async def test_a_message_calls_for_a_claim_unless_a_runner_has_heard_it(tmp_path: Path):
    async with node(tmp_path, working=False) as roost:
        heard, unheard = await roost.session(), await roost.session()
        with (
            roost.notifier.subscribe(WORK) as work,
            roost.notifier.subscribe(inbox(heard.id)) as runner,
        ):
            await roost.say(heard, "Hello")
            assert runner.notified() and not work.notified()
            await roost.say(unheard, "Hello")
            assert work.notified()


async def test_a_node_outlives_a_lease_that_it_cannot_renew_at_once(tmp_path: Path):
    async with node(tmp_path, working=False) as roost, anyio.create_task_group() as tasks:
        log = Stubborn(roost.dispatcher._log, times=0)
        roost.dispatcher._log = roost.dispatcher.member._log = log
        await tasks.start(roost.dispatcher.run, 1)
        log.times = 1
        session = await roost.session(message("Hello"))
        assert len(texts(await roost.until(session, "session.status_idle"))) == 1
        assert log.times == 0
        roost.dispatcher.stop()


@pytest.mark.parametrize("silent", [False, True])
async def test_a_node_whose_database_is_gone_stops_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: bool
):
    async def refuse(node: str, ttl: float) -> None:
        await anyio.sleep(3600 if silent else 0)
        raise Unavailable("the connection was refused")

    monkeypatch.setattr("roost.core.work.nodes._GOODBYE_SECONDS", 0.01)
    async with node(tmp_path, working=False) as roost, anyio.create_task_group() as tasks:
        await tasks.start(roost.dispatcher.run, 0)
        monkeypatch.setattr(roost.dispatcher.member._log, "renew", refuse)
        roost.dispatcher.stop()


async def test_a_node_that_was_stopped_is_known_to_be_gone_at_once(tmp_path: Path):
    async with node(tmp_path, working=False, lease_seconds=600) as roost:
        async with anyio.create_task_group() as tasks:
            await tasks.start(roost.dispatcher.run, 0)
            assert await roost.store.nodes.lives(roost.dispatcher.node)
            roost.dispatcher.stop()
        assert not await roost.store.nodes.lives(roost.dispatcher.node)


class Full:
    """A machine that has room for so many more; remembers how many were at work at most."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.left = 0
        self.most = 0

    def room(self) -> int:
        self.most = max(self.most, self._dispatcher.running)
        return self.left

    def short(self) -> bool:
        return False


async def test_a_machine_without_room_works_on_one_session_after_the_other(tmp_path: Path):
    async with node(tmp_path, working=False) as roost, anyio.create_task_group() as tasks:
        full = Full(roost.dispatcher)
        roost.dispatcher._machine = full
        sessions = [await roost.session(message("Hello")) for _ in range(4)]
        await tasks.start(roost.dispatcher.run, 1)
        for session in sessions:
            assert len(texts(await roost.until(session, "session.status_idle"))) == 1
        assert full.most == 1
        full.left = 3
        assert roost.dispatcher.room == 3
        roost.dispatcher.stop()
        assert roost.dispatcher.room == 0
