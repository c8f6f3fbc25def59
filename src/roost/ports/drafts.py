"""Events about to be written, each with a new id. The rules of the domain make no ids: they are given them."""

from __future__ import annotations

from typing import Any, Final, Literal

from roost.domain.events import Draft
from roost.ids import mint

_OFFICIAL: Final = frozenset(
    {
        "model_overloaded_error",
        "model_rate_limited_error",
        "model_request_failed_error",
        "billing_error",
        "tool_use_limit_reached_error",
    }
)
"""The types of a `session.error` that need nothing but a message."""


def new_event_id() -> str:
    """The id of one more event."""
    return mint("sevt")


def new_draft(type: str, /, **fields: Any) -> Draft:
    """A draft of this type; `fields` are what the event has besides id, type and time."""
    return Draft.of(type, new_event_id(), **fields)


def trouble(error: str, message: str, retry: Literal["retrying", "exhausted", "terminal"]) -> Draft:
    """A `session.error`: what went wrong, and whether anybody tries again.

    Official clients know some names only, and are strict about it: another one is in `code` alone.
    """
    type = error if error in _OFFICIAL else "unknown_error"
    body = {"type": type, "code": error, "message": message, "retry_status": {"type": retry}}
    return new_draft("session.error", error=body)
