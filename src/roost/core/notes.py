"""What a place tells while it is open goes to its session's log, in the turn that is taken there."""

from __future__ import annotations

from functools import partial

from roost.core.places import Notes
from roost.core.turn import Turn
from roost.domain.budget import Spent
from roost.domain.events import Draft, trouble
from roost.domain.ledger import Batch
from roost.ports.egress import Refused


def notes_of(turn: Turn) -> Notes:
    """Who writes it down."""
    return Notes(partial(_note_refusal, turn), partial(_note_spending, turn), partial(_say, turn))


async def _say(turn: Turn, draft: Draft) -> None:
    await turn.append(Batch(drafts=[draft]))


async def _note_spending(turn: Turn, spent: Spent) -> None:
    await turn.append(Batch(counted=spent))


async def _note_refusal(turn: Turn, refused: Refused) -> None:
    """What the sandbox was not allowed to reach is in the session's log."""
    more = f" ({refused.unreported} more were refused)" if refused.unreported else ""
    error, text = "unknown_error", f"the sandbox may not reach {refused.host}:{refused.port}"
    if refused.reason == "budget_reached":
        error, text = "billing_error", "a request to the model was refused"
    said = trouble(error, f"{text}: {refused.reason}{more}", "retrying")
    await turn.append(Batch(drafts=[said]))
