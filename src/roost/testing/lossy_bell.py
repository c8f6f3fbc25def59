"""A bell whose rings are lost, all or some of them, or come late: what `ports.bell` allows."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from roost.domain.events import Preview
from roost.ports.bell import Bell, Listener, Switchboard


def every_ring(topic: str) -> bool:
    """Lose all of them."""
    return True


def no_ring(topic: str) -> bool:
    """Lose none."""
    return False


class LossyBell:
    """`ports.bell.Bell`. `loses` is asked for each ring, and can be set anew at any time.

    A lost ring is lost as one from another node is: whoever rang hears that nobody listens here.
    `deliver` rings the lost ones after all, late. `pace` is how quickly those who wait lose patience:
    with 0.01, somebody who would look again after 5 seconds looks after 0.05. It multiplies, so somebody
    who would wait for ever, or until an agent is to sleep, still waits too long for a test.
    """

    def __init__(
        self, inner: Bell, loses: Callable[[str], bool] = every_ring, *, pace: float = 0.01
    ) -> None:
        self.loses = loses
        self.lost: list[str] = []
        self._inner = inner
        self._pace = pace

    def ring(self, topic: str) -> bool:
        """As the port says, unless it is lost."""
        if self.loses(topic):
            self.lost.append(topic)
            return False
        return self._inner.ring(topic)

    def deliver(self) -> None:
        """Ring all that was lost so far, latest first: between nodes there is no order."""
        lost, self.lost = self.lost, []
        for topic in reversed(lost):
            self._inner.ring(topic)

    def publish(self, session_id: str, preview: Preview) -> None:
        """As the port says."""
        self._inner.publish(session_id, preview)

    @contextmanager
    def listen(self, topic: str, *, previews: bool = False) -> Generator[Listener, None, None]:
        """As the port says."""
        with self._inner.listen(topic, previews=previews) as ear:
            yield _Ear(ear, self._pace)

    @contextmanager
    def switchboard(self) -> Generator[Switchboard, None, None]:
        """As the port says."""
        with self._inner.switchboard() as board:
            yield _Switchboard(board, self._pace)


class _Ear:
    def __init__(self, inner: Listener, pace: float) -> None:
        self._inner = inner
        self._pace = pace
        self.rung = inner.rung
        self.previews = inner.previews

    async def wait(self, timeout: float) -> bool:
        return await self._inner.wait(timeout * self._pace)


class _Switchboard:
    def __init__(self, inner: Switchboard, pace: float) -> None:
        self._inner = inner
        self._pace = pace
        self.plug = inner.plug
        self.unplug = inner.unplug
        self.rung = inner.rung
        self.previews = inner.previews

    async def wait(self, timeout: float) -> bool:
        return await self._inner.wait(timeout * self._pace)
