"""What an operation sees of the database while its batch is open.

The writer is alone: one thread, one connection, one process (by lock). So what it remembers of a
session is the truth, and it need not ask the database again; and what operations write can wait in
lists until the end of the batch, where one statement takes all rows of a kind. Whatever asks the
database a question goes through `ask`, which writes the lists out first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final

import apsw

from roost.domain.events import Entry, Micros
from roost.domain.session import Session, Spec, State
from roost.errors import NotFound
from roost.ports.nodes import About
from roost.stores.sql.rows import (
    ENTRY_COLUMNS,
    SESSION_COLUMNS,
    Hot,
    Row,
    Settled,
    encode,
    entry_of,
    head_columns,
    hot_of,
    spec_of,
    state_columns,
)
from roost.stores.sql.sheet import Sheet
from roost.stores.sqlite.clock import Clock

_MOST_REMEMBERED: Final = 10_000

# A session by its id.
_FIND = f"SELECT {SESSION_COLUMNS} FROM sessions s JOIN heads h ON h.session = s.num WHERE s.id = ?"

# What a session was created with.
_SPEC = "SELECT spec FROM specs WHERE session = ?"

# What it was changed to.
_REWRITE = "UPDATE specs SET spec = ? WHERE session = ?"

# The new entries of a batch.
_WRITE = """
INSERT INTO entries (session, seq, at, queued, taken, id, type, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""

# The inputs of a session that wait.
_WAITING = "SELECT seq FROM entries WHERE session = ? AND seq >= ? AND taken = 0"

# The same, whole.
_INPUTS = f"""
SELECT {ENTRY_COLUMNS} FROM entries e
WHERE e.session = ? AND e.seq >= ? AND e.taken = 0 ORDER BY e.seq
"""

# The inputs that agents got in a batch.
_TAKE = "UPDATE entries SET taken = ? WHERE session = ? AND seq = ?"

# Where the sessions written to now end.
_ADVANCE = """
UPDATE heads SET head = ?, queued = ?, waits_from = ?, sent = ?, sent_at = ?, updated_at = ?
WHERE session = ?
"""

# Where the sessions that took a step now stand.
_STEP = """
UPDATE sessions SET status = ?, owner = ?, active_since = ?, archived_at = ?, rest = ? WHERE num = ?
"""

# The input that came under a key, as it was first written.
_RECALL = f"""
SELECT r.fingerprint, {ENTRY_COLUMNS}
FROM receipts r JOIN entries e ON e.session = r.session AND e.seq = r.seq
WHERE r.session = ? AND r.key = ?
"""

# Remember the keys of a batch.
_REMEMBER = "INSERT INTO receipts (session, key, fingerprint, seq) VALUES (?, ?, ?, ?)"


class Transaction(Sheet):
    """One batch after the other, on the writer's thread."""

    def __init__(self, db: apsw.Connection, clock: Clock) -> None:
        super().__init__(clock.last)
        self._clock = clock
        self.nodes: dict[str, float] = {}
        self.standing: dict[str, tuple[About, Micros]] = {}
        self.later: list[Callable[[Transaction], object]] = []
        self._db = db
        self._cursor = db.cursor()
        self._sessions: OrderedDict[str, Hot] = OrderedDict()
        self._changed: list[Hot] = []
        self._versions = count(1)

    def remembers(self, session_id: str) -> bool:
        """Whether a batch had to do with the session lately."""
        return session_id in self._sessions

    def settled(self, session_id: str) -> Settled | None:
        """The session as it is committed; None: it is not remembered, or the batch that is open changes it.

        Any thread may ask: the state, which is looked at last, is what a batch changes first, and always
        to another one.
        """
        hot = self._sessions.get(session_id)
        settled = hot and hot.settled
        return settled if hot and settled and hot.state is settled.state else None

    # The life of a batch

    def begin(self) -> None:
        """Open a batch. All of it happens at one moment, never before the last one's."""
        self.now = self._clock.tick()
        self._roll_back()  # nothing, unless the disk refused even that the last time
        self._cursor.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """All of it is on disk when this returns."""
        self.flush()
        self._cursor.execute("COMMIT")
        for hot in self._changed:
            hot.settle()
        self._changed.clear()
        while len(self._sessions) > _MOST_REMEMBERED:
            self._sessions.popitem(last=False)

    def abandon(self) -> None:
        """Nothing of it happened; nothing remembered may be believed."""
        self._clear()
        self._changed.clear()
        self._sessions.clear()
        self.later.clear()
        self._roll_back()

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._cursor.execute("ROLLBACK")

    def flush(self) -> None:
        """Write out what waits in the lists."""
        if self._entries:
            self.run(_WRITE, self._entries)
        if self._taken:
            self.run(_TAKE, self._taken)
        if self._advanced:
            self.run(_ADVANCE, [head_columns(hot) for hot in self._advanced.values()])
        if self._stepped:
            self.run(_STEP, [(*state_columns(h.state), h.num) for h in self._stepped.values()])
        if self._receipts:
            known = self._receipts.items()
            self.run(
                _REMEMBER, [(num, key, mark, entry.seq) for (num, key), (mark, entry) in known]
            )
        self._clear()

    # What operations do

    def ask(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run one statement on the database as the batch has left it so far."""
        self.flush()
        return self._cursor.execute(sql, tuple(values)).fetchall()

    def run(self, sql: str, rows: Iterable[Row]) -> None:
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
        hot = self.remember(hot_of(row))
        hot.settle()
        return hot

    def remember(self, hot: Hot) -> Hot:
        """Know this session from now on."""
        hot.spec_version = next(self._versions)
        self._sessions[hot.id] = hot
        return hot

    def put(self, hot: Hot, state: State) -> None:
        super().put(hot, state)
        self._changed.append(hot)

    def rewrite(self, hot: Hot, spec: Spec) -> None:
        """Give the session another spec; what is put afterwards says so."""
        hot.spec_version = next(self._versions)
        self.ask(_REWRITE, (encode(spec), hot.num))

    def forget(self, hot: Hot) -> None:
        """The session is gone."""
        self.flush()
        self._sessions.pop(hot.id, None)

    def whole(self, hot: Hot) -> Session:
        """The session with its spec."""
        return hot.session(spec_of(self.ask(_SPEC, (hot.num,))[0][0]), self.now)

    def _waiting(self, hot: Hot) -> set[int]:
        return {seq for (seq,) in self.ask(_WAITING, (hot.num, hot.waits_from))}

    def inputs(self, hot: Hot) -> list[Entry]:
        if not hot.waits_from:
            return []
        return [entry_of(row) for row in self.ask(_INPUTS, (hot.num, hot.waits_from))]

    def _recalled(self, hot: Hot, key: str) -> tuple[str, Entry] | None:
        row = self._cursor.execute(_RECALL, (hot.num, key)).fetchone()
        return None if row is None else (row[0], entry_of(row[1:]))
