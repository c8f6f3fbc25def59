"""The contract of a bell: subclass, give the fixture `bell`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import anyio
import pytest

from roost.domain.events import Preview
from roost.ports.bell import Bell


class BellContract:
    """What followers and runners rely on, within one node."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop the server runs on."""
        return "asyncio"

    @pytest.fixture
    async def bell(self) -> Bell:
        """A bell that nobody listens to."""
        raise NotImplementedError

    async def test_a_ring_is_heard_by_all_who_listen_there_and_by_nobody_else(
        self, bell: Bell
    ) -> None:
        with bell.listen("here") as one, bell.listen("here") as two, bell.listen("there") as other:
            assert bell.ring("here")
            assert await one.wait(60) and await two.wait(60)
            assert one.rung() and two.rung()
            assert not bell.ring("nowhere")
            assert not one.rung()
            assert not other.rung()

    async def test_a_switchboard_hears_only_where_it_is_plugged_in_and_each_topic_once(
        self, bell: Bell
    ) -> None:
        with bell.switchboard() as board:
            bell.ring("a")
            for topic in ("a", "b", "a"):
                board.plug(topic)
            for topic in ("b", "a", "b", "c"):
                bell.ring(topic)
            assert await board.wait(60)
            assert sorted(board.rung()) == ["a", "b"]
            assert board.rung() == []
            board.unplug("a")
            board.unplug("a")
            bell.ring("a")
            assert not await board.wait(0.01)

    async def test_a_switchboard_wakes_whoever_waits(self, bell: Bell) -> None:
        with bell.switchboard() as board:
            board.plug("a")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._ring_soon, bell, "a")
                assert await board.wait(60)
            assert board.rung() == ["a"]

    async def test_a_switchboard_is_shown_previews_in_order_with_their_sessions(
        self, bell: Bell
    ) -> None:
        shown = [Preview("e1", "agent.message", text, 0) for text in ("", "a", "b")]
        with bell.switchboard() as board:
            board.plug("s1")
            bell.publish("s2", shown[0])
            for preview in shown:
                bell.publish("s1", preview)
            assert await board.wait(60)
            assert board.previews() == [("s1", preview) for preview in shown]
            assert board.previews() == []

    async def test_a_switchboard_that_is_put_away_leaves_nothing(self, bell: Bell) -> None:
        with bell.switchboard() as board:
            board.plug("a")
        bell.ring("a")
        assert board.rung() == []

    async def _ring_soon(self, bell: Bell, topic: str) -> None:
        await anyio.sleep(0.01)
        bell.ring(topic)
