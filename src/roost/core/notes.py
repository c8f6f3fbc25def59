"""What a place tells while it is open goes to its session's log, in the turn that is taken there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from roost.core.budgets import Budgets
from roost.core.turn import Turn
from roost.domain.budget import Budget, Spent
from roost.domain.events import Draft, trouble
from roost.domain.ledger import Batch
from roost.ports.egress import Refused
from roost.ports.sessions import Sessions

OnRefusal = Callable[[Refused], Awaitable[None]]
OnSpending = Callable[[Spent], Awaitable[None]]
OnLack = Callable[[Draft], Awaitable[None]]
Allowed = Callable[[], Awaitable[Budget]]


async def _to_nobody(draft: Draft) -> None:
    """Nobody listens."""


class Notes(NamedTuple):
    """Who is told of what a place is refused, of what it spends, and of what it has to do without;
    `allowed` says what it may spend by now.
    """

    refused: OnRefusal
    spent: OnSpending
    lacks: OnLack = _to_nobody
    allowed: Allowed | None = None


def notes_of(turn: Turn, sessions: Sessions, budgets: Budgets) -> Notes:
    """Who writes it down, and says what it may spend."""
    return Notes(
        partial(_note_refusal, turn),
        partial(_note_spending, turn),
        partial(_say, turn),
        partial(_allowed, turn.session_id, sessions, budgets),
    )


async def _allowed(session_id: str, sessions: Sessions, budgets: Budgets) -> Budget:
    return budgets.of(await sessions.find(session_id))


async def _say(turn: Turn, draft: Draft) -> None:
    await turn.append(Batch(drafts=[draft]))


async def _note_spending(turn: Turn, spent: Spent) -> None:
    await turn.append(Batch(counted=spent))


async def _note_refusal(turn: Turn, refused: Refused) -> None:
    """What the sandbox was not allowed to reach is in the session's log."""
    more = f" ({refused.unreported} more were refused)" if refused.unreported else ""
    error, text = "network_refused", f"the sandbox may not reach {refused.host}:{refused.port}"
    if refused.reason == "budget_reached":
        error, text = "billing_error", "a request to the model was refused"
    hint = f". {refused.hint}" if refused.hint else ""
    said = trouble(error, f"{text}: {refused.reason}{more}{hint}", "retrying")
    await turn.append(Batch(drafts=[said]))
