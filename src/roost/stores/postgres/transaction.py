"""What operations see of the database inside one transaction: the sessions they name, locked.

Many nodes write to one database, so nothing that one of them remembers of a session is the truth.
A batch begins by locking the rows of all its sessions, always in the same order, so that two batches
never wait for each other; what it reads then is what holds until it is committed. Then the
operations run, without asking anything; then one statement writes what came of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from roost.domain.events import Entry, Micros
from roost.domain.session import Session, Spec
from roost.errors import NotFound
from roost.stores.postgres.driver import NOW, STARTED, CommitMark, Connection, worded
from roost.stores.sql import rows as shared
from roost.stores.sql.batch import LockKind, Needs, SqlTransaction
from roost.stores.sql.rows import (
    ENTRY_COLUMNS,
    CachedSession,
    NewSession,
    Row,
    cached_of,
    encode,
    entry_of,
    head_columns,
    spec_columns,
    spec_of,
    state_columns,
)
from roost.stores.sql.sessions import CREATED, REWRITE, absent, matching
from roost.stores.sql.webhooks import ANY_ENABLED, TELL

SESSION_COLUMNS: Final = worded(shared.SESSION_COLUMNS)

LIVES: Final = f"n.expires > 0 AND greatest(n.expires, {STARTED} + n.ttl) > {NOW}"
"""What is true of a node `n` that lives. A database that was down has let nobody renew: after it came
up, each node has its time once more."""

PRESENT: Final = f"{ANY_ENABLED}, {NOW}"
"""What every transaction asks first, with whatever else it asks: whether there is anything to tell, and the time.
Where no webhook is enabled this looks at an empty index, and nothing is ever told."""

# Sessions, which nobody else changes from here on.
_LOCK = f"""
SELECT {SESSION_COLUMNS}, {PRESENT} FROM sessions s WHERE s.id = ANY($1) ORDER BY s.num FOR UPDATE
"""

# The inputs of these sessions that wait.
_WAITING = """
SELECT e.session, e.seq FROM unnest($1::bigint[], $2::bigint[]) AS w (session, oldest)
JOIN entries e ON e.session = w.session AND e.seq >= w.oldest WHERE e.taken = 0
"""

# The same, whole.
_INPUTS = f"""
SELECT e.session, {ENTRY_COLUMNS} FROM unnest($1::bigint[], $2::bigint[]) AS w (session, oldest)
JOIN entries e ON e.session = w.session AND e.seq >= w.oldest WHERE e.taken = 0 ORDER BY e.seq
"""

# The inputs that came under these keys, as they were first written.
_RECALL = f"""
SELECT r.session, r.key, r.fingerprint, {ENTRY_COLUMNS}
FROM unnest($1::bigint[], $2::text[]) AS w (session, key)
JOIN receipts r ON r.session = w.session AND r.key = w.key
JOIN entries e ON e.session = r.session AND e.seq = r.seq
"""

_SPEC = "SELECT spec FROM specs WHERE session = $1"

_LOCK_NAME = "SELECT pg_advisory_xact_lock(hashtextextended($1, $2))"
_LIVES = f"SELECT EXISTS (SELECT 1 FROM nodes n WHERE n.id = $1 AND {LIVES})"
_AT_ONCE: Final = 500

# A whole session.
_MADE = f"""
SELECT {SESSION_COLUMNS}, p.spec FROM sessions s JOIN specs p ON p.session = s.num WHERE s.id = $1
"""

# Remember a creator's key, unless it is known; waits for one who is about to.
_REMEMBER_CREATION = """
INSERT INTO creations (tenant, key, fingerprint, session_id) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING RETURNING 1
"""

# A session goes.
_DELETE: Final = ("DELETE FROM sessions WHERE num = $1", "DELETE FROM specs WHERE session = $1")
_BURY = """
INSERT INTO graves (kind, num, tenant, id, swept) VALUES ('session', $1, $2, $3, 0)
"""

# Numbers for new sessions.
_NUMBERS = f"""
SELECT nextval(pg_get_serial_sequence('sessions', 'num')), {PRESENT} FROM generate_series(1, $1)
"""

# The new sessions of a batch: two rows each.
_CREATE = """
WITH made AS (
    INSERT INTO sessions (num, id, tenant, created_at, agent_id, agent_version, environment_id,
                          workspace, created_by, status, owner, active_since, archived_at, rest,
                          head, queued, waits_from, sent, sent_at, updated_at)
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[],
                         $6::bigint[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[],
                         $12::bigint[], $13::bigint[], $14::bytea[], $15::bigint[], $16::bigint[],
                         $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[])
)
INSERT INTO specs (session, spec) SELECT * FROM unnest($1::bigint[], $21::bytea[])
"""

# All else that a batch writes.
_WRITE = """
WITH written AS (
    INSERT INTO entries (session, seq, at, queued, taken, id, type, body)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::boolean[], $5::bigint[],
                         $6::text[], $7::text[], $8::bytea[])
), remembered AS (
    INSERT INTO receipts (session, key, fingerprint, seq)
    SELECT * FROM unnest($9::bigint[], $10::text[], $11::text[], $12::bigint[])
), marked AS (
    INSERT INTO commits (writer, batch, at)
    SELECT $28::text, $29::bigint, $30::bigint WHERE $28 IS NOT NULL
    ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, at = excluded.at
), taken AS (
    UPDATE entries e SET taken = t.taken
    FROM unnest($13::bigint[], $14::bigint[], $15::bigint[]) AS t (taken, session, seq)
    WHERE e.session = t.session AND e.seq = t.seq
), advanced AS (
    UPDATE sessions s
    SET head = n.head, queued = n.queued, waits_from = n.waits_from, sent = n.sent,
        sent_at = n.sent_at, updated_at = n.updated_at
    FROM unnest($31::bigint[], $32::bigint[], $33::bigint[], $34::bigint[], $35::bigint[],
                $36::bigint[], $37::bigint[])
         AS n (head, queued, waits_from, sent, sent_at, updated_at, num)
    WHERE s.num = n.num
)
UPDATE sessions s
SET head = n.head, queued = n.queued, waits_from = n.waits_from, sent = n.sent,
    sent_at = n.sent_at, updated_at = n.updated_at, status = n.status, owner = n.owner,
    active_since = n.active_since, archived_at = n.archived_at, rest = n.rest
FROM unnest($16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[],
            $21::bigint[], $22::bigint[], $23::text[], $24::text[], $25::bigint[],
            $26::bigint[], $27::bytea[])
     AS n (head, queued, waits_from, sent, sent_at, updated_at, num,
           status, owner, active_since, archived_at, rest)
WHERE s.num = n.num
"""


class PostgresTransaction(SqlTransaction):
    """One transaction on one connection."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(0)
        self._connection = connection
        self._sessions: dict[str, CachedSession] = {}
        self._recall: dict[tuple[int, str], tuple[str, Entry]] = {}
        self._inputs: dict[int, list[Entry]] = {}
        self._numbers: list[int] = []
        self._new: dict[int, tuple[CachedSession, Spec]] = {}

    # Before the operations

    @classmethod
    async def begin(
        cls, connection: Connection, needs: Sequence[Needs] = ()
    ) -> PostgresTransaction:
        """With everything at hand that the operations need."""
        tx = cls(connection)
        if needs:
            await tx._lock({need.session_id for need in needs if not need.new})
            await tx._number(sum(need.new for need in needs))
            await tx._look_up_inputs(need.session_id for need in needs if need.inputs)
            await tx._look_up_waiting(need.session_id for need in needs if need.waiting)
            await tx._look_up_keys(need for need in needs if need.keys)
        if not tx.now:
            tx._at_present(*await connection.fetchrow(f"SELECT {PRESENT}"))
        return tx

    async def _lock(self, session_ids: set[str]) -> None:
        if session_ids:
            await self.take(_LOCK, list(session_ids))

    async def take(self, sql: str, *values: Any) -> list[CachedSession]:
        """Know the sessions that a statement locks; it gives their columns and `PRESENT`."""
        rows = await self._connection.fetch(sql, *values)
        for row in rows:
            self._at_present(*row[-2:])
        return [self._remember(cached_of(row[:-2])) for row in rows]

    def _at_present(self, has_webhooks: bool, now: Micros) -> None:
        self.has_webhooks = self.has_webhooks or has_webhooks
        self.at_least(now)

    async def _number(self, count: int) -> None:
        if not count:
            return
        for number, *present in await self._connection.fetch(_NUMBERS, count):
            self._numbers.append(number)
            self._at_present(*present)

    async def _look_up_waiting(self, session_ids: Iterable[str]) -> None:
        found = {self._sessions[id] for id in session_ids if id in self._sessions}
        sessions = {session.num: session for session in found if session.waiting is None}
        if not sessions:
            return
        for session in sessions.values():
            session.waiting = set()
        oldest = [session.waits_from for session in sessions.values()]
        for num, seq in await self._connection.fetch(_WAITING, list(sessions), oldest):
            waiting = sessions[num].waiting
            assert waiting is not None
            waiting.add(seq)

    async def _look_up_inputs(self, session_ids: Iterable[str]) -> None:
        found = {self._sessions[id] for id in session_ids if id in self._sessions}
        sessions = {session.num: session for session in found if session.waiting is None}
        if not sessions:
            return
        for session in sessions.values():
            session.waiting = set()
        oldest = [session.waits_from for session in sessions.values()]
        for num, *columns in await self._connection.fetch(_INPUTS, list(sessions), oldest):
            entry = entry_of(tuple(columns))
            self._inputs.setdefault(num, []).append(entry)
            waiting = sessions[num].waiting
            assert waiting is not None
            waiting.add(entry.seq)

    async def _look_up_keys(self, needs: Iterable[Needs]) -> None:
        wanted = {
            (self._sessions[need.session_id].num, key)
            for need in needs
            if need.session_id in self._sessions
            for key in need.keys
        }
        if not wanted:
            return
        nums, keys = zip(*wanted, strict=True)
        for row in await self._connection.fetch(_RECALL, nums, keys):
            num, key, fingerprint, *entry = row
            self._recall[num, key] = fingerprint, entry_of(tuple(entry))

    # For the operations

    def _remember(self, session: CachedSession) -> CachedSession:
        """Know this session, whose row is locked. The batch does not happen before its last one."""
        self._sessions[session.id] = session
        self.at_least(session.updated_at)
        return session

    def add(self, new: NewSession) -> CachedSession:
        session = CachedSession(self._numbers.pop(0), new.id, new.tenant, self.now, new.state)
        self._new[session.num] = session, new.spec
        return self._remember(session)

    def session(self, session_id: str) -> CachedSession:
        try:
            return self._sessions[session_id]
        except KeyError:
            raise NotFound(f"there is no session {session_id}") from None

    def _waiting(self, session: CachedSession) -> set[int]:
        raise AssertionError("an operation that takes inputs must say so in its needs")

    def inputs(self, session: CachedSession) -> list[Entry]:
        """The waiting inputs of a session, which were read before the operation began.

        :raises AssertionError: the operation has not said so in its needs
        """
        assert session.waiting is not None
        written = [
            Entry(seq, id, type, body, at, bool(queued))
            for num, seq, at, queued, _, id, type, body in self._entries
            if num == session.num
        ]
        known = [*self._inputs.get(session.num, []), *written]
        return [entry for entry in known if entry.seq in session.waiting]

    def _recalled(self, session: CachedSession, key: str) -> tuple[str, Entry] | None:
        return self._recall.get((session.num, key))

    # For procedures besides

    async def ask(self, sql: str, *values: Any) -> list[Row]:
        """Run one statement. What the operations want written is not there yet: see `flush`."""
        rows: list[Row] = await self._connection.fetch(worded(sql), *values)
        return rows

    async def ask_locked(self, sql: str, *values: Any, shared: bool = False) -> list[Row]:
        return await self.ask(f"{sql} FOR {'SHARE' if shared else 'UPDATE'}", *values)

    async def ask_each(self, sql: str, rows: Iterable[Row]) -> None:
        left = iter(rows)
        while some := list(islice(left, _AT_ONCE)):
            await self._connection.executemany(worded(sql), some)

    async def lock(self, kind: LockKind, name: str) -> None:
        await self._connection.execute(_LOCK_NAME, name, int(kind))

    async def whole(self, session: CachedSession) -> Session:
        spec = spec_of(await self._connection.fetchval(_SPEC, session.num))
        return session.session(spec, self.now)

    async def rewrite(self, session: CachedSession, spec: Spec) -> None:
        await self.ask(REWRITE, encode(spec), session.num)

    async def session_made(self, new: NewSession) -> Session | None:
        """Waits for one who is about to make it."""
        receipt = new.receipt
        if receipt is None:
            return None
        mine = (new.tenant, receipt.key, receipt.fingerprint, new.id)
        if await self.ask(_REMEMBER_CREATION, *mine):
            return None
        made = matching(await self.ask(CREATED, new.tenant, receipt.key), receipt)
        rows = await self.ask(_MADE, made)
        if not rows:
            raise absent(str(made))
        session = cached_of(rows[0][:-1])
        return session.session(spec_of(rows[0][-1]), max(self.now, session.updated_at))

    async def delete_session(self, session: CachedSession) -> None:
        for statement in _DELETE:
            await self.ask(statement, session.num)
        await self.ask(_BURY, session.num, session.tenant, session.id)

    async def lives(self, node: str) -> bool:
        return bool(await self._connection.fetchval(_LIVES, node))

    # After the operations

    async def flush(self, mark: CommitMark | None = None) -> None:
        """Write what came of them, and the transaction's mark if this is to do that, too.

        An input that this very batch wrote is not among those whose rows it changes: one that was taken up
        at once is written so.
        """
        if self._new:
            new = [_new_columns(session, spec) for session, spec in self._new.values()]
            await self._connection.execute(_CREATE, *_columns(new, 20))
        if self._advanced:
            await self.write(mark)
        if self._told:
            await self.ask_each(TELL, self._told)
        self._new.clear()
        self._clear()

    async def write(self, mark: CommitMark | None = None) -> None:
        """All but new sessions, which are written as they are at the end."""
        receipts = [
            (num, key, mark, entry.seq) for (num, key), (mark, entry) in self._receipts.items()
        ]
        old = [session for num, session in self._advanced.items() if num not in self._new]
        advanced = [head_columns(session) for session in old if session.num not in self._stepped]
        stepped = [
            (*head_columns(session), *state_columns(session.state))
            for session in old
            if session.num in self._stepped
        ]
        await self._connection.execute(
            _WRITE,
            *_columns(self._entries, 8),
            *_columns(receipts, 4),
            *_columns(self._taken, 3),
            *_columns(stepped, 12),
            *(mark or (None, None)),
            self.now,
            *_columns(advanced, 7),
        )


def _new_columns(session: CachedSession, spec: Spec) -> Row:
    who = (session.num, session.id, session.tenant, session.created_at, *spec_columns(spec))
    *stands, _ = head_columns(session)
    return (*who, *state_columns(session.state), *stands, encode(spec))


def _columns(rows: Sequence[Row], width: int) -> Iterable[Sequence[Any]]:
    return zip(*rows, strict=True) if rows else [()] * width
