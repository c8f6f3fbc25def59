"""Sessions as records, on SQLite."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import apsw
from msgspec.structs import replace

from roost.domain import ledger
from roost.domain.events import Draft, Entry
from roost.domain.pen import Change
from roost.domain.session import Session, Spec
from roost.ports import sessions as ports
from roost.ports.log import Receipt
from roost.ports.sessions import Cutting, Planting, Revision, Rewinding, SessionQuery
from roost.stores.sql import forks, sessions
from roost.stores.sql.listing import POSITION, position
from roost.stores.sql.rows import (
    PENDING,
    SESSION_COLUMNS,
    Hot,
    Settled,
    encode,
    head_columns,
    session_of,
    spec_columns,
    state_columns,
)
from roost.stores.sqlite import history
from roost.stores.sqlite.clock import Clock
from roost.stores.sqlite.readers import Question, Readers
from roost.stores.sqlite.sweep import sweep
from roost.stores.sqlite.transaction import Transaction
from roost.stores.sqlite.writer import Writer

T = TypeVar("T")

# Whole sessions.
_SELECT = f"""
SELECT {SESSION_COLUMNS}, p.spec
FROM sessions s JOIN heads h ON h.session = s.num JOIN specs p ON p.session = s.num
"""

_FIND = f"{_SELECT} WHERE s.id = ?"

_WAITS = f"instr(s.rest, CAST('{PENDING}' AS BLOB)) > 0"

# A session made under a creator's key.
_CREATED = "SELECT fingerprint, session_id FROM creations WHERE tenant = ? AND key = ?"

# Remember a creator's key.
_REMEMBER = "INSERT INTO creations (tenant, key, fingerprint, session_id) VALUES (?, ?, ?, ?)"

# How many sessions a tenant has that are not archived; counts no further than it matters.
_COUNT = """
SELECT count(*) FROM (SELECT 1 FROM sessions WHERE tenant = ? AND archived_at IS NULL LIMIT ?)
"""

# Whether a tenant has a workspace.
_WORKSPACE = "SELECT 1 FROM records WHERE id = ? AND kind = 'workspace' AND tenant = ?"

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

# What listings look for in a changed spec.
_REVISE = """
UPDATE sessions SET agent_id = ?, agent_version = ?, environment_id = ?, workspace = ?,
    created_by = ? WHERE num = ?
"""

# A session goes: it is gone for everybody at once, its log follows slice by slice.
_DELETE: Final = (
    "DELETE FROM sessions WHERE num = ?",
    "DELETE FROM heads WHERE session = ?",
    "DELETE FROM specs WHERE session = ?",
)
_BURY = """
INSERT INTO graves (kind, num, tenant, id, swept) VALUES ('session', ?, ?, ?, 0)
"""


_MOST_SEEN: Final = 4096  # sessions
_MOST_SEEN_BYTES: Final = 8 * 1024 * 1024  # of their specs, as they are stored

_Found = tuple[Session, int]
"""A session, and how many bytes its spec has."""


class _Seen(NamedTuple):
    """A session as it was last read, and which of its specs that was."""

    session: Session
    spec_version: int
    size: int


class SqliteSessions:
    """`ports.sessions.Sessions`."""

    def __init__(self, writer: Writer, readers: Readers, clock: Clock) -> None:
        self._writer = writer
        self._readers = readers
        self._clock = clock
        self._last_seen: OrderedDict[str, _Seen] = OrderedDict()
        self._seen_bytes = 0

    async def create(
        self,
        tenant: str,
        session_id: str,
        spec: Spec,
        drafts: Sequence[Draft] = (),
        *,
        receipt: Receipt | None = None,
        max_sessions: int | None = None,
    ) -> Session:
        new = sessions.New.of(tenant, session_id, spec, drafts, receipt, max_sessions)
        return await self._writer.do(partial(_create, new))

    async def fork(
        self,
        tenant: str,
        session_id: str,
        spec: Spec,
        cutting: Cutting,
        drafts: Sequence[Draft],
        *,
        receipt: Receipt | None = None,
        max_sessions: int | None = None,
    ) -> Session:
        new = sessions.New.of(tenant, session_id, spec, drafts, receipt, max_sessions)
        return await self._writer.do(partial(_fork, new, cutting))

    async def plant(
        self,
        tenant: str,
        session_id: str,
        spec: Spec,
        planting: Planting,
        drafts: Sequence[Draft],
        *,
        max_sessions: int | None = None,
    ) -> Session:
        new = sessions.New.of(tenant, session_id, spec, drafts, None, max_sessions)
        return await self._writer.do(partial(_plant, new, planting))

    async def rewind(self, tenant: str, session_id: str, rewinding: Rewinding) -> Session:
        return await self._writer.do(partial(_rewind, tenant, session_id, rewinding))

    async def made(self, tenant: str, receipt: Receipt) -> Session | None:
        session_id = await self._readers.ask(partial(_made, tenant, receipt))
        return None if session_id is None else await self.get(tenant, session_id)

    async def get(self, tenant: str, session_id: str) -> Session:
        session = await self.find(session_id)
        if session.tenant != tenant:
            raise sessions.absent(session_id)
        return session

    async def find(self, session_id: str) -> Session:
        if (known := self._known(session_id)) is not None:
            return known
        settled = self._writer.settled(session_id)
        found = await self._look_at(session_id, partial(_find, session_id, self._clock))
        return self._seen(session_id, settled, found)

    async def with_inputs(self, session_id: str) -> tuple[Session, list[Entry]]:
        if (known := self._known(session_id)) is not None and not known.state.queued:
            return known, []
        settled = self._writer.settled(session_id)
        look = partial(_with_inputs, session_id, self._clock)
        found, inputs = await self._look_at(session_id, look)
        return self._seen(session_id, settled, found), inputs

    async def _look_at(self, session_id: str, look: Question[T]) -> T:
        if self._writer.remembers(session_id):
            return await self._readers.ask_here(look)
        return await self._readers.ask(look)

    def _known(self, session_id: str) -> Session | None:
        """The session as it is, if the writer knows that, with the spec that was last read."""
        seen, settled = self._last_seen.get(session_id), self._writer.settled(session_id)
        if seen is None or settled is None or seen.spec_version != settled.spec_version:
            return None
        self._last_seen.move_to_end(session_id)
        state, updated_at, _ = settled
        now = self._clock.now()
        return replace(seen.session, state=state, updated_at=updated_at, read_at=now)

    def _seen(self, session_id: str, before: Settled | None, found: _Found | None) -> Session:
        """Remember its spec under the version that was committed `before` it was read: if it was changed
        meanwhile, that is another one already.
        """
        if found is None:
            raise sessions.absent(session_id)
        session, size = found
        if before is not None:
            self._remember(_Seen(session, before.spec_version, size))
        return session

    def _remember(self, seen: _Seen) -> None:
        known = self._last_seen
        if (last := known.pop(seen.session.id, None)) is not None:
            self._seen_bytes -= last.size
        known[seen.session.id] = seen
        self._seen_bytes += seen.size
        while known and (len(known) > _MOST_SEEN or self._seen_bytes > _MOST_SEEN_BYTES):
            self._seen_bytes -= known.popitem(last=False)[1].size

    async def page(self, query: SessionQuery) -> list[Session]:
        return await self._readers.ask(partial(_page, query, self._clock))

    async def revise(self, tenant: str, session_id: str, revision: Revision) -> Session:
        return await self._writer.do(partial(_revise, tenant, session_id, revision))

    async def archive(self, tenant: str, session_id: str) -> Session:
        return await self._writer.do(partial(_archive, tenant, session_id))

    async def delete(self, tenant: str, session_id: str) -> None:
        await self._writer.do(partial(_delete, tenant, session_id))


# What the writer does


def _create(new: sessions.New, tx: Transaction) -> Session:
    made = _made_before(new, tx)
    if made is not None:
        return made
    _check_quota(new, tx)
    if new.spec.workspace and not tx.ask(_WORKSPACE, (new.spec.workspace, new.tenant)):
        raise sessions.no_workspace(new.spec.workspace)
    change = ledger.create(new.state, new.spec, new.drafts, tx.now)
    hot = _insert(new, tx)
    tx.apply(hot, change)
    return hot.session(new.spec, tx.now)


def _insert(new: sessions.New, tx: Transaction) -> Hot:
    columns = (*spec_columns(new.spec), *state_columns(new.state))
    [(num,)] = tx.ask(_CREATE, (new.id, new.tenant, tx.now, *columns))
    hot = tx.remember(Hot(num, new.id, new.tenant, tx.now, new.state))
    tx.ask(_CREATE_HEAD, head_columns(hot))
    tx.ask(_CREATE_SPEC, (num, encode(new.spec)))
    if new.receipt:
        tx.ask(_REMEMBER, (new.tenant, new.receipt.key, new.receipt.fingerprint, new.id))
    return hot


def _fork(new: sessions.New, cutting: Cutting, tx: Transaction) -> Session:
    made = _made_before(new, tx)
    if made is not None:
        return made
    source = tx.session_of(new.tenant, cutting.source)
    _check_quota(new, tx)
    hot = _insert(forks.begun(new, source.state), tx)
    copied = 0
    for first, last in cutting.stretches:
        tx.ask(forks.COPY, (hot.num, copied, source.num, first, last))
        [(copied,)] = tx.ask(forks.LENGTH, (hot.num,))
    tx.apply(hot, ledger.begin(hot.state, copied, new.drafts, tx.now, rests=cutting.rests))
    return hot.session(new.spec, tx.now)


def _plant(new: sessions.New, planting: Planting, tx: Transaction) -> Session:
    _check_quota(new, tx)
    hot = _insert(forks.begun_by(new, planting), tx)
    tx.flush()
    tx.run(forks.PLANT, forks.planted(hot.num, planting))
    [(copied,)] = tx.ask(forks.LENGTH, (hot.num,))
    tx.apply(hot, ledger.begin(hot.state, copied, new.drafts, tx.now, rests=False))
    return hot.session(new.spec, tx.now)


def _rewind(tenant: str, session_id: str, rewinding: Rewinding, tx: Transaction) -> Session:
    hot = tx.session_of(tenant, session_id)
    before, spec = tx.whole(hot).spec, rewinding.spec
    change = sessions.rewound(hot.state, before, rewinding, tx.now)
    tx.rewrite(hot, spec)
    tx.apply(hot, change)
    return hot.session(spec, tx.now)


def _made_before(new: sessions.New, tx: Transaction) -> Session | None:
    if new.receipt is None:
        return None
    session_id = sessions.matching(tx.ask(_CREATED, (new.tenant, new.receipt.key)), new.receipt)
    return None if session_id is None else tx.whole(tx.session(session_id))


def _check_quota(new: sessions.New, tx: Transaction) -> None:
    most = new.max_sessions
    if most is not None and tx.ask(_COUNT, (new.tenant, most))[0][0] >= most:
        raise sessions.too_many(most)
    kept = ports.MOST_KEPT
    if most is not None and tx.ask(sessions.COUNT_KEPT, (new.tenant, kept))[0][0] >= kept:
        raise sessions.too_many_kept()


def _revise(tenant: str, session_id: str, revision: Revision, tx: Transaction) -> Session:
    hot = tx.session_of(tenant, session_id)
    before = tx.whole(hot)
    if (revised := sessions.revised(before, revision)) is None:
        return before
    spec, drafts, wakes = revised
    state = replace(hot.state, budget=spec.budget)
    change = ledger.note(state, drafts, tx.now, wakes=wakes)
    tx.rewrite(hot, spec)
    tx.ask(_REVISE, (*spec_columns(spec), hot.num))
    tx.apply(hot, change)
    return hot.session(spec, tx.now)


def _archive(tenant: str, session_id: str, tx: Transaction) -> Session:
    hot = tx.session_of(tenant, session_id)
    change: Change = ledger.close(hot.state, tx.now)
    if change.state is not hot.state:
        tx.apply(hot, change)
    return tx.whole(hot)


def _delete(tenant: str, session_id: str, tx: Transaction) -> None:
    hot = tx.session_of(tenant, session_id)
    ledger.leave(hot.state)
    tx.forget(hot)
    for statement in _DELETE:
        tx.ask(statement, (hot.num,))
    tx.ask(_BURY, (hot.num, hot.tenant, hot.id))
    tx.later.append(sweep)


# What readers answer


def _made(tenant: str, receipt: Receipt, db: apsw.Connection) -> str | None:
    return sessions.matching(db.execute(_CREATED, (tenant, receipt.key)).fetchall(), receipt)


def _find(session_id: str, clock: Clock, db: apsw.Connection) -> _Found | None:
    row = db.execute(_FIND, (session_id,)).fetchone()
    return None if row is None else (session_of(row, clock.now()), len(row[-1]))


def _with_inputs(
    session_id: str, clock: Clock, db: apsw.Connection
) -> tuple[_Found | None, list[Entry]]:
    """The session first: an input that is accepted in between is seen too early, never too late."""
    return _find(session_id, clock, db), history.inputs(session_id, (), db)


def _page(query: SessionQuery, clock: Clock, db: apsw.Connection) -> list[Session]:
    beyond = None
    if query.after is not None:
        found = db.execute(POSITION, ("session", query.tenant, query.after)).fetchone()
        beyond = position(found, "session", query.after)
    where, values = sessions.listed(query, beyond, _WAITS)
    rows: list[Any] = db.execute(f"{_SELECT} {where}", values).fetchall()
    return [session_of(row, clock.now()) for row in (reversed(rows) if query.reverse else rows)]
