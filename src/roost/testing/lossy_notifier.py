"""A notifier whose notifications are lost, all or some of them, or come late: what `ports.notifier` allows."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from roost.domain.events import Preview
from roost.ports.notifier import Notifier, Subscription, Subscriptions


def every_notification(topic: str) -> bool:
    """Lose all of them."""
    return True


def no_notification(topic: str) -> bool:
    """Lose no notification at all."""
    return False


class LossyNotifier:
    """`ports.notifier.Notifier`. `loses` is asked for each notification, and can be set anew at any time.

    One is lost as one from another node is: whoever notified is told that nobody waits here.
    `deliver` sends the lost ones after all, late. `pace` is how quickly those who wait lose patience:
    with 0.01, somebody who would look again after 5 seconds looks after 0.05. It multiplies, so somebody
    who would wait for ever, or until an agent is to sleep, still waits too long for a test.
    """

    def __init__(
        self,
        inner: Notifier,
        loses: Callable[[str], bool] = every_notification,
        *,
        pace: float = 0.01,
    ) -> None:
        self.loses = loses
        self.lost: list[str] = []
        self._inner = inner
        self._pace = pace

    def notify(self, topic: str) -> bool:
        """As the port says, unless it is lost."""
        if self.loses(topic):
            self.lost.append(topic)
            return False
        return self._inner.notify(topic)

    def deliver(self) -> None:
        """Send all that was lost so far, latest first: between nodes there is no order."""
        lost, self.lost = self.lost, []
        for topic in reversed(lost):
            self._inner.notify(topic)

    def publish(self, session_id: str, preview: Preview) -> None:
        """As the port says."""
        self._inner.publish(session_id, preview)

    @contextmanager
    def subscribe(
        self, topic: str, *, previews: bool = False
    ) -> Generator[Subscription, None, None]:
        """As the port says."""
        with self._inner.subscribe(topic, previews=previews) as subscription:
            yield _Subscription(subscription, self._pace)

    @contextmanager
    def subscribe_many(self) -> Generator[Subscriptions, None, None]:
        """As the port says."""
        with self._inner.subscribe_many() as subscriptions:
            yield _Subscriptions(subscriptions, self._pace)


class _Subscription:
    def __init__(self, inner: Subscription, pace: float) -> None:
        self._inner = inner
        self._pace = pace
        self.notified = inner.notified
        self.previews = inner.previews

    async def wait(self, timeout: float) -> bool:
        return await self._inner.wait(timeout * self._pace)

    async def until_notified(self, timeout: float) -> bool:
        return await self._inner.until_notified(timeout * self._pace)


class _Subscriptions:
    def __init__(self, inner: Subscriptions, pace: float) -> None:
        self._inner = inner
        self._pace = pace
        self.add = inner.add
        self.remove = inner.remove
        self.notified = inner.notified
        self.previews = inner.previews

    async def wait(self, timeout: float) -> bool:
        return await self._inner.wait(timeout * self._pace)
