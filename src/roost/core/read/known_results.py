"""Results of calls that have one already: the first counts, and whoever brings the same again is shown that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from roost.core.read.large_events import EventPages
from roost.domain.events import Draft, Entry
from roost.ports.log import EventQuery

_RESULT: Final = "user.tool_result"
_PAGE: Final = 200
_MOST_PAGES: Final = 10


async def known_results(
    events: EventPages, session_id: str, drafts: Sequence[Draft]
) -> list[Entry] | None:
    """The results in the log that these are, or come too late for; None if one of them is another one.

    Workers send a result again if they did not hear that it was accepted. One for a call that was closed, by an
    interrupt or because its worker was lost, is late: it is not kept, and not refused either.
    """
    if any(draft.type != _RESULT for draft in drafts):
        return None
    brought = {
        (fields := msgspec.json.decode(draft.body))["tool_use_id"]: fields for draft in drafts
    }
    found: dict[str, Entry] = {}
    before: int | None = None
    for _ in range(_MOST_PAGES):
        query = EventQuery(types=[_RESULT], order="desc", before=before, limit=_PAGE)
        page = await events.read(session_id, query)
        found |= {call: entry for entry in page if (call := entry.fields["tool_use_id"]) in brought}
        if len(found) == len(brought) or len(page) < _PAGE:
            break
        before = page[-1].seq
    if found.keys() != brought.keys():
        return None
    return list(found.values()) if all(_is_same(brought[c], found[c]) for c in found) else None


def _is_same(brought: dict[str, object], logged: Entry) -> bool:
    kept = logged.fields
    if "closed" in kept:
        return True
    fields = ("content", "is_error")
    return [brought.get(f) or None for f in fields] == [kept.get(f) or None for f in fields]
