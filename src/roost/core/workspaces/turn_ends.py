"""Turns in a shared workspace that are over, and are not stored yet.

Each is waited for by whoever begins the next turn there, of whichever session: it is stored before anything
changes, or not as the end of that turn at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from roost.domain.snapshot import TurnEnd


class _Due:
    def __init__(self, session: str, seq: int) -> None:
        self.end: TurnEnd = (session, seq)
        self.settled = anyio.Event()


class TurnEnds:
    """Those of one workspace: of each session the last one at most."""

    def __init__(self) -> None:
        self._due: dict[str, _Due] = {}

    @property
    def due(self) -> list[_Due]:
        """Those that are yet to be stored."""
        return list(self._due.values())

    def add(self, session: str, seq: int) -> None:
        """A turn of this session is over."""
        self.forget([self._due[session]] if session in self._due else [])
        self._due[session] = _Due(session, seq)

    def still(self, taken: Sequence[_Due]) -> list[TurnEnd]:
        """Those of them after which nothing has begun yet."""
        return [due.end for due in taken if self._due.get(due.end[0]) is due]

    def forget(self, those: Sequence[_Due]) -> None:
        """They are stored, or something has begun; nobody waits for them any more."""
        for due in those:
            due.settled.set()
            if self._due.get(due.end[0]) is due:
                del self._due[due.end[0]]

    def excuse(self) -> None:
        """Nobody need wait: storing fails."""
        for due in self._due.values():
            due.settled.set()
