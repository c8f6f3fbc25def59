"""Which of a session's inputs can be handed to its agent now, and whether that agent will do."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from roost.core.sandbox.sandboxes import Sandboxes
from roost.domain.events import Entry
from roost.domain.session import Session
from roost.ports.harness import Brief, StartMode
from roost.ports.sandbox import Sandbox

_ANSWERS = {"user.tool_confirmation", "user.custom_tool_result"}
_NOT_NEW = {*_ANSWERS, "user.interrupt"}


def ready_of(session: Session, inputs: Sequence[Entry]) -> list[Entry]:
    """The inputs to hand over now: while answers are outstanding, only answers."""
    if session.state.pending:
        return [entry for entry in inputs if entry.type in _ANSWERS]
    if any(entry.type in _ANSWERS or entry.type == "user.message" for entry in inputs):
        return list(inputs)
    return []


def interrupts_in(inputs: Sequence[Entry]) -> list[Entry]:
    """Those that come before all others."""
    return [entry for entry in inputs if entry.type == "user.interrupt"]


def can_start_ahead(session: Session, inputs: Sequence[Entry]) -> bool:
    """Whether the agent will be told something new, and nothing else, as soon as it is up."""
    if session.state.turn is not None or any(e.type in _NOT_NEW for e in inputs):
        return False
    return bool(ready_of(session, inputs))


def is_changed(before: Session, session: Session) -> bool:
    """Whether an agent that was started for the session before is not the one it needs now."""
    return session.spec != before.spec or session.state.rewinds != before.state.rewinds


def placed(brief: Brief, sandbox: Sandbox, places: Sandboxes, *, ahead: bool) -> Brief:
    """What an agent is told, with the place it has; it does not start ahead of what it has to be told."""
    behind = places.may_be_behind(brief.session.id)
    start = StartMode.of(resumed=brief.start.resumes, ahead=ahead, behind=behind)
    confinement = places.bounds(brief.session)
    return replace(brief, sandbox=sandbox, confinement=confinement, start=start)
