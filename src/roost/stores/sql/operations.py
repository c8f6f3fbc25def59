"""The operations of the log: from a batch, its sessions and the ledger's rules to what is written.

Every store runs these, each inside its own kind of transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roost.domain import ledger
from roost.domain.events import Draft, Entry
from roost.domain.ledger import Batch, Standby
from roost.domain.session import Lease
from roost.errors import IdempotencyMismatch, LeaseLost, NotFound
from roost.ports.log import Accepted, Receipt
from roost.stores.sql.rows import Hot
from roost.stores.sql.sheet import Sheet

Terms = tuple[int, Standby | None]
"""How many inputs may wait, and who stands by for them."""


def accept(session_id: str, drafts: Sequence[Draft], terms: Terms, sheet: Sheet) -> Accepted:
    """Inputs from a client."""
    hot = sheet.session(session_id)
    waiting = sheet.inputs(hot) if hot.state.queued and stops(drafts) else []
    change = ledger.admit(hot.state, drafts, sheet.now, *terms, waiting)
    begun = change.state if change.state.turn and not hot.state.turn else None
    sheet.apply(hot, change, [entry for entry in waiting if entry.seq in change.consumed])
    woke = any(entry.type == "session.status_running" for entry in change.entries)
    first = {entry.id: entry for entry in reversed(change.entries)}
    return Accepted([first[draft.id] for draft in drafts], woke, begun=begun)


def stops(drafts: Sequence[Draft]) -> bool:
    """Whether there is an interrupt among them, which withdraws what waits."""
    return any(draft.type == "user.interrupt" for draft in drafts)


def accept_once(
    session_id: str,
    drafts: Sequence[Draft],
    receipts: Sequence[Receipt | None],
    terms: Terms,
    sheet: Sheet,
) -> Accepted:
    """As `accept`, without the drafts that came before, or twice in this request."""
    hot = sheet.session(session_id)
    slots, fresh = _known_and_fresh(hot, drafts, receipts, sheet)
    if not fresh:
        return Accepted([s for s in slots if isinstance(s, Entry)], woke=False, repeated=True)
    written = accept(session_id, fresh, terms, sheet)
    for slot, receipt in zip(slots, receipts, strict=True):
        if receipt and isinstance(slot, int):
            sheet.note(hot, receipt, written.entries[slot])
    entries = [written.entries[slot] if isinstance(slot, int) else slot for slot in slots]
    return Accepted(entries, written.woke, begun=written.begun)


def _known_and_fresh(
    hot: Hot, drafts: Sequence[Draft], receipts: Sequence[Receipt | None], sheet: Sheet
) -> tuple[list[Entry | int], list[Draft]]:
    """For each draft its first entry, or its place among the fresh drafts; and those."""
    slots: list[Entry | int] = []
    fresh: list[Draft] = []
    places: dict[str, tuple[str, int]] = {}
    for draft, receipt in zip(drafts, receipts, strict=True):
        known = sheet.recall(hot, receipt) if receipt else None
        if known is not None:
            slots.append(known)
            continue
        place = len(fresh)
        if receipt:
            fingerprint, place = places.setdefault(receipt.key, (receipt.fingerprint, place))
            if fingerprint != receipt.fingerprint:
                raise IdempotencyMismatch()
        slots.append(place)
        if place == len(fresh):
            fresh.append(draft)
    return slots, fresh


def append(lease: Lease, batch: Batch, sheet: Sheet) -> list[Entry]:
    """What a runner did."""
    hot = _owned(lease, sheet)
    change = ledger.work(hot.state, lease, batch, sheet.now)
    sheet.apply(hot, change, batch.takes)
    return change.entries


def finish(
    lease: Lease,
    seen: int,
    batch: Batch,
    stop_reason: dict[str, Any],
    keep: bool,
    sheet: Sheet,
) -> list[Entry] | None:
    """The session goes idle, if nothing was written since."""
    hot = _owned(lease, sheet)
    change = ledger.rest(hot.state, lease, seen, batch, stop_reason, sheet.now, keep=keep)
    if change is None:
        return None
    sheet.apply(hot, change, batch.takes)
    return change.entries


def release(lease: Lease, sheet: Sheet) -> None:
    """A runner hands its session back."""
    try:
        hot = sheet.session(lease.session_id)
    except NotFound:
        return
    state = ledger.give_back(hot.state, lease)
    if state is not hot.state:
        sheet.put(hot, state)


def _owned(lease: Lease, sheet: Sheet) -> Hot:
    """To its runner, a deleted session is one that it does not own any more."""
    try:
        return sheet.session(lease.session_id)
    except NotFound as gone:
        raise LeaseLost(gone.message) from None
