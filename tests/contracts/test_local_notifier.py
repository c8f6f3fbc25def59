"""The notifier within one process keeps the contract; so does the one of the tests, while it loses nothing."""

from __future__ import annotations

import pytest

from roost.domain.events import Preview
from roost.stores.notifier import LocalNotifier
from roost.testing.lossy_notifier import LossyNotifier, every_notification, no_notification
from roost.testing.notifier_contract import NotifierContract


class TestLocalNotifier(NotifierContract):
    @pytest.fixture
    async def notifier(self) -> LocalNotifier:
        return LocalNotifier()


class TestLossyNotifier(NotifierContract):
    @pytest.fixture
    async def notifier(self) -> LossyNotifier:
        return LossyNotifier(LocalNotifier(), no_notification, pace=1)


async def test_a_lossy_notifier_loses_what_it_is_told_to_and_delivers_it_late():
    notifier = LossyNotifier(LocalNotifier(), every_notification)
    with notifier.subscribe("here") as subscription, notifier.subscribe_many() as board:
        board.add("here")
        assert not notifier.notify("here")
        assert not await subscription.wait(1) and not await board.wait(1)
        assert not subscription.notified() and board.notified() == []
        notifier.loses = lambda topic: topic == "there"
        notifier.notify("there")
        assert notifier.lost == ["here", "there"]
        assert notifier.notify("here")
        assert (
            await subscription.wait(60) and subscription.notified() and board.notified() == ["here"]
        )
        notifier.deliver()
        assert subscription.notified() and notifier.lost == []


def test_a_reader_that_is_far_behind_holds_a_bounded_text() -> None:
    notifier = LocalNotifier()
    with notifier.subscribe("s1", previews=True) as subscription:
        for n in range(2000):
            notifier.publish("s1", Preview("e1", "agent.message", f"{n:05}" * 200, 1))
        held = subscription.previews()
        assert 0 < sum(len(preview.text) for preview in held) <= 256 * 1024
        assert "".join(p.text for p in held).startswith("00000")
        notifier.publish("s1", Preview("e2", "agent.message", "another", 2))
        assert [preview.text for preview in subscription.previews()] == ["another"]
