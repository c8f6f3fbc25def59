"""Hints and previews: what may be lost without harm.

A ring says "look at the log again". It carries nothing, may be lost and may be doubled: whoever
waits always looks first, and looks again after a while even if nothing rang.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, Protocol

from roost.domain.events import Preview

WORK: Final = "work"
"""The topic rung when any session may have become claimable."""


class Listener(Protocol):
    """One ear at one topic."""

    async def wait(self, timeout: float) -> bool:
        """True as soon as a ring or a preview is there to collect; False after `timeout` seconds."""
        ...

    def rung(self) -> bool:
        """Whether the topic was rung since the last call."""
        ...

    def previews(self) -> list[Preview]:
        """The previews published since the last call, in order; none unless asked for."""
        ...


class Switchboard(Protocol):
    """One ear at many topics: whoever follows thousands of sessions waits once for all of them."""

    def plug(self, topic: str) -> None:
        """Listen at this topic, too, from now on."""
        ...

    def unplug(self, topic: str) -> None:
        """Listen at it no more."""
        ...

    async def wait(self, timeout: float) -> bool:
        """True as soon as a ring or a preview is there to collect; False after `timeout` seconds."""
        ...

    def rung(self) -> list[str]:
        """The topics that were rung since the last call, each once."""
        ...

    def previews(self) -> list[tuple[str, Preview]]:
        """The previews published since the last call, in order, each with its session."""
        ...


class Bell(Protocol):
    """Rings within one node; between nodes it is a hint like any other."""

    def ring(self, topic: str) -> bool:
        """Wake whoever listens at the topic. Called after a commit, never before.

        Whether anybody on this node does; others may all the same.
        """
        ...

    def publish(self, session_id: str, preview: Preview) -> None:
        """Show a preview to the session's listeners that want them."""
        ...

    def listen(self, topic: str, *, previews: bool = False) -> AbstractContextManager[Listener]:
        """Listen from now on, until the context ends."""
        ...

    def switchboard(self) -> AbstractContextManager[Switchboard]:
        """An ear at no topic yet, with previews; it is deaf when the context ends."""
        ...
