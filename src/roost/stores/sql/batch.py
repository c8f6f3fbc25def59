"""Writing in batches: what an operation is, and what all operations of one batch want written.

An operation is a value with a method `on`, which a writer calls inside a transaction, and may call again. Nothing
in `WriteBatch` touches a database: a store fills in what the operations need to know, runs them, and then writes
the lists out, with one statement for all rows of a kind. `SqlTransaction` can be asked questions as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from enum import IntEnum
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from roost.domain.events import Entry, Micros, Moment
from roost.domain.ledger_writer import Change
from roost.domain.session import Session, Spec, State
from roost.domain.webhook import told_by
from roost.errors import IdempotencyMismatch, NotFound, NotWaiting
from roost.ids import mint
from roost.ports.drafts import new_event_id
from roost.ports.log import Receipt
from roost.stores.sql.rows import CachedSession, NewSession, Row

T_co = TypeVar("T_co", covariant=True)


class Needs(msgspec.Struct, frozen=True):
    """What an operation will ask its batch for: a session, which inputs wait, inputs under some keys.

    `inputs`: it will ask for the waiting inputs themselves. `new`: the session is not there yet, and is
    to get a number. A store that asks its database at any time need not look at it.
    """

    session_id: str
    waiting: bool = False
    inputs: bool = False
    keys: Sequence[str] = ()
    new: bool = False


class StoreOperation(Protocol[T_co]):
    """A change that asks for nothing but its needs, so that many of them go into one transaction.

    It raises a `RoostError` before it writes anything: then that is its answer, and the batch goes on.
    """

    @property
    def needs(self) -> Needs:
        """What must be known before it is run."""
        ...

    def on(self, batch: WriteBatch, /) -> T_co:
        """Carry it out in this batch, and give what came of it."""
        ...


class Procedure(Protocol[T_co]):
    """A change that asks the database questions. It, too, raises a `RoostError` before it writes anything."""

    @property
    def needs(self) -> Sequence[Needs]:
        """What must be known before it is run."""
        ...

    def on(self, tx: SqlTransaction, /) -> Coroutine[Any, Any, T_co]:
        """Carry it out in this batch, and give what came of it."""
        ...


class LockKind(IntEnum):
    """What is locked by name. The numbers are those that servers before this one use."""

    QUOTA = 1
    RECORD_NAME = 3
    WORKSPACE = 5
    WEBHOOKS = 7


class WriteBatch(ABC):
    """One batch: all of it happens at one moment, `now`."""

    number = 0
    """Which one it is, where the store keeps sessions from one batch to the next."""

    def __init__(self, now: Micros) -> None:
        self._happens(now)
        self.has_webhooks = False
        """Whether any webhook is enabled, so that it is worth to note what is to be told."""
        self._clear()

    def _happens(self, now: Micros) -> None:
        self.now = now
        self.moment = Moment(now, new_event_id)
        """The same for the rules of the ledger."""

    def _clear(self) -> None:
        self._entries: list[Row] = []
        self._taken: list[Row] = []
        self._advanced: dict[int, CachedSession] = {}
        self._stepped: dict[int, CachedSession] = {}
        self._receipts: dict[tuple[int, str], tuple[str, Entry]] = {}
        self._told: list[Row] = []

    # What a store knows

    @abstractmethod
    def add(self, new: NewSession) -> CachedSession:
        """Make a session, which has no entries yet."""

    @abstractmethod
    def session(self, session_id: str) -> CachedSession:
        """The session as this batch sees it. :raises NotFound: no such session"""

    @abstractmethod
    def _waiting(self, session: CachedSession) -> set[int]:
        """The seqs of the session's inputs that wait."""

    @abstractmethod
    def inputs(self, session: CachedSession) -> list[Entry]:
        """The session's inputs that wait, oldest first; those too that this batch has written."""

    @abstractmethod
    def _recalled(self, session: CachedSession, key: str) -> tuple[str, Entry] | None:
        """The fingerprint and the entry that the database has under a sender's key."""

    # What operations do

    def session_of(self, tenant: str, session_id: str) -> CachedSession:
        """The session as this batch sees it, if it is the tenant's.

        :raises NotFound: no such session, or another tenant's
        """
        found = self.session(session_id)
        if found.tenant != tenant:
            raise NotFound(f"there is no session {session_id}")
        return found

    def apply(self, session: CachedSession, change: Change, takes: Sequence[Entry] = ()) -> None:
        """Write what a rule of the ledger decided. `takes` are the inputs it consumed.

        :raises NotWaiting: one of them does not wait any more
        """
        if takes:
            self._take(session, change, takes)
        num, taken = session.num, _taken_at_once(change)
        self._entries += [
            (num, e.seq, e.at, e.queued, taken.get(e.seq), e.id, e.type, e.body)
            for e in change.entries
        ]
        if waits := [seq for seq, when in taken.items() if not when]:
            session.waits_from = session.waits_from or waits[0]
            if session.waiting is not None:
                session.waiting.update(waits)
        if self.has_webhooks:
            for type, thread in told_by(change.entries):
                self.tell(session.tenant, type, session.id, thread)
        self.put(session, change.state, only_counts=change.only_counts)

    def tell(self, tenant: str, type: str, subject: str, parent: str = "") -> None:
        """Have the tenant's webhooks told, by this very commit, what happens to a thing."""
        if self.has_webhooks:
            self._told.append((mint("whe"), tenant, type, subject, parent, self.now))

    def _take(self, session: CachedSession, change: Change, takes: Sequence[Entry]) -> None:
        if session.waiting is None:
            session.waiting = self._waiting(session)
        seqs = {entry.seq for entry in takes}
        if len(seqs) < len(takes) or not seqs <= session.waiting:
            raise NotWaiting("an input was taken up already, or withdrawn")
        session.waiting -= seqs
        session.waits_from = min(session.waiting, default=0)
        again = {entry.id: entry.seq for entry in change.entries}
        taken = {entry.seq: again.get(entry.id, entry.seq) for entry in takes}
        for i, row in enumerate(self._entries):
            if (
                row[0] == session.num and row[1] in taken
            ):  # accepted by this batch, and not written yet
                self._entries[i] = (*row[:4], taken.pop(row[1]), *row[5:])
        self._taken += [(when, session.num, seq) for seq, when in taken.items()]

    def put(self, session: CachedSession, state: State, *, only_counts: bool = False) -> None:
        """Write where the session stands now. `only_counts`: see `Change`."""
        before = session.state
        # In this order, for whoever looks at it on another thread: see `SqliteTransaction.settled`.
        session.batch, session.updated_at, session.state = self.number, self.now, state
        self._advanced[session.num] = session
        if not only_counts and state != replace(
            before, head=state.head, queued=state.queued, sent=state.sent, sent_at=state.sent_at
        ):
            self._stepped[session.num] = session

    def recall(self, session: CachedSession, receipt: Receipt) -> Entry | None:
        """What was written under this receipt before, if anything.

        :raises IdempotencyMismatch: something else was
        """
        known = self._receipts.get((session.num, receipt.key)) or self._recalled(
            session, receipt.key
        )
        if known is None:
            return None
        fingerprint, entry = known
        if fingerprint != receipt.fingerprint:
            raise IdempotencyMismatch()
        return entry

    def note(self, session: CachedSession, receipt: Receipt, entry: Entry) -> None:
        """Remember an entry that was just written by its sender's key."""
        self._receipts[session.num, receipt.key] = receipt.fingerprint, entry


class SqlTransaction(WriteBatch):
    """A batch that can also be asked. Answers need not show what it is about to write."""

    def at_least(self, moment: Micros) -> None:
        """It happens no earlier than that."""
        self._happens(max(self.now, moment))

    def webhooks_changed(self) -> None:
        """There may be other webhooks from here on. A store that asks in each transaction need not be told."""

    @abstractmethod
    async def ask(self, sql: str, *values: Any) -> list[Row]:
        """Run one statement, and give its rows."""

    @abstractmethod
    async def ask_locked(self, sql: str, *values: Any, shared: bool = False) -> list[Row]:
        """As `ask`; nobody else changes these rows until the end. `shared`: but others may say so, too."""

    @abstractmethod
    async def ask_each(self, sql: str, rows: Iterable[Row]) -> None:
        """Run one statement for each row."""

    @abstractmethod
    async def lock(self, kind: LockKind, name: str) -> None:
        """Whoever else locks this name waits until the end."""

    @abstractmethod
    async def whole(self, session: CachedSession) -> Session:
        """The session with its spec."""

    @abstractmethod
    async def rewrite(self, session: CachedSession, spec: Spec) -> None:
        """Give the session another spec; what is applied afterwards says so."""

    @abstractmethod
    async def session_made(self, new: NewSession) -> Session | None:
        """The session that was made under the new one's receipt; if there is none, the receipt is the new one's.

        :raises IdempotencyMismatch: another request was made under its key
        :raises NotFound: there was one, and it has been deleted
        """

    @abstractmethod
    async def delete_session(self, session: CachedSession) -> None:
        """It is gone for everybody at once; its log follows slice by slice."""

    @abstractmethod
    async def lives(self, node: str) -> bool:
        """Whether a node's lease holds."""


def _taken_at_once(change: Change) -> dict[int, int]:
    """For each new input where it was taken up; 0: it waits."""
    if not change.opened:
        return {}
    if not change.consumed:
        return {entry.seq: 0 for entry in change.opened}
    again = {entry.id: entry.seq for entry in change.entries}
    return {e.seq: again[e.id] if e.seq in change.consumed else 0 for e in change.opened}
