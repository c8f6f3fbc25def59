"""What the operations of one batch want written, worked out in memory from what the batch has read.

Nothing here touches a database: a store fills in what the operations need to know, runs them, and
then writes the lists out, with one statement for all rows of a kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec.structs import replace

from roost.domain.events import Entry, Micros
from roost.domain.pen import Change
from roost.domain.session import State
from roost.errors import IdempotencyMismatch, NotFound, NotWaiting
from roost.ports.log import Receipt
from roost.stores.sql.rows import Hot, Row


class Sheet(ABC):
    """One batch: all of it happens at one moment, `now`."""

    def __init__(self, now: Micros) -> None:
        self.now = now
        self._clear()

    def _clear(self) -> None:
        self._entries: list[Row] = []
        self._taken: list[Row] = []
        self._advanced: dict[int, Hot] = {}
        self._stepped: dict[int, Hot] = {}
        self._receipts: dict[tuple[int, str], tuple[str, Entry]] = {}

    # What a store knows

    @abstractmethod
    def session(self, session_id: str) -> Hot:
        """:raises NotFound: no such session"""

    @abstractmethod
    def _waiting(self, hot: Hot) -> set[int]:
        """The seqs of the session's inputs that wait."""

    @abstractmethod
    def inputs(self, hot: Hot) -> list[Entry]:
        """The session's inputs that wait, oldest first; those too that this batch has written."""

    @abstractmethod
    def _recalled(self, hot: Hot, key: str) -> tuple[str, Entry] | None:
        """The fingerprint and the entry that the database has under a sender's key."""

    # What operations do

    def session_of(self, tenant: str, session_id: str) -> Hot:
        """:raises NotFound: no such session, or another tenant's"""
        found = self.session(session_id)
        if found.tenant != tenant:
            raise NotFound(f"there is no session {session_id}")
        return found

    def apply(self, hot: Hot, change: Change, takes: Sequence[Entry] = ()) -> None:
        """Write what a rule of the ledger decided. `takes` are the inputs it consumed.

        :raises NotWaiting: one of them does not wait any more
        """
        if takes:
            self._take(hot, change, takes)
        num, taken = hot.num, _taken_at_once(change)
        self._entries += [
            (num, e.seq, e.at, e.queued, taken.get(e.seq), e.id, e.type, e.body)
            for e in change.entries
        ]
        if waits := [seq for seq, when in taken.items() if not when]:
            hot.waits_from = hot.waits_from or waits[0]
            if hot.waiting is not None:
                hot.waiting.update(waits)
        self.put(hot, change.state)

    def _take(self, hot: Hot, change: Change, takes: Sequence[Entry]) -> None:
        if hot.waiting is None:
            hot.waiting = self._waiting(hot)
        seqs = {entry.seq for entry in takes}
        if len(seqs) < len(takes) or not seqs <= hot.waiting:
            raise NotWaiting("an input was taken up already, or withdrawn")
        hot.waiting -= seqs
        hot.waits_from = min(hot.waiting, default=0)
        again = {entry.id: entry.seq for entry in change.entries}
        taken = {entry.seq: again.get(entry.id, entry.seq) for entry in takes}
        for i, row in enumerate(self._entries):
            if row[0] == hot.num and row[1] in taken:  # accepted by this batch, and not written yet
                self._entries[i] = (*row[:4], taken.pop(row[1]), *row[5:])
        self._taken += [(when, hot.num, seq) for seq, when in taken.items()]

    def put(self, hot: Hot, state: State) -> None:
        """Write where the session stands now."""
        before, hot.state, hot.updated_at = hot.state, state, self.now
        self._advanced[hot.num] = hot
        if state != replace(
            before, head=state.head, queued=state.queued, sent=state.sent, sent_at=state.sent_at
        ):
            self._stepped[hot.num] = hot

    def recall(self, hot: Hot, receipt: Receipt) -> Entry | None:
        """What was written under this receipt before, if anything.

        :raises IdempotencyMismatch: something else was
        """
        known = self._receipts.get((hot.num, receipt.key)) or self._recalled(hot, receipt.key)
        if known is None:
            return None
        fingerprint, entry = known
        if fingerprint != receipt.fingerprint:
            raise IdempotencyMismatch()
        return entry

    def note(self, hot: Hot, receipt: Receipt, entry: Entry) -> None:
        """Remember an entry that was just written by its sender's key."""
        self._receipts[hot.num, receipt.key] = receipt.fingerprint, entry


def _taken_at_once(change: Change) -> dict[int, int]:
    """For each new input where it was taken up; 0: it waits."""
    if not change.opened:
        return {}
    again = {entry.id: entry.seq for entry in change.entries}
    return {e.seq: again[e.id] if e.seq in change.consumed else 0 for e in change.opened}
