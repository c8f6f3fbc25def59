"""The notifier within one process: no task, no timer and no thread for a subscriber that waits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

import anyio

from roost.domain.events import Preview

_MOST_PREVIEWS = 4096  # per subscriber; a reader this far behind waits for the event itself
_MOST_TEXT = 256 * 1024  # characters of them


class LocalNotifier:
    """Tells the subscribers of this process. Used from the event loop's thread only."""

    def __init__(self) -> None:
        self._subscribers: dict[str, set[_Subscriber]] = {}

    def notify(self, topic: str) -> bool:
        subscribers = self._subscribers.get(topic, ())
        for subscriber in subscribers:
            subscriber.notify()
        return bool(subscribers)

    def notify_all(self) -> None:
        """Notify all topics that have subscribers: whatever may have been missed is looked for."""
        for topic in self._subscribers:
            LocalNotifier.notify(self, topic)

    def publish(self, session_id: str, preview: Preview) -> None:
        for subscriber in self._subscribers.get(session_id, ()):
            subscriber.show(preview)

    @contextmanager
    def subscribe(
        self, topic: str, *, previews: bool = False
    ) -> Generator[_Subscription, None, None]:
        subscription = _Subscription(previews)
        self._add(topic, subscription)
        try:
            yield subscription
        finally:
            self._remove(topic, subscription)

    @contextmanager
    def subscribe_many(self) -> Generator[_Subscriptions, None, None]:
        subscriptions = _Subscriptions(self._add, self._remove)
        try:
            yield subscriptions
        finally:
            for topic in subscriptions.topics():
                subscriptions.remove(topic)

    def _add(self, topic: str, subscriber: _Subscriber) -> None:
        self._subscribers.setdefault(topic, set()).add(subscriber)

    def _remove(self, topic: str, subscriber: _Subscriber) -> None:
        self._subscribers[topic].discard(subscriber)
        if not self._subscribers[topic]:
            del self._subscribers[topic]


class _Subscriber(Protocol):
    def notify(self) -> None: ...
    def show(self, preview: Preview) -> None: ...


class _Subscriptions:
    def __init__(
        self, add: Callable[[str, _Subscriber], None], remove: Callable[[str, _Subscriber], None]
    ) -> None:
        self._add = add
        self._remove = remove
        self._topics: dict[str, _TopicOfMany] = {}
        self._notified: dict[str, None] = {}
        self._previews: list[tuple[str, Preview]] = []
        self._waiting: anyio.Event | None = None

    def topics(self) -> list[str]:
        return list(self._topics)

    def add(self, topic: str) -> None:
        if topic not in self._topics:
            self._topics[topic] = _TopicOfMany(self, topic)
            self._add(topic, self._topics[topic])

    def remove(self, topic: str) -> None:
        if subscriber := self._topics.pop(topic, None):
            self._remove(topic, subscriber)

    def notify(self, topic: str) -> None:
        self._notified[topic] = None
        self._wake()

    def show(self, topic: str, preview: Preview) -> None:
        self._previews.append((topic, preview))
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.set()

    async def wait(self, timeout: float) -> bool:
        if not (self._notified or self._previews):
            self._waiting = anyio.Event()
            with anyio.move_on_after(timeout):
                await self._waiting.wait()
            self._waiting = None
        return bool(self._notified or self._previews)

    def notified(self) -> list[str]:
        notified, self._notified = list(self._notified), {}
        return notified

    def previews(self) -> list[tuple[str, Preview]]:
        seen, self._previews = self._previews, []
        return seen


class _TopicOfMany:
    __slots__ = ("_many", "_topic")

    def __init__(self, many: _Subscriptions, topic: str) -> None:
        self._many = many
        self._topic = topic

    def notify(self) -> None:
        self._many.notify(self._topic)

    def show(self, preview: Preview) -> None:
        self._many.show(self._topic, preview)


class _Subscription:
    __slots__ = ("_lost", "_notified", "_previews", "_text", "_waiting")

    def __init__(self, previews: bool) -> None:
        self._notified = False
        self._waiting: anyio.Event | None = None
        self._previews: list[Preview] | None = [] if previews else None
        self._text = 0
        self._lost: str | None = None

    def notify(self) -> None:
        self._notified = True
        self._wake()

    def show(self, preview: Preview) -> None:
        if self._previews is None or preview.event_id == self._lost:
            return
        self._text += len(preview.text)
        if len(self._previews) >= _MOST_PREVIEWS or self._text > _MOST_TEXT:
            self._lost = preview.event_id  # a prefix stays a prefix: nothing more of this event
            return
        self._previews.append(preview)
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.set()

    async def wait(self, timeout: float) -> bool:
        if not self._something():
            self._waiting = anyio.Event()
            with anyio.move_on_after(timeout):
                await self._waiting.wait()
            self._waiting = None
        return self._something()

    def _something(self) -> bool:
        return self._notified or bool(self._previews)

    def notified(self) -> bool:
        notified, self._notified = self._notified, False
        return notified

    async def until_notified(self, timeout: float) -> bool:
        await self.wait(timeout)
        return self.notified()

    def previews(self) -> list[Preview]:
        if not self._previews:
            return []
        seen, self._previews, self._text = self._previews, [], 0
        return seen
