"""The bell within one process keeps the contract; so does the one of the tests, while it loses nothing."""

from __future__ import annotations

import pytest

from roost.domain.events import Preview
from roost.stores.bell import LocalBell
from roost.testing.bell_contract import BellContract
from roost.testing.lossy_bell import LossyBell, every_ring, no_ring


class TestLocalBell(BellContract):
    @pytest.fixture
    async def bell(self) -> LocalBell:
        return LocalBell()


class TestLossyBell(BellContract):
    @pytest.fixture
    async def bell(self) -> LossyBell:
        return LossyBell(LocalBell(), no_ring, pace=1)


async def test_a_lossy_bell_loses_what_it_is_told_to_and_delivers_it_late():
    bell = LossyBell(LocalBell(), every_ring)
    with bell.listen("here") as ear, bell.switchboard() as board:
        board.plug("here")
        assert not bell.ring("here")
        assert not await ear.wait(1) and not await board.wait(1)
        assert not ear.rung() and board.rung() == []
        bell.loses = lambda topic: topic == "there"
        bell.ring("there")
        assert bell.lost == ["here", "there"]
        assert bell.ring("here")
        assert await ear.wait(60) and ear.rung() and board.rung() == ["here"]
        bell.deliver()
        assert ear.rung() and bell.lost == []


def test_a_reader_that_is_far_behind_holds_a_bounded_text() -> None:
    bell = LocalBell()
    with bell.listen("s1", previews=True) as ear:
        for n in range(2000):
            bell.publish("s1", Preview("e1", "agent.message", f"{n:05}" * 200, 1))
        held = ear.previews()
        assert 0 < sum(len(preview.text) for preview in held) <= 256 * 1024
        assert "".join(p.text for p in held).startswith("00000")
        bell.publish("s1", Preview("e2", "agent.message", "another", 2))
        assert [preview.text for preview in ear.previews()] == ["another"]
