"""A session's log, read from its beginning."""

from __future__ import annotations

from collections.abc import AsyncIterator

from roost.domain.events import Entry
from roost.ports.log import Log

_PAGE = 1000


async def history(log: Log, session_id: str) -> AsyncIterator[Entry]:
    """Every entry, in order."""
    after = 0
    while page := await log.read(session_id, after, _PAGE):
        for entry in page:
            yield entry
        after = page[-1].seq
