"""What a session has to do without is said in its log, and stops nobody: neither does an MCP server that is
away.
"""

from __future__ import annotations

from roost.core.sandbox.sandboxes import Sandboxes
from roost.core.work.turn import LeasedLog
from roost.domain.events import trouble
from roost.domain.ledger import Batch
from roost.domain.session import Session


async def tell_what_is_gone(places: Sandboxes | None, turn: LeasedLog, session: Session) -> None:
    """Of its skills and files, before its agent starts."""
    for text in await places.gone_from(session) if places else ():
        said = trouble("resource_gone", f"{text}; the agent works without it", "retrying")
        await turn.append(Batch(drafts=[said]))


async def keep_outputs(places: Sandboxes | None, turn: LeasedLog, session: Session) -> None:
    """Take what its agent has put out, and say what was left behind."""
    if places is not None and (left := await places.captured(session)):
        await turn.append(Batch(drafts=[trouble("outputs_left_out", left, "retrying")]))
