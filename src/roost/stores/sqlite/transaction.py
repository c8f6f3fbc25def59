"""What an operation sees of the database while its batch is open.

The writer is alone: one thread, one connection, one process (by lock). So what it remembers of a
session is the truth, and it need not ask the database again; and what operations write can wait in
lists until the end of the batch, where one statement takes all rows of a kind. Whatever asks the
database a question goes through `ask`, which writes the lists out first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import apsw
from msgspec.structs import replace

from roost.domain.events import Entry, Micros
from roost.domain.ledger import Change
from roost.domain.session import Session, State
from roost.errors import IdempotencyMismatch, InvalidRequest, NotFound
from roost.ports.log import Receipt
from roost.stores.sqlite.clock import Clock
from roost.stores.sqlite.driver import Row
from roost.stores.sqlite.rows import (
    ENTRY_COLUMNS,
    SESSION_COLUMNS,
    Hot,
    entry_of,
    head_columns,
    hot_of,
    spec_of,
    state_columns,
)

MARK_EVERY: Final = 64
_MOST_REMEMBERED: Final = 10_000

# A session by its id.
_FIND = f"SELECT {SESSION_COLUMNS} FROM sessions s JOIN heads h ON h.session = s.num WHERE s.id = ?"

# What a session was created with.
_SPEC = "SELECT spec FROM specs WHERE session = ?"

# The new entries of a batch.
_WRITE = """
INSERT INTO entries (num, session, seq, prev, prev_input, at, queued, taken, id, type, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

# Where readers can jump to.
_MARK = "INSERT INTO marks (session, seq, at, entry) VALUES (?, ?, ?, ?)"

# The newest entry of all.
_NEWEST = "SELECT coalesce(max(num), 0) FROM entries"

# The inputs from the newest back to a seq that still wait.
_WAITING = """
WITH RECURSIVE walk (num, seq, taken, prev_input) AS (
    SELECT num, seq, taken, prev_input FROM entries WHERE num = ?1
    UNION ALL
    SELECT e.num, e.seq, e.taken, e.prev_input
    FROM walk w JOIN entries e ON e.num = w.prev_input WHERE w.seq > ?2
)
SELECT seq, num FROM walk WHERE taken = 0
"""

# An input that the agent got.
_TAKE = "UPDATE entries SET taken = ? WHERE num = ?"

# Where the sessions written to now end.
_ADVANCE = """
UPDATE heads SET last = ?, last_input = ?, head = ?, queued = ?, sent = ?, sent_at = ?,
                 updated_at = ?
WHERE session = ?
"""

# Where the sessions that took a step now stand.
_STEP = """
UPDATE sessions SET status = ?, owner = ?, active_since = ?, archived_at = ?, rest = ? WHERE num = ?
"""

# The input that came under a key, as it was first written.
_RECALL = f"""
SELECT r.fingerprint, {ENTRY_COLUMNS}
FROM receipts r JOIN entries e ON e.num = r.entry
WHERE r.session = ? AND r.key = ?
"""

# Remember the keys of a batch.
_REMEMBER = "INSERT INTO receipts (session, key, fingerprint, entry) VALUES (?, ?, ?, ?)"


class Transaction:
    """One batch after the other, on the writer's thread."""

    def __init__(self, db: apsw.Connection, clock: Clock) -> None:
        self.now: Micros = clock.last
        self._clock = clock
        self.nodes: dict[str, float] = {}
        self.later: list[Callable[[Transaction], object]] = []
        self._db = db
        self._cursor = db.cursor()
        self._sessions: OrderedDict[str, Hot] = OrderedDict()
        self._newest: int = db.execute(_NEWEST).get
        self._forget_pending()

    def _forget_pending(self) -> None:
        self._entries: list[Row] = []
        self._marks: list[Row] = []
        self._advanced: dict[int, Hot] = {}
        self._stepped: dict[int, Hot] = {}
        self._receipts: dict[tuple[int, str], tuple[str, int, Entry]] = {}

    # The life of a batch

    def begin(self) -> None:
        """Open a batch. All of it happens at one moment, never before the last one's."""
        self.now = self._clock.tick()
        self._cursor.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """All of it is on disk when this returns."""
        self.flush()
        self._cursor.execute("COMMIT")
        while len(self._sessions) > _MOST_REMEMBERED:
            self._sessions.popitem(last=False)

    def abandon(self) -> None:
        """Nothing of it happened; nothing remembered may be believed."""
        self._forget_pending()
        self._sessions.clear()
        self.later.clear()
        if self._db.in_transaction:
            self._cursor.execute("ROLLBACK")
        self._newest = self._db.execute(_NEWEST).get

    def flush(self) -> None:
        """Write out what waits in the lists."""
        if self._entries:
            self.run(_WRITE, self._entries)
        if self._marks:
            self.run(_MARK, self._marks)
        if self._advanced:
            self.run(_ADVANCE, [head_columns(hot) for hot in self._advanced.values()])
        if self._stepped:
            self.run(_STEP, [(*state_columns(h.state), h.num) for h in self._stepped.values()])
        if self._receipts:
            known = self._receipts.items()
            self.run(_REMEMBER, [(session, key, *rest[:2]) for (session, key), rest in known])
        self._forget_pending()

    # What operations do

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run one statement on the database as the batch has left it so far."""
        self.flush()
        return self._cursor.execute(sql, tuple(values)).fetchall()

    def run(self, sql: str, rows: Sequence[Row]) -> None:
        """Run one statement for each row."""
        self._cursor.executemany(sql, rows)

    def session(self, session_id: str) -> Hot:
        """:raises NotFound: no such session"""
        known = self._sessions.get(session_id)
        if known is not None:
            self._sessions.move_to_end(session_id)
            return known
        row = self._cursor.execute(_FIND, (session_id,)).fetchone()
        if row is None:
            raise NotFound(f"there is no session {session_id}")
        return self.remember(hot_of(row))

    def session_of(self, tenant: str, session_id: str) -> Hot:
        """:raises NotFound: no such session, or another tenant's"""
        found = self.session(session_id)
        if found.tenant != tenant:
            raise NotFound(f"there is no session {session_id}")
        return found

    def remember(self, hot: Hot) -> Hot:
        """Know this session from now on."""
        self._sessions[hot.id] = hot
        return hot

    def forget(self, hot: Hot) -> None:
        """The session is gone."""
        self.flush()
        self._sessions.pop(hot.id, None)

    def whole(self, hot: Hot) -> Session:
        """The session with its spec."""
        return hot.session(spec_of(self.ask(_SPEC, (hot.num,))[0][0]), self.now)

    def apply(self, hot: Hot, change: Change, takes: Sequence[Entry] = ()) -> None:
        """Write what a rule of the ledger decided. `takes` are the inputs it consumed.

        :raises InvalidRequest: one of them does not wait any more
        """
        if takes:
            self._take(hot, change, takes)
        waiting = {entry.seq for entry in change.opened}
        for e in change.entries:
            self._newest = num = self._newest + 1
            before, taken = (hot.last_input, 0) if e.seq in waiting else (None, None)
            self._entries.append(
                (num, hot.num, e.seq, hot.last, before, e.at, e.queued, taken, e.id, e.type, e.body)
            )
            hot.last = num
            if taken is not None:
                hot.last_input = num
            if e.seq % MARK_EVERY == 0:
                self._marks.append((hot.num, e.seq, e.at, num))
        self.put(hot, change.state)

    def _take(self, hot: Hot, change: Change, takes: Sequence[Entry]) -> None:
        oldest = min(entry.seq for entry in takes)
        waiting: dict[int, int] = dict(self.ask(_WAITING, (hot.last_input, oldest)))
        found = [waiting.pop(entry.seq, None) for entry in takes]
        if None in found:
            raise InvalidRequest("an input was taken up already")
        again = {entry.id: entry.seq for entry in change.entries}
        taken_at = [again.get(entry.id, entry.seq) for entry in takes]
        self.run(_TAKE, list(zip(taken_at, found, strict=True)))

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
        fingerprint: str
        noted = self._receipts.get((hot.num, receipt.key))
        if noted is not None:
            fingerprint, _, entry = noted
        else:
            row = self._cursor.execute(_RECALL, (hot.num, receipt.key)).fetchone()
            if row is None:
                return None
            fingerprint, entry = row[0], entry_of(row[1:])
        if fingerprint != receipt.fingerprint:
            raise IdempotencyMismatch()
        return entry

    def note(self, hot: Hot, receipt: Receipt, entry: Entry) -> None:
        """Remember an entry that was just written by its sender's key."""
        num = hot.last - (hot.state.head - entry.seq)
        self._receipts[hot.num, receipt.key] = receipt.fingerprint, num, entry
