"""What a session's log holds for its agent: the inputs to hand over now, and the conversation so far."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from roost.domain.events import Entry
from roost.domain.rewinds import stretches
from roost.domain.session import Session
from roost.ports.log import Log

_PAGE = 1000
_PAGE_BYTES = 4 * 1024 * 1024
_ANSWERS = {"user.tool_confirmation", "user.custom_tool_result", "user.tool_result"}
_NOT_NEW = {*_ANSWERS, "user.interrupt"}


class Work(NamedTuple):
    """A session and inputs of it: those that it has not taken up, or those that its turn has `begun` with.

    With `again`, its agent may have been given them before.
    """

    session: Session
    inputs: Sequence[Entry]
    begun: bool = False
    again: bool = False


def ready_of(session: Session, inputs: Sequence[Entry]) -> list[Entry]:
    """The inputs to hand over now: while answers are outstanding, only answers."""
    if session.state.pending:
        return [entry for entry in inputs if entry.type in _ANSWERS]
    if any(entry.type in _ANSWERS or entry.type == "user.message" for entry in inputs):
        return list(inputs)
    return []


def interrupts_in(inputs: Sequence[Entry]) -> list[Entry]:
    """The interrupts among the inputs, which are handled before all others."""
    return [entry for entry in inputs if entry.type == "user.interrupt"]


def can_start_ahead(session: Session, inputs: Sequence[Entry]) -> bool:
    """Whether the agent will be told something new, and nothing else, as soon as it is up."""
    if session.state.turn is not None or any(e.type in _NOT_NEW for e in inputs):
        return False
    return bool(ready_of(session, inputs))


def is_changed(before: Session, session: Session) -> bool:
    """Whether an agent that was started for the session before is not the one it needs now."""
    return session.spec != before.spec or session.state.rewinds != before.state.rewinds


async def handed_over(log: Log, session: Session) -> list[Entry]:
    """The inputs that its agent was given for the turn that it is in."""
    found: list[Entry] = []
    for seq in session.state.turn or ():
        found += await log.read(session.id, seq - 1, 1)
    return found


async def history(log: Log, session: Session) -> AsyncIterator[Entry]:
    """Every entry of its conversation, in order, to the end of the log: what was rewound is left out."""
    *before, (begins, _) = stretches(session.state.rewinds, session.state.head) or [(1, 0)]
    for first, last in [*before, (begins, sys.maxsize)]:
        after = first - 1
        while page := await log.read(session.id, after, min(_PAGE, last - after), _PAGE_BYTES):
            for entry in page:
                yield entry
            after = page[-1].seq
