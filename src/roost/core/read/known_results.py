"""Results of calls that have one already: the first counts, and whoever brings the same again is shown that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from roost.core.read.large_events import EventPages
from roost.domain.events import Draft, Entry
from roost.ports.log import EventQuery, is_full

_CALLS: Final = {
    "user.tool_result": "tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
}
"""Results, and the field that names the call."""

_MOST: Final = 100  # results that are looked for at once
_PAGE: Final = 200
_PAGE_BYTES: Final = 1024 * 1024
_MOST_PAGES: Final = 10


async def known_results(
    events: EventPages, session_id: str, drafts: Sequence[Draft]
) -> list[Entry] | None:
    """The results in the log that these are, or come too late for, in the same order; None if one is another one.

    Workers send a result again if they did not hear that it was accepted. One for a call that was closed, by an
    interrupt or because its worker was lost, is late: it is not kept, and not refused either.
    """
    if len(drafts) > _MOST or any(draft.type not in _CALLS for draft in drafts):
        return None
    brought = [msgspec.json.decode(draft.body) for draft in drafts]
    calls = [fields[_CALLS[draft.type]] for draft, fields in zip(drafts, brought, strict=True)]
    seqs = [await events.seq_of(session_id, call) for call in set(calls)]
    if not all(seqs):
        return None
    found = await _results(events, session_id, set(calls), after=min(filter(None, seqs)))
    if found.keys() != set(calls):
        return None
    known = [found[call] for call in calls]
    return known if all(map(_is_same, drafts, brought, known)) else None


async def _results(
    events: EventPages, session_id: str, calls: set[str], after: int
) -> dict[str, Entry]:
    """The results of these calls, looked for from the first call on: they follow it soon."""
    found: dict[str, Entry] = {}
    for _ in range(_MOST_PAGES):
        query = EventQuery(types=list(_CALLS), after=after, limit=_PAGE, most_bytes=_PAGE_BYTES)
        page = await events.read(session_id, query)
        for entry in page:
            if (call := entry.fields[_CALLS[entry.type]]) in calls:
                found.setdefault(call, entry)
        if len(found) == len(calls) or not is_full(page, _PAGE, _PAGE_BYTES):
            break
        after = page[-1].seq
    return found


def _is_same(draft: Draft, brought: dict[str, object], logged: Entry) -> bool:
    kept = logged.fields
    if draft.type != logged.type:
        return False
    if "closed" in kept:
        return True
    fields = ("content", "is_error")
    return [brought.get(f) or None for f in fields] == [kept.get(f) or None for f in fields]
