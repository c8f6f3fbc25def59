"""The contract of a notifier: subclass, give the fixture `notifier`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import anyio
import pytest

from roost.domain.events import Preview
from roost.ports.notifier import Notifier


class NotifierContract:
    """What followers and runners rely on, within one node."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop the server runs on."""
        return "asyncio"

    @pytest.fixture
    async def notifier(self) -> Notifier:
        """A notifier that nobody has subscribed to."""
        raise NotImplementedError

    async def test_a_notification_reaches_all_subscribers_of_its_topic_and_nobody_else(
        self, notifier: Notifier
    ) -> None:
        with (
            notifier.subscribe("here") as one,
            notifier.subscribe("here") as two,
            notifier.subscribe("there") as other,
        ):
            assert notifier.notify("here")
            assert await one.wait(60) and await two.wait(60)
            assert one.notified() and two.notified()
            assert not notifier.notify("nowhere")
            assert not one.notified()
            assert not other.notified()

    async def test_whoever_waits_for_a_notification_takes_it(self, notifier: Notifier) -> None:
        with notifier.subscribe("here") as subscription:
            notifier.notify("here")
            assert await subscription.until_notified(60)
            assert not subscription.notified()
            assert not await subscription.until_notified(0.01)

    async def test_a_subscription_to_many_topics_hears_of_these_only_and_each_topic_once(
        self, notifier: Notifier
    ) -> None:
        with notifier.subscribe_many() as many:
            notifier.notify("a")
            for topic in ("a", "b", "a"):
                many.add(topic)
            for topic in ("b", "a", "b", "c"):
                notifier.notify(topic)
            assert await many.wait(60)
            assert sorted(many.notified()) == ["a", "b"]
            assert many.notified() == []
            many.remove("a")
            many.remove("a")
            notifier.notify("a")
            assert not await many.wait(0.01)

    async def test_a_subscription_to_many_topics_wakes_whoever_waits(
        self, notifier: Notifier
    ) -> None:
        with notifier.subscribe_many() as many:
            many.add("a")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._notify_soon, notifier, "a")
                assert await many.wait(60)
            assert many.notified() == ["a"]

    async def test_a_subscription_to_many_topics_is_shown_previews_in_order_with_their_sessions(
        self, notifier: Notifier
    ) -> None:
        shown = [Preview("e1", "agent.message", text, 0) for text in ("", "a", "b")]
        with notifier.subscribe_many() as many:
            many.add("s1")
            notifier.publish("s2", shown[0])
            for preview in shown:
                notifier.publish("s1", preview)
            assert await many.wait(60)
            assert many.previews() == [("s1", preview) for preview in shown]
            assert many.previews() == []

    async def test_a_subscription_to_many_topics_that_is_closed_leaves_nothing(
        self, notifier: Notifier
    ) -> None:
        with notifier.subscribe_many() as many:
            many.add("a")
        notifier.notify("a")
        assert many.notified() == []

    async def _notify_soon(self, notifier: Notifier, topic: str) -> None:
        await anyio.sleep(0.01)
        notifier.notify(topic)
