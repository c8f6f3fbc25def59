"""Hints and previews: what may be lost without harm.

A notification of a topic says "look at the log again". It carries nothing, may be lost and may come twice:
whoever waits always looks first, and looks again after a while even if none came.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, Protocol

from roost.domain.events import Preview

WORK: Final = "work"
"""The topic notified when any session may have become claimable."""


class Subscription(Protocol):
    """What one reader is told about one topic."""

    async def wait(self, timeout: float) -> bool:
        """True as soon as a notification or a preview is there to collect; False after `timeout` seconds."""
        ...

    def notified(self) -> bool:
        """Whether the topic was notified since the last call."""
        ...

    async def until_notified(self, timeout: float) -> bool:
        """Wait, and take what came: for those who then look at everything. Whether the topic was notified."""
        ...

    def previews(self) -> list[Preview]:
        """The previews published since the last call, in order; none unless asked for."""
        ...


class Subscriptions(Protocol):
    """What one reader is told about many topics: it waits once for thousands of sessions."""

    def add(self, topic: str) -> None:
        """Be told of this topic, too, from now on."""
        ...

    def remove(self, topic: str) -> None:
        """Be told of it no more."""
        ...

    async def wait(self, timeout: float) -> bool:
        """True as soon as a notification or a preview is there to collect; False after `timeout` seconds."""
        ...

    def notified(self) -> list[str]:
        """The topics that were notified since the last call, each once."""
        ...

    def previews(self) -> list[tuple[str, Preview]]:
        """The previews published since the last call, in order, each with its session."""
        ...


class Notifier(Protocol):
    """Wakes those who wait: on this node at once, on others soon. To both it is only a hint."""

    def notify(self, topic: str) -> bool:
        """Wake whoever has subscribed to the topic. Called after a commit, never before.

        Returns whether anybody on this node has; others may all the same.
        """
        ...

    def publish(self, session_id: str, preview: Preview) -> None:
        """Show a preview to the subscribers of the session that want them."""
        ...

    def subscribe(
        self, topic: str, *, previews: bool = False
    ) -> AbstractContextManager[Subscription]:
        """Be told of the topic from now on, until the context ends."""
        ...

    def subscribe_many(self) -> AbstractContextManager[Subscriptions]:
        """A subscription to no topic yet, with previews. When the context ends, it is told nothing more."""
        ...
