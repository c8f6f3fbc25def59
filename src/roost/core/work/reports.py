"""What a sandbox reports while it is open goes to its session's log, by the runner that has the lease."""

from __future__ import annotations

from functools import partial

from roost.core.sandbox.budgets import Budgets
from roost.core.sandbox.reports import SandboxReports
from roost.core.work.turn import LeasedLog
from roost.domain.budget import Budget, Spent
from roost.domain.events import Draft, trouble
from roost.domain.ledger import Batch
from roost.ports.egress import Refused
from roost.ports.sessions import Sessions


def notes_of(turn: LeasedLog, sessions: Sessions, budgets: Budgets) -> SandboxReports:
    """Who writes it down, and says what it may spend."""
    return SandboxReports(
        partial(_note_refusal, turn),
        partial(_note_spending, turn),
        partial(_say, turn),
        partial(_allowed, turn.session_id, sessions, budgets),
    )


async def _allowed(session_id: str, sessions: Sessions, budgets: Budgets) -> Budget:
    return budgets.of(await sessions.find(session_id))


async def _say(turn: LeasedLog, draft: Draft) -> None:
    await turn.append(Batch(drafts=[draft]))


async def _note_spending(turn: LeasedLog, spent: Spent) -> None:
    await turn.append(Batch(counted=spent))


async def _note_refusal(turn: LeasedLog, refused: Refused) -> None:
    """What the sandbox was not allowed to reach is in the session's log."""
    more = f" ({refused.unreported} more were refused)" if refused.unreported else ""
    error, text = "network_refused", f"the sandbox may not reach {refused.host}:{refused.port}"
    if refused.reason == "budget_reached":
        error, text = "billing_error", "a request to the model was refused"
    hint = f". {refused.hint}" if refused.hint else ""
    said = trouble(error, f"{text}: {refused.reason}{more}{hint}", "retrying")
    await turn.append(Batch(drafts=[said]))
