"""How far a session was shown to programs that keep no cursor: a hint that all servers have.

Nothing is lost with it but a turn that is shown twice, or once more: see `core/read/follow`.
"""

from __future__ import annotations

from typing import Protocol


class Marks(Protocol):
    """A seq for each session, which only grows."""

    async def note(self, session_id: str, seq: int) -> None:
        """It was shown up to there. Called a few times in each turn that somebody watches."""
        ...

    async def up_to(self, session_id: str) -> int:
        """How far it was shown; 0 if that is not known. Called when a stream begins soon after an input."""
        ...
