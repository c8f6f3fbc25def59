"""Handing the sessions of a node over to others: when it stops, and while it drains.

Those at rest go at once, the others after their turn, and when that takes too long, in the middle of it. The
next claim of these sessions, here or at another node, goes on from the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from roost.core.work.idle import IdleAgents
from roost.core.work.nodes import NodeLease
from roost.ports.notifier import WORK, Notifier

_LOOK_AGAIN: Final = 2.0  # seconds; a change whose notification was lost is found this late


class Handover:
    """`leaving`: runners are to begin no turn. `busy` says how many are at work; `cancel` ends all of them."""

    def __init__(
        self,
        member: NodeLease,
        notifier: Notifier,
        idle: IdleAgents,
        busy: Callable[[], int],
        cancel: Callable[[], None],
        drain_seconds: float,
    ) -> None:
        self.leaving = False
        self._member = member
        self._notifier = notifier
        self._idle = idle
        self._busy = busy
        self._cancel = cancel
        self._drain_seconds = drain_seconds

    async def whenever_draining(self) -> None:
        """Hand over while this node is to drain, for ever."""
        drained = False
        with self._notifier.subscribe(WORK) as subscription:
            while True:
                if self._member.draining and not drained:
                    await self._hand_over(self._drain_seconds, lambda: self._member.draining)
                    drained = self._member.draining
                elif drained and not self._member.draining:
                    drained = False
                    self._leave(False)
                await subscription.until_notified(_LOOK_AGAIN)

    async def for_good(self, seconds: float) -> None:
        """Let runners come to the end of their turn for some seconds, and take what is left from them."""
        await self._hand_over(seconds, lambda: True)

    async def _hand_over(self, seconds: float, wanted: Callable[[], bool]) -> None:
        self._leave(True)
        with anyio.move_on_after(seconds), self._notifier.subscribe(WORK) as subscription:
            while wanted() and (self._busy() or len(self._idle)):
                await subscription.until_notified(_LOOK_AGAIN)
        if wanted():
            self._cancel()
        else:
            self._leave(False)

    def _leave(self, leaving: bool) -> None:
        """From now on, begin no turn, and let idle agents end: others go on. Or stay, after all."""
        self.leaving = leaving
        self._idle.close(leaving)
