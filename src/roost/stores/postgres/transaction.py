"""What operations see of the database inside one transaction: the sessions they name, locked.

Many nodes write to one database, so nothing that one of them remembers of a session is the truth.
A batch begins by locking the rows of all its sessions, always in the same order, so that two batches
never wait for each other; what it reads then is what holds until it is committed. Then the
operations run, without asking anything; then one statement writes what came of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from roost.domain.events import Entry, Micros
from roost.domain.session import Session, Spec
from roost.errors import NotFound
from roost.stores.postgres.driver import NOW, Connection, Mark
from roost.stores.sql.rows import (
    ENTRY_COLUMNS,
    Hot,
    Row,
    encode,
    entry_of,
    head_columns,
    hot_of,
    spec_columns,
    spec_of,
    state_columns,
)
from roost.stores.sql.rows import SESSION_COLUMNS as _COLUMNS
from roost.stores.sql.sessions import New
from roost.stores.sql.sheet import Sheet

SESSION_COLUMNS = _COLUMNS.replace("h.", "s.")

# Sessions, which nobody else changes from here on.
_LOCK = f"""
SELECT {SESSION_COLUMNS}, {NOW} FROM sessions s WHERE s.id = ANY($1) ORDER BY s.num FOR UPDATE
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

# Numbers for new sessions.
_NUMBERS = f"""
SELECT nextval(pg_get_serial_sequence('sessions', 'num')), {NOW} FROM generate_series(1, $1)
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


class Needs(msgspec.Struct, frozen=True):
    """What an operation will ask for: a session, which inputs wait, inputs under some keys.

    `inputs`: it will ask for the waiting inputs themselves. `new`: the session is not there yet, and is
    to get a number.
    """

    session_id: str
    waiting: bool = False
    inputs: bool = False
    keys: Sequence[str] = ()
    new: bool = False


class Transaction(Sheet):
    """One transaction on one connection."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(0)
        self._connection = connection
        self._sessions: dict[str, Hot] = {}
        self._recall: dict[tuple[int, str], tuple[str, Entry]] = {}
        self._inputs: dict[int, list[Entry]] = {}
        self._numbers: list[int] = []
        self._new: dict[int, tuple[Hot, Spec]] = {}

    # Before the operations

    @classmethod
    async def begin(cls, connection: Connection, needs: Sequence[Needs] = ()) -> Transaction:
        """With everything at hand that the operations need."""
        tx = cls(connection)
        if needs:
            await tx._lock({need.session_id for need in needs if not need.new})
            await tx._number(sum(need.new for need in needs))
            await tx._look_up_inputs(need.session_id for need in needs if need.inputs)
            await tx._look_up_waiting(need.session_id for need in needs if need.waiting)
            await tx._look_up_keys(need for need in needs if need.keys)
        if not tx.now:
            tx._at_least(await connection.fetchval(f"SELECT {NOW}"))
        return tx

    async def _lock(self, session_ids: set[str]) -> None:
        if session_ids:
            await self.take(_LOCK, list(session_ids))

    async def take(self, sql: str, *values: Any) -> list[Hot]:
        """Know the sessions that a statement locks; it gives their columns and the time."""
        rows = await self._connection.fetch(sql, *values)
        for row in rows:
            self._at_least(row[-1])
        return [self.remember(hot_of(row[:-1])) for row in rows]

    def _at_least(self, now: Micros) -> None:
        """The moment of the batch; never before the last one of a session in it."""
        self.now = max(self.now, now)

    async def _number(self, count: int) -> None:
        if not count:
            return
        for number, now in await self._connection.fetch(_NUMBERS, count):
            self._numbers.append(number)
            self._at_least(now)

    async def _look_up_waiting(self, session_ids: Iterable[str]) -> None:
        found = {self._sessions[id] for id in session_ids if id in self._sessions}
        hots = {hot.num: hot for hot in found if hot.waiting is None}
        if not hots:
            return
        for hot in hots.values():
            hot.waiting = set()
        oldest = [hot.waits_from for hot in hots.values()]
        for num, seq in await self._connection.fetch(_WAITING, list(hots), oldest):
            waiting = hots[num].waiting
            assert waiting is not None
            waiting.add(seq)

    async def _look_up_inputs(self, session_ids: Iterable[str]) -> None:
        found = {self._sessions[id] for id in session_ids if id in self._sessions}
        hots = {hot.num: hot for hot in found if hot.waiting is None}
        if not hots:
            return
        for hot in hots.values():
            hot.waiting = set()
        oldest = [hot.waits_from for hot in hots.values()]
        for num, *columns in await self._connection.fetch(_INPUTS, list(hots), oldest):
            entry = entry_of(tuple(columns))
            self._inputs.setdefault(num, []).append(entry)
            waiting = hots[num].waiting
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

    def remember(self, hot: Hot) -> Hot:
        """Know this session, whose row is locked."""
        self._sessions[hot.id] = hot
        self._at_least(hot.updated_at)
        return hot

    def add(self, new: New) -> Hot:
        """A new session."""
        hot = Hot(self._numbers.pop(0), new.id, new.tenant, self.now, new.state)
        self._new[hot.num] = hot, new.spec
        return self.remember(hot)

    def session(self, session_id: str) -> Hot:
        try:
            return self._sessions[session_id]
        except KeyError:
            raise NotFound(f"there is no session {session_id}") from None

    def _waiting(self, hot: Hot) -> set[int]:
        raise AssertionError("an operation that takes inputs must say so in its needs")

    def inputs(self, hot: Hot) -> list[Entry]:
        """:raises AssertionError: the operation has not said so in its needs"""
        assert hot.waiting is not None
        written = [
            Entry(seq, id, type, body, at, bool(queued))
            for num, seq, at, queued, _, id, type, body in self._entries
            if num == hot.num
        ]
        known = [*self._inputs.get(hot.num, []), *written]
        return [entry for entry in known if entry.seq in hot.waiting]

    def _recalled(self, hot: Hot, key: str) -> tuple[str, Entry] | None:
        return self._recall.get((hot.num, key))

    async def spec(self, hot: Hot) -> Spec:
        """What a session was created with."""
        return spec_of(await self._connection.fetchval(_SPEC, hot.num))

    async def whole(self, hot: Hot) -> Session:
        """The session with its spec."""
        return hot.session(await self.spec(hot), self.now)

    async def ask(self, sql: str, *values: Any) -> list[Row]:
        """Run one statement. What the operations want written is not there yet: see `flush`."""
        rows: list[Row] = await self._connection.fetch(sql, *values)
        return rows

    # After the operations

    async def flush(self, mark: Mark | None = None) -> None:
        """Write what came of them, and the transaction's mark if this is to do that, too.

        An input that this very batch wrote is not among those whose rows it changes: one that was taken up
        at once is written so.
        """
        if self._new:
            new = [_new_columns(hot, spec) for hot, spec in self._new.values()]
            await self._connection.execute(_CREATE, *_columns(new, 20))
        if self._advanced:
            await self.write(mark)
        self._new.clear()
        self._clear()

    async def write(self, mark: Mark | None = None) -> None:
        """All but new sessions, which are written as they are at the end."""
        receipts = [
            (num, key, mark, entry.seq) for (num, key), (mark, entry) in self._receipts.items()
        ]
        old = [hot for num, hot in self._advanced.items() if num not in self._new]
        advanced = [head_columns(hot) for hot in old if hot.num not in self._stepped]
        stepped = [
            (*head_columns(hot), *state_columns(hot.state))
            for hot in old
            if hot.num in self._stepped
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


def _new_columns(hot: Hot, spec: Spec) -> Row:
    who = (hot.num, hot.id, hot.tenant, hot.created_at, *spec_columns(spec))
    *stands, _ = head_columns(hot)
    return (*who, *state_columns(hot.state), *stands, encode(spec))


def _columns(rows: Sequence[Row], width: int) -> Iterable[Sequence[Any]]:
    return zip(*rows, strict=True) if rows else [()] * width
