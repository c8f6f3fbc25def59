"""Sessions as records, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from roost.domain import ledger
from roost.domain.events import Draft, Entry
from roost.domain.session import Session, Spec
from roost.ports import sessions as ports
from roost.ports.log import Receipt
from roost.ports.sessions import Cutting, Planting, Revision, Rewinding, SessionQuery
from roost.stores.postgres import history
from roost.stores.postgres.database import Database
from roost.stores.postgres.driver import NOW, Connection, numbered
from roost.stores.postgres.sweep import Sweep
from roost.stores.postgres.transaction import SESSION_COLUMNS, Needs, Transaction
from roost.stores.postgres.writer import Writer
from roost.stores.sql import forks, sessions
from roost.stores.sql.listing import POSITION, position
from roost.stores.sql.rows import (
    PENDING,
    Row,
    encode,
    session_of,
    spec_columns,
)

# Whole sessions, and when they were read.
_SELECT = f"""
SELECT {SESSION_COLUMNS}, p.spec, {NOW} FROM sessions s JOIN specs p ON p.session = s.num
"""
_POSITION = numbered(POSITION.replace("?1", "?1::text"))

_WAITS = f"position('{PENDING}'::bytea IN s.rest) > 0"

# A session made under a creator's key.
_CREATED = "SELECT fingerprint, session_id FROM creations WHERE tenant = $1 AND key = $2"

# Remember a creator's key, unless it is known; waits for one who is about to.
_REMEMBER = """
INSERT INTO creations (tenant, key, fingerprint, session_id) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING RETURNING 1
"""

# How many sessions a tenant has that are not archived; counts no further than it matters. Those who
# count for one tenant wait for each other, or two would both see the last free place.
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended($1, 1))"
_COUNT = """
SELECT count(*) FROM (
    SELECT 1 FROM sessions WHERE tenant = $1 AND archived_at IS NULL LIMIT $2
) AS counted
"""

_COUNT_KEPT = numbered(sessions.COUNT_KEPT)

# A tenant's workspace: whoever deletes it waits until the session that is to use it is made.
_WORKSPACE = """
SELECT 1 FROM records WHERE id = $1 AND kind = 'workspace' AND tenant = $2 FOR SHARE
"""

# A changed spec: the document, and what listings look for in it.
_REVISE_SPEC = "UPDATE specs SET spec = $1 WHERE session = $2"
_REVISE = """
UPDATE sessions SET agent_id = $1, agent_version = $2, environment_id = $3, workspace = $4,
    created_by = $5
WHERE num = $6
"""

# A part of another log, and how long that is.
_COPY, _LENGTH = numbered(forks.COPY), numbered(forks.LENGTH)
_PLANT: Final = numbered(forks.PLANT)
_AT_ONCE: Final = 500

# A session goes: it is gone for everybody at once, its log follows slice by slice.
_DELETE: Final = ("DELETE FROM sessions WHERE num = $1", "DELETE FROM specs WHERE session = $1")
_BURY = """
INSERT INTO graves (kind, num, tenant, id, swept) VALUES ('session', $1, $2, $3, 0)
"""


class PostgresSessions:
    """`ports.sessions.Sessions`."""

    def __init__(self, writer: Writer, database: Database, sweep: Sweep) -> None:
        self._writer = writer
        self._database = database
        self._sweep = sweep

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
        if receipt is None and max_sessions is None and spec.workspace is None:
            return await self._writer.do(partial(_make, new), Needs(session_id, new=True))
        return await self._writer.alone(partial(_make_if_due, new))

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
        return await self._writer.alone(partial(_fork, new, cutting))

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
        return await self._writer.alone(partial(_plant, new, planting))

    async def rewind(self, tenant: str, session_id: str, rewinding: Rewinding) -> Session:
        return await self._writer.alone(partial(_rewind, tenant, session_id, rewinding))

    async def made(self, tenant: str, receipt: Receipt) -> Session | None:
        known = await self._database.read(lambda db: db.fetch(_CREATED, tenant, receipt.key))
        session_id = sessions.matching(known, receipt)
        return None if session_id is None else await self.get(tenant, session_id)

    async def get(self, tenant: str, session_id: str) -> Session:
        session = await self.find(session_id)
        if session.tenant != tenant:
            raise sessions.absent(session_id)
        return session

    async def find(self, session_id: str) -> Session:
        return await self._database.read(partial(_find, session_id))

    async def with_inputs(self, session_id: str) -> tuple[Session, list[Entry]]:
        return await self._database.read(partial(_with_inputs, session_id))

    async def page(self, query: SessionQuery) -> list[Session]:
        return await self._database.read(partial(_page, query))

    async def revise(self, tenant: str, session_id: str, revision: Revision) -> Session:
        return await self._writer.alone(partial(_revise, tenant, session_id, revision))

    async def archive(self, tenant: str, session_id: str) -> Session:
        return await self._writer.alone(partial(_archive, tenant, session_id))

    async def delete(self, tenant: str, session_id: str) -> None:
        await self._writer.alone(partial(_delete, tenant, session_id))
        self._sweep.soon()


def _session_of(row: Row) -> Session:
    session = session_of(row[:-1], row[-1])
    if session.read_at >= session.updated_at:
        return session
    return msgspec.structs.replace(session, read_at=session.updated_at)


async def _find(session_id: str, db: Connection) -> Session:
    row = await db.fetchrow(f"{_SELECT} WHERE s.id = $1", session_id)
    if row is None:
        raise sessions.absent(session_id)
    return _session_of(row)


async def _with_inputs(session_id: str, db: Connection) -> tuple[Session, list[Entry]]:
    """The session first: an input that is accepted in between is seen too early, never too late."""
    return await _find(session_id, db), await history.inputs(session_id, (), db)


# What is done in one transaction


def _make(new: sessions.New, tx: Transaction) -> Session:
    change = ledger.create(new.state, new.spec, new.drafts, tx.now)
    hot = tx.add(new)
    tx.apply(hot, change)
    return hot.session(new.spec, tx.now)


async def _make_if_due(new: sessions.New, connection: Connection) -> Session:
    tx = await Transaction.begin(connection, [Needs(new.id, new=True)])
    made = await _made_before(new, tx)
    if made is not None:
        return made
    await _check_quota(new, tx)
    if new.spec.workspace and not await tx.ask(_WORKSPACE, new.spec.workspace, new.tenant):
        raise sessions.no_workspace(new.spec.workspace)
    session = _make(new, tx)
    await tx.flush()
    return session


async def _fork(new: sessions.New, cutting: Cutting, connection: Connection) -> Session:
    needs = [Needs(new.id, new=True), Needs(cutting.source)]
    tx = await Transaction.begin(connection, needs)
    made = await _made_before(new, tx)
    if made is not None:
        return made
    source = tx.session_of(new.tenant, cutting.source)
    await _check_quota(new, tx)
    hot, copied = tx.add(forks.begun(new, source.state)), 0
    for first, last in cutting.stretches:
        await tx.ask(_COPY, hot.num, copied, source.num, first, last)
        [(copied,)] = await tx.ask(_LENGTH, hot.num)
    tx.apply(hot, ledger.begin(hot.state, copied, new.drafts, tx.now, rests=cutting.rests))
    await tx.flush()
    return hot.session(new.spec, tx.now)


async def _plant(new: sessions.New, planting: Planting, connection: Connection) -> Session:
    tx = await Transaction.begin(connection, [Needs(new.id, new=True)])
    await _check_quota(new, tx)
    hot = tx.add(forks.begun_by(new, planting))
    rows = forks.planted(hot.num, planting)
    while some := list(islice(rows, _AT_ONCE)):
        await connection.executemany(_PLANT, some)
    [(copied,)] = await tx.ask(_LENGTH, hot.num)
    tx.apply(hot, ledger.begin(hot.state, copied, new.drafts, tx.now, rests=False))
    await tx.flush()
    return hot.session(new.spec, tx.now)


async def _rewind(
    tenant: str, session_id: str, rewinding: Rewinding, connection: Connection
) -> Session:
    tx = await Transaction.begin(connection, [Needs(session_id)])
    hot = tx.session_of(tenant, session_id)
    before, spec = await tx.spec(hot), rewinding.spec
    tx.apply(hot, sessions.rewound(hot.state, before, rewinding, tx.now))
    await tx.ask(_REVISE_SPEC, encode(spec), hot.num)
    await tx.flush()
    return hot.session(spec, tx.now)


async def _made_before(new: sessions.New, tx: Transaction) -> Session | None:
    """The session of this receipt; if there is none, the receipt is now this one's."""
    receipt = new.receipt
    if receipt is None or await tx.ask(
        _REMEMBER, new.tenant, receipt.key, receipt.fingerprint, new.id
    ):
        return None
    known = await tx.ask(_CREATED, new.tenant, receipt.key)
    session_id = sessions.matching(known, receipt)
    rows = await tx.ask(f"{_SELECT} WHERE s.id = $1", session_id)
    if not rows:
        raise sessions.absent(str(session_id))
    return _session_of(rows[0])


async def _check_quota(new: sessions.New, tx: Transaction) -> None:
    most = new.max_sessions
    if most is None:
        return
    await tx.ask(_ONE_AT_A_TIME, new.tenant)
    [(count,)] = await tx.ask(_COUNT, new.tenant, most)
    if count >= most:
        raise sessions.too_many(most)
    [(count,)] = await tx.ask(_COUNT_KEPT, new.tenant, ports.MOST_KEPT)
    if count >= ports.MOST_KEPT:
        raise sessions.too_many_kept()


async def _revise(
    tenant: str, session_id: str, revision: Revision, connection: Connection
) -> Session:
    tx = await Transaction.begin(connection, [Needs(session_id)])
    hot = tx.session_of(tenant, session_id)
    before = await tx.whole(hot)
    if (revised := sessions.revised(before, revision)) is None:
        return before
    spec, drafts, wakes = revised
    state = msgspec.structs.replace(hot.state, budget=spec.budget)
    tx.apply(hot, ledger.note(state, drafts, tx.now, wakes=wakes))
    await tx.ask(_REVISE_SPEC, encode(spec), hot.num)
    await tx.ask(_REVISE, *spec_columns(spec), hot.num)
    await tx.flush()
    return hot.session(spec, tx.now)


async def _archive(tenant: str, session_id: str, connection: Connection) -> Session:
    tx = await Transaction.begin(connection, [Needs(session_id)])
    hot = tx.session_of(tenant, session_id)
    change = ledger.close(hot.state, tx.now)
    if change.state is not hot.state:
        tx.apply(hot, change)
        await tx.flush()
    return await tx.whole(hot)


async def _delete(tenant: str, session_id: str, connection: Connection) -> None:
    tx = await Transaction.begin(connection, [Needs(session_id)])
    hot = tx.session_of(tenant, session_id)
    ledger.leave(hot.state)
    for statement in _DELETE:
        await tx.ask(statement, hot.num)
    await tx.ask(_BURY, hot.num, hot.tenant, hot.id)


# What is asked


async def _page(query: SessionQuery, db: Connection) -> list[Session]:
    beyond = None
    if query.after is not None:
        found = await db.fetchrow(_POSITION, "session", query.tenant, query.after)
        beyond = position(found, "session", query.after)
    where, values = sessions.listed(query, beyond, _WAITS)
    rows = await db.fetch(numbered(f"{_SELECT} {where}"), *values)
    return [_session_of(row) for row in (reversed(rows) if query.reverse else rows)]
