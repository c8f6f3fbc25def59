"""What an operation sees of the database while its batch is open.

The writer is alone: one thread, one connection, one process (by lock). So what it remembers of a
session is the truth, and it need not ask the database again; and what operations write can wait in
lists until the end of the batch, where one statement takes all rows of a kind. Whatever asks the
database a question goes through `query`, which writes the lists out first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain, count
from typing import Any, Final, Protocol, TypeVar

import apsw
import msgspec

from roost.domain.events import Entry, Micros
from roost.domain.session import Session, Spec
from roost.errors import NotFound
from roost.ports.nodes import About
from roost.stores.sql.batch import LockKind, SqlTransaction
from roost.stores.sql.rows import (
    ENTRY_COLUMNS,
    SESSION_COLUMNS,
    SESSIONS,
    CachedSession,
    NewSession,
    Row,
    Settled,
    cached_of,
    encode,
    entry_of,
    head_columns,
    spec_columns,
    spec_of,
    state_columns,
)
from roost.stores.sql.sessions import CREATED, REWRITE, SLICES, matching
from roost.stores.sql.webhooks import ANY_ENABLED, TELL
from roost.stores.sqlite.clock import Clock
from roost.stores.sqlite.driver import MOST_ROWS

T_co = TypeVar("T_co", covariant=True)
_MOST_REMEMBERED: Final = 10_000

# A session by its id.
_FIND = f"SELECT {SESSION_COLUMNS} FROM {SESSIONS} WHERE s.id = ?"

# What a session was created with.
_SPEC = "SELECT spec FROM specs WHERE session = ?"


class _RowsStatement:
    """A statement for rows, which takes up to 64 of them at a time.

    For each statement the driver lets other threads take the interpreter, and gets it back when the event
    loop pauses. That takes longer than writing a row. The driver keeps one for each number of rows
    (`driver.connect`).
    """

    def __init__(self, insert: str, columns: int) -> None:
        row = f"({','.join('?' * columns)})"
        self._for = [f"{insert} VALUES {','.join([row] * n)}" for n in range(MOST_ROWS + 1)]

    def run(self, cursor: apsw.Cursor, rows: Sequence[Row]) -> None:
        """Write the rows, in their order."""
        if len(rows) == 1:
            cursor.execute(self._for[1], rows[0])
            return
        for at in range(0, len(rows), MOST_ROWS):
            some = rows[at : at + MOST_ROWS]
            cursor.execute(self._for[len(some)], tuple(chain(*some)))


# The new entries of a batch. If one cannot be written, the whole batch is rolled back; so SQLite need not be
# able to undo this statement alone, for which it would copy each page before it changes it.
_WRITE = _RowsStatement(
    "INSERT OR FAIL INTO entries (session, seq, at, queued, taken, id, type, body)", columns=8
)

# The inputs of a session that wait.
_WAITING = "SELECT seq FROM entries WHERE session = ? AND seq >= ? AND taken = 0"

# The same, whole.
_INPUTS = f"""
SELECT {ENTRY_COLUMNS} FROM entries e
WHERE e.session = ? AND e.seq >= ? AND e.taken = 0 ORDER BY e.seq
"""

# The inputs that agents got in a batch.
_TAKE = "UPDATE entries SET taken = ? WHERE session = ? AND seq = ?"

# Where the sessions written to now end: all columns of rows that are there already.
_ADVANCE = _RowsStatement(
    "REPLACE INTO heads (head, queued, waits_from, sent, sent_at, updated_at, session)", columns=7
)

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

# A new session: three rows.
_CREATE = """
INSERT INTO sessions (id, tenant, created_at, agent_id, agent_version, environment_id,
                      workspace, created_by, status, owner, active_since, archived_at, rest)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING num
"""
_CREATE_HEAD = """
INSERT INTO heads (head, queued, waits_from, sent, sent_at, updated_at, session)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_CREATE_SPEC = "INSERT INTO specs (session, spec) VALUES (?, ?)"

# Remember a creator's key.
_REMEMBER_CREATION = (
    "INSERT INTO creations (tenant, key, fingerprint, session_id) VALUES (?, ?, ?, ?)"
)

# A session goes.
_DELETE: Final = (
    "DELETE FROM sessions WHERE num = ?",
    "DELETE FROM heads WHERE session = ?",
    "DELETE FROM specs WHERE session = ?",
)
_BURY = """
INSERT INTO graves (kind, num, tenant, id, swept) VALUES ('session', ?, ?, ?, 0)
"""


class SqliteOperation(Protocol[T_co]):
    """What the writer does: `sql.batch.StoreOperation`, or one that only this database has."""

    def on(self, tx: SqliteTransaction, /) -> T_co:
        """Carry it out in this transaction, and give what came of it."""
        ...


class SqliteTransaction(SqlTransaction):
    """One batch after the other, on the writer's thread."""

    def __init__(self, db: apsw.Connection, clock: Clock) -> None:
        super().__init__(clock.last)
        self._clock = clock
        self.nodes: dict[str, float] = {}
        self.standing: dict[str, tuple[About, Micros]] = {}
        self.later: list[SqliteOperation[object]] = []
        """What is to be done in batches after this one."""
        self._db = db
        self._cursor = db.cursor()
        self._sessions: OrderedDict[str, CachedSession] = OrderedDict()
        self._committed = 0  # the number of the last batch that is on disk
        self._versions = count(1)
        self._knows_webhooks = False

    def remembers(self, session_id: str) -> bool:
        """Whether a batch had to do with the session lately."""
        return session_id in self._sessions

    def settled(self, session_id: str) -> Settled | None:
        """The session as it is committed; None: it is not remembered, or the batch that is open changes it.

        Any thread may ask. A batch says first that it changes a session, and then changes its state, always to
        another one; what was changed in vain is forgotten before the next batch.
        """
        known = self._sessions.get(session_id)
        if known is None:
            return None
        settled = Settled(known.state, known.updated_at, known.spec_version)
        is_committed = known.batch <= self._committed and known.state is settled.state
        return settled if is_committed and self._sessions.get(session_id) is known else None

    # The life of a batch

    def begin(self) -> None:
        """Open a batch. All of it happens at one moment, never before the last one's."""
        self.number += 1
        self._happens(self._clock.tick())
        self._roll_back()  # nothing, unless the disk refused even that the last time
        self._cursor.execute("BEGIN IMMEDIATE")
        if not self._knows_webhooks:
            self.has_webhooks = bool(self._cursor.execute(f"SELECT {ANY_ENABLED}").get)
            self._knows_webhooks = True

    def commit(self) -> None:
        """All of it is on disk when this returns."""
        self.flush()
        self._cursor.execute("COMMIT")
        self._committed = self.number
        while len(self._sessions) > _MOST_REMEMBERED:
            self._sessions.popitem(last=False)

    def abandon(self) -> None:
        """Nothing of it happened; nothing remembered may be believed."""
        self._clear()
        self._sessions.clear()
        self.later.clear()
        self._knows_webhooks = False
        self._roll_back()

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._cursor.execute("ROLLBACK")

    def flush(self) -> None:
        """Write out what waits in the lists."""
        if self._entries:
            _WRITE.run(self._cursor, self._entries)
            self._entries = []
        if self._taken:
            self._run(_TAKE, self._taken)
            self._taken = []
        if self._advanced:
            _ADVANCE.run(self._cursor, [head_columns(s) for s in self._advanced.values()])
            self._advanced = {}
        if self._stepped:
            self._run(_STEP, [(*state_columns(s.state), s.num) for s in self._stepped.values()])
            self._stepped = {}
        if self._receipts:
            known = self._receipts.items()
            self._run(
                _REMEMBER, [(num, key, mark, entry.seq) for (num, key), (mark, entry) in known]
            )
            self._receipts = {}
        if self._told:
            self._run(TELL, self._told)
            self._told = []

    # What operations do

    def query(self, sql: str, *values: Any) -> list[Row]:
        """Run one statement on the database as the batch has left it so far."""
        self.flush()
        return self._cursor.execute(sql, values).fetchall()

    def _run(self, sql: str, rows: Iterable[Row]) -> None:
        self._cursor.executemany(sql, rows)

    def add(self, new: NewSession) -> CachedSession:
        columns = (*spec_columns(new.spec), *state_columns(new.state))
        [(num,)] = self.query(_CREATE, new.id, new.tenant, self.now, *columns)
        session = CachedSession(num, new.id, new.tenant, self.now, new.state)
        session.batch = self.number
        self._remember(session)
        self.query(_CREATE_HEAD, *head_columns(session))
        self.query(_CREATE_SPEC, num, encode(new.spec))
        if (receipt := new.receipt) is not None:
            self.query(_REMEMBER_CREATION, new.tenant, receipt.key, receipt.fingerprint, new.id)
        return session

    def session(self, session_id: str) -> CachedSession:
        """The session as this transaction sees it. :raises NotFound: no such session"""
        known = self._sessions.get(session_id)
        if known is not None:
            self._sessions.move_to_end(session_id)
            return known
        row = self._cursor.execute(_FIND, (session_id,)).fetchone()
        if row is None:
            raise NotFound(f"there is no session {session_id}")
        return self._remember(cached_of(row))

    def _remember(self, session: CachedSession) -> CachedSession:
        session.spec_version = next(self._versions)
        self._sessions[session.id] = session
        return session

    def _waiting(self, session: CachedSession) -> set[int]:
        return {seq for (seq,) in self.query(_WAITING, session.num, session.waits_from)}

    def inputs(self, session: CachedSession) -> list[Entry]:
        if not session.waits_from:
            return []
        return [entry_of(row) for row in self.query(_INPUTS, session.num, session.waits_from)]

    def _recalled(self, session: CachedSession, key: str) -> tuple[str, Entry] | None:
        row = self._cursor.execute(_RECALL, (session.num, key)).fetchone()
        return None if row is None else (row[0], entry_of(row[1:]))

    # What procedures do besides. Nobody else writes, so there is nothing to lock.

    async def ask(self, sql: str, *values: Any) -> list[Row]:
        return self.query(sql, *values)

    async def ask_locked(self, sql: str, *values: Any, shared: bool = False) -> list[Row]:
        return self.query(sql, *values)

    async def ask_each(self, sql: str, rows: Iterable[Row]) -> None:
        self.flush()
        self._run(sql, rows)

    async def lock(self, kind: LockKind, name: str) -> None:
        pass

    async def whole(self, session: CachedSession) -> Session:
        [(spec,)] = self.query(_SPEC, session.num)
        return session.session(spec_of(spec), self.now)

    async def rewrite(self, session: CachedSession, spec: Spec) -> None:
        session.batch, session.spec_version = self.number, next(self._versions)
        self.query(REWRITE, encode(spec), session.num)

    async def session_made(self, new: NewSession) -> Session | None:
        if new.receipt is None:
            return None
        made = matching(self.query(CREATED, new.tenant, new.receipt.key), new.receipt)
        return None if made is None else await self.whole(self.session(made))

    async def delete_session(self, session: CachedSession) -> None:
        self.flush()
        self._sessions.pop(session.id, None)
        for statement in _DELETE:
            self.query(statement, session.num)
        self.query(_BURY, session.num, session.tenant, session.id)
        self.later.append(SweepSlice())

    def webhooks_changed(self) -> None:
        """Operations of this batch tell them, too; the next one looks whether any is left."""
        self.has_webhooks = True
        self._knows_webhooks = False

    async def lives(self, node: str) -> bool:
        return self.nodes.get(node, 0) > time.monotonic()


# Removing the logs of deleted sessions

_SLICE: Final = 500

# One deleted session whose log is still there.
_NEXT = "SELECT num FROM graves WHERE swept = 0 LIMIT 1"

# Nothing of it is left.
_DONE = "UPDATE graves SET swept = 1 WHERE kind = 'session' AND num = ?"


class SweepSlice(msgspec.Struct, frozen=True):
    """Removes a slice of a deleted session's log, and asks for the next one: nobody waits for a long log.

    Each slice is an operation like any other, in a batch with whatever else is asked for. What a crash or a full
    disk cuts off goes on when the store is opened again.
    """

    def on(self, tx: SqliteTransaction) -> None:
        grave = tx.query(_NEXT)
        if not grave:
            return
        [(num,)] = grave
        if not any(tx.query(a_slice, num, _SLICE) for a_slice in SLICES):
            tx.query(_DONE, num)
        tx.later.append(self)
