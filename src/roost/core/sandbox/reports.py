"""What a place tells while it is open goes to its session's log, in the turn that is taken there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from roost.domain.budget import Budget, Spent
from roost.domain.events import Draft
from roost.ports.egress import Refused

OnRefusal = Callable[[Refused], Awaitable[None]]
OnSpending = Callable[[Spent], Awaitable[None]]
OnLack = Callable[[Draft], Awaitable[None]]
Allowed = Callable[[], Awaitable[Budget]]


async def _to_nobody(draft: Draft) -> None:
    """Nobody listens."""


class SandboxReports(NamedTuple):
    """Who is told of what a place is refused, of what it spends, and of what it has to do without;
    `allowed` says what it may spend by now.
    """

    refused: OnRefusal
    spent: OnSpending
    lacks: OnLack = _to_nobody
    allowed: Allowed | None = None
