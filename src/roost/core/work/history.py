"""A session's conversation, read from its log."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

from roost.domain.events import Entry
from roost.domain.session import Session
from roost.domain.turns import stretches
from roost.ports.log import Log

_PAGE = 1000
_PAGE_BYTES = 4 * 1024 * 1024


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
