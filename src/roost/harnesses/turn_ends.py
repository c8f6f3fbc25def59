"""How turns and requests to a model end."""

from __future__ import annotations

from typing import Final

from roost.domain.events import Draft
from roost.domain.usage import Usage
from roost.ports.drafts import new_draft
from roost.ports.harness import TurnEnd

END: Final = TurnEnd({"type": "end_turn"})
GIVEN_UP: Final = TurnEnd({"type": "retries_exhausted"})
"""The end of a turn whose model cannot be asked, or whose agent does not stay up."""


def span_end(start_id: str, usage: Usage, *, error: bool) -> Draft:
    """The event that ends a model request."""
    return new_draft(
        "span.model_request_end",
        model_request_start_id=start_id,
        is_error=error,
        model_usage=usage.for_request(),
    )
