"""What a sandbox reports while it is open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from roost.domain.budget import Budget, Spent
from roost.domain.events import Draft
from roost.ports.egress import RefusalReport

OnLack = Callable[[Draft], Awaitable[None]]
OnSpending = Callable[[Spent], Awaitable[None]]


class SandboxReports(Protocol):
    """Is told what happens in a session's sandbox, and says what it may spend."""

    async def refused(self, refused: RefusalReport) -> None:
        """It was refused something that it asked for."""
        ...

    async def spent(self, spent: Spent) -> None:
        """Something in it has asked the model."""
        ...

    async def lacks(self, lack: Draft) -> None:
        """It goes on without something that it should have."""
        ...

    async def allowed(self) -> Budget:
        """What may be spent in it by now."""
        ...
