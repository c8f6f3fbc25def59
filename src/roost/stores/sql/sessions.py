"""Sessions as records in a SQL database: `SqlSessions`, then what the writer does, then what readers are asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from roost.domain import ledger
from roost.domain.events import Draft, Entry
from roost.domain.session import Session, Spec, Status
from roost.errors import IdempotencyMismatch, NotFound, QuotaExceeded, RoostError
from roost.ports import sessions as ports
from roost.ports.log import Receipt
from roost.ports.sessions import (
    Cutting,
    Planting,
    Revised,
    Revision,
    Rewinding,
    SessionQuery,
    Visibility,
)
from roost.stores.sql.batch import LockKind, Needs, SqlTransaction, WriteBatch
from roost.stores.sql.database import Rows, SqlReader, SqlWriter, rows_of
from roost.stores.sql.listing import POSITION, Filter, Value, position
from roost.stores.sql.log import waiting_inputs
from roost.stores.sql.rows import SESSIONS, NewSession, Row, spec_columns

_SPEC_COLUMN: Final = 15
"""Its place in a row of `SqlSessions.SELECT`: after `SESSION_COLUMNS`."""

WHOLE: Final = f"{SESSIONS} JOIN specs p ON p.session = s.num"
"""Sessions with their specs."""

# A session made under a creator's key.
CREATED: Final = "SELECT fingerprint, session_id FROM creations WHERE tenant = ? AND key = ?"

# What a session was changed to.
REWRITE: Final = "UPDATE specs SET spec = ? WHERE session = ?"

# Slices of a deleted session's log, then of what points into it.
SLICES: Final = (
    """
    DELETE FROM entries WHERE session = ?1
    AND seq IN (SELECT seq FROM entries WHERE session = ?1 ORDER BY seq LIMIT ?2) RETURNING 1
    """,
    """
    DELETE FROM receipts WHERE session = ?1
    AND key IN (SELECT key FROM receipts WHERE session = ?1 LIMIT ?2) RETURNING 1
    """,
)


class SqlSessions(ABC):
    """The `ports.sessions.Sessions` on an SQL database."""

    SELECT: ClassVar[str]
    """Whole sessions, for `session_of`."""

    WAITS: ClassVar[str]
    """The condition that somebody has to answer the session."""

    def __init__(self, writer: SqlWriter, reader: SqlReader) -> None:
        self._writer = writer
        self._reader = reader

    @abstractmethod
    def session_of(self, row: Row) -> Session:
        """From a row of `SELECT`."""

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
        new = NewSession.of(tenant, session_id, spec, drafts, receipt, max_sessions)
        if receipt is None and max_sessions is None and spec.workspace is None:
            return await self._writer.do(CreatePlain(new))
        return await self._writer.alone(Create(new))

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
        new = NewSession.of(tenant, session_id, spec, drafts, receipt, max_sessions)
        return await self._writer.alone(Fork(new, cutting))

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
        new = NewSession.of(tenant, session_id, spec, drafts, None, max_sessions)
        return await self._writer.alone(Plant(new, planting))

    async def rewind(self, tenant: str, session_id: str, rewinding: Rewinding) -> Session:
        return await self._writer.alone(RewindSession(tenant, session_id, rewinding))

    async def made(self, tenant: str, receipt: Receipt) -> Session | None:
        known = await rows_of(self._reader, CREATED, tenant, receipt.key)
        session_id = matching(known, receipt)
        return None if session_id is None else await self.get(tenant, session_id)

    def known(self, tenant: str, session_id: str) -> Session | None:
        return None

    async def get(self, tenant: str, session_id: str) -> Session:
        session = await self.find(session_id)
        if session.tenant != tenant:
            raise absent(session_id)
        return session

    async def find(self, session_id: str) -> Session:
        found, _ = await self._reader.read(lambda rows: self._found(rows, session_id))
        return found

    async def with_inputs(self, session_id: str) -> tuple[Session, list[Entry]]:
        (found, _), inputs = await self._reader.read(
            lambda rows: self._found_with_inputs(rows, session_id)
        )
        return found, inputs

    async def page(self, query: SessionQuery) -> list[Session]:
        return await self._reader.read(lambda rows: self._page(rows, query))

    async def revise(self, tenant: str, session_id: str, revision: Revision) -> Session:
        return await self._writer.alone(Revise(tenant, session_id, revision))

    async def archive(self, tenant: str, session_id: str) -> Session:
        return await self._writer.alone(ArchiveSession(tenant, session_id))

    async def delete(self, tenant: str, session_id: str) -> None:
        await self._writer.alone(DeleteSession(tenant, session_id))

    # What readers are asked

    async def _found(self, rows: Rows, session_id: str) -> tuple[Session, int]:
        """The session, and how many bytes its spec has. :raises NotFound:"""
        row = await rows.fetch(f"{self.SELECT} WHERE s.id = ?", session_id)
        if not row:
            raise absent(session_id)
        return self.session_of(row[0]), len(row[0][_SPEC_COLUMN])

    async def _found_with_inputs(
        self, rows: Rows, session_id: str
    ) -> tuple[tuple[Session, int], list[Entry]]:
        """The session first: an input that is accepted in between is seen too early, never too late."""
        return await self._found(rows, session_id), await waiting_inputs(rows, session_id)

    async def _page(self, rows: Rows, query: SessionQuery) -> list[Session]:
        beyond = None
        if query.after is not None:
            found = await rows.fetch(POSITION, "session", query.tenant, query.after)
            beyond = position(found, "session", query.after)
        where, values = listed(query, beyond, self.WAITS)
        page = await rows.fetch(f"{self.SELECT} {where}", *values)
        return [self.session_of(row) for row in (reversed(page) if query.reverse else page)]


# What the writer does

# Whether a tenant has a workspace.
_WORKSPACE: Final = "SELECT 1 FROM records WHERE id = ? AND kind = 'workspace' AND tenant = ?"

# How many sessions a tenant has that are not archived; counts no further than it matters.
_COUNT: Final = """
SELECT count(*) FROM (
    SELECT 1 FROM sessions WHERE tenant = ? AND archived_at IS NULL LIMIT ?
) AS counted
"""

# The same, archived ones too.
_COUNT_KEPT: Final = """
SELECT count(*) FROM (SELECT 1 FROM sessions WHERE tenant = ? LIMIT ?) AS counted
"""

# A stretch of one log at the end of another. What waited for the agent is not there, and what it was given
# is there once. A rewind is not: in the other log nothing was rewound.
_COPY: Final = """
INSERT INTO entries (session, seq, at, queued, taken, id, type, body)
SELECT CAST(? AS BIGINT), CAST(? AS BIGINT) + row_number() OVER (ORDER BY seq), at, FALSE, NULL, id, type, body
FROM entries
WHERE session = ? AND seq BETWEEN ? AND ? AND NOT queued AND (taken IS NULL OR taken = seq)
AND type <> 'roost.rewound'
"""

# How long a log is that nobody else writes to.
_LENGTH: Final = "SELECT coalesce(max(seq), 0) FROM entries WHERE session = ?"

# Entries from elsewhere.
_PLANT: Final = """
INSERT INTO entries (session, seq, at, queued, taken, id, type, body)
VALUES (?, ?, ?, FALSE, NULL, ?, ?, ?)
"""

# What listings look for in a changed spec.
_REVISE: Final = """
UPDATE sessions SET agent_id = ?, agent_version = ?, environment_id = ?, workspace = ?,
    created_by = ? WHERE num = ?
"""


class CreatePlain(msgspec.Struct, frozen=True):
    """A new session that nothing has to be asked for: together with whatever else there is to do."""

    new: NewSession

    @property
    def needs(self) -> Needs:
        return Needs(self.new.id, new=True)

    def on(self, batch: WriteBatch) -> Session:
        return _created(batch, self.new)


class Create(msgspec.Struct, frozen=True):
    """A new session, unless it was made before under its receipt."""

    new: NewSession

    @property
    def needs(self) -> list[Needs]:
        return [Needs(self.new.id, new=True)]

    async def on(self, tx: SqlTransaction) -> Session:
        new = self.new
        if (made := await tx.session_made(new)) is not None:
            return made
        await _check_quota(tx, new)
        workspace = new.spec.workspace
        # Whoever deletes the workspace waits until the session that is to use it is made.
        if workspace and not await tx.ask_locked(_WORKSPACE, workspace, new.tenant, shared=True):
            raise NotFound(f"there is no workspace {workspace}")
        return _created(tx, new)


def _created(batch: WriteBatch, new: NewSession) -> Session:
    change = ledger.create(new.state, new.spec, new.drafts, batch.moment)
    session = batch.add(new)
    batch.tell(new.tenant, "session.created", new.id)
    batch.apply(session, change)
    return session.session(new.spec, batch.now)


class Fork(msgspec.Struct, frozen=True):
    """A new session that begins with a part of another one's log. Its entries name the other one's thread."""

    new: NewSession
    cutting: Cutting

    @property
    def needs(self) -> list[Needs]:
        return [Needs(self.new.id, new=True), Needs(self.cutting.source)]

    async def on(self, tx: SqlTransaction) -> Session:
        if (made := await tx.session_made(self.new)) is not None:
            return made
        source = tx.session_of(self.new.tenant, self.cutting.source)
        await _check_quota(tx, self.new)
        session, copied = tx.add(_on_thread(self.new, source.state.thread_id)), 0
        for first, last in self.cutting.stretches:
            await tx.ask(_COPY, session.num, copied, source.num, first, last)
            [(copied,)] = await tx.ask(_LENGTH, session.num)
        rests = self.cutting.rests
        tx.tell(self.new.tenant, "session.created", self.new.id)
        tx.apply(
            session, ledger.begin(session.state, copied, self.new.drafts, tx.moment, rests=rests)
        )
        return session.session(self.new.spec, tx.now)


class Plant(msgspec.Struct, frozen=True):
    """A new session that begins with a log from elsewhere."""

    new: NewSession
    planting: Planting

    @property
    def needs(self) -> list[Needs]:
        return [Needs(self.new.id, new=True)]

    async def on(self, tx: SqlTransaction) -> Session:
        await _check_quota(tx, self.new)
        session = tx.add(_on_thread(self.new, self.planting.thread_id))
        await tx.ask_each(_PLANT, self._rows(session.num))
        [(copied,)] = await tx.ask(_LENGTH, session.num)
        tx.tell(self.new.tenant, "session.created", self.new.id)
        tx.apply(
            session, ledger.begin(session.state, copied, self.new.drafts, tx.moment, rests=False)
        )
        return session.session(self.new.spec, tx.now)

    def _rows(self, num: int) -> Iterator[Row]:
        for entry in self.planting.entries:
            yield num, entry.seq, entry.at, entry.id, entry.type, entry.body


def _on_thread(new: NewSession, thread_id: str) -> NewSession:
    return replace(new, state=replace(new.state, thread_id=thread_id)) if thread_id else new


async def _check_quota(tx: SqlTransaction, new: NewSession) -> None:
    most = new.max_sessions
    if most is None:
        return
    # Those who count for one tenant wait for each other, or two would both see the last free place.
    await tx.lock(LockKind.QUOTA, new.tenant)
    [(count,)] = await tx.ask(_COUNT, new.tenant, most)
    if count >= most:
        raise too_many(most)
    [(count,)] = await tx.ask(_COUNT_KEPT, new.tenant, ports.MOST_KEPT)
    if count >= ports.MOST_KEPT:
        raise too_many_kept()


class RewindSession(msgspec.Struct, frozen=True):
    """The conversation goes on from an earlier place."""

    tenant: str
    session_id: str
    rewinding: Rewinding

    @property
    def needs(self) -> list[Needs]:
        return [Needs(self.session_id)]

    async def on(self, tx: SqlTransaction) -> Session:
        session, to = tx.session_of(self.tenant, self.session_id), self.rewinding
        before = (await tx.whole(session)).spec.sdk_session_id
        change = ledger.rewind(session.state, to.seen, to.to, to.mark, before, to.draft, tx.moment)
        await tx.rewrite(session, to.spec)
        tx.apply(session, change)
        return session.session(to.spec, tx.now)


class Revise(msgspec.Struct, frozen=True):
    """Another spec, and the events that say so."""

    tenant: str
    session_id: str
    revision: Revision

    @property
    def needs(self) -> list[Needs]:
        return [Needs(self.session_id)]

    async def on(self, tx: SqlTransaction) -> Session:
        session = tx.session_of(self.tenant, self.session_id)
        before = await tx.whole(session)
        if (revised := _revised(before, self.revision)) is None:
            return before
        spec, drafts, wakes = revised
        state = replace(session.state, budget=spec.budget)
        change = ledger.note(state, drafts, tx.moment, wakes=wakes)
        await tx.rewrite(session, spec)
        await tx.ask(_REVISE, *spec_columns(spec), session.num)
        tx.apply(session, change)
        return session.session(spec, tx.now)


def _revised(before: Session, revision: Revision) -> Revised | None:
    """What it is to be; None: it stays as it is."""
    after = revision(before)
    if after.spec == before.spec:
        return after if after.drafts else None
    if not after.drafts:
        raise RoostError("a session does not change without an event that says so")
    return after


class ArchiveSession(msgspec.Struct, frozen=True):
    """Terminated for good, and still readable."""

    tenant: str
    session_id: str

    @property
    def needs(self) -> list[Needs]:
        return [Needs(self.session_id)]

    async def on(self, tx: SqlTransaction) -> Session:
        session = tx.session_of(self.tenant, self.session_id)
        change = ledger.close(session.state, tx.moment)
        if change.state is not session.state:
            tx.apply(session, change)
            tx.tell(self.tenant, "session.archived", self.session_id)
        return await tx.whole(session)


class DeleteSession(msgspec.Struct, frozen=True):
    """Deletes a session with its log, for good."""

    tenant: str
    session_id: str

    @property
    def needs(self) -> list[Needs]:
        return [Needs(self.session_id)]

    async def on(self, tx: SqlTransaction) -> None:
        session = tx.session_of(self.tenant, self.session_id)
        ledger.leave(session.state)
        await tx.delete_session(session)
        tx.tell(self.tenant, "session.deleted", self.session_id)


# Errors


def absent(session_id: str) -> NotFound:
    """The error that says so."""
    return NotFound(f"there is no session {session_id}")


def too_many_kept() -> QuotaExceeded:
    """The error that says so."""
    return QuotaExceeded(
        f"{ports.MOST_KEPT} sessions are kept already, archived ones included, and no more are allowed",
        hint="Delete archived sessions that are no longer needed.",
    )


def too_many(most: int) -> QuotaExceeded:
    """The error that says so."""
    return QuotaExceeded(
        f"there are {most} sessions already, and no more are allowed",
        hint="Archive or delete sessions that are no longer needed.",
    )


def matching(known: Sequence[Row], receipt: Receipt) -> str | None:
    """The session that was made under a receipt, from rows of (fingerprint, session_id).

    :raises IdempotencyMismatch: another request was made under its key
    """
    if not known:
        return None
    fingerprint, session_id = known[0]
    if fingerprint != receipt.fingerprint:
        raise IdempotencyMismatch()
    return str(session_id)


# Listings


# That a session was made by a run of a deployment.
_OF_DEPLOYMENT: Final = "s.id IN (SELECT session_id FROM runs WHERE tenant = ? AND owner = ?)"


def _seen(seen: Visibility) -> tuple[str, list[Value]]:
    """The condition that a session may be shown, and its values."""
    shared = ", ".join("?" * len(seen.workspaces)) or "NULL"
    gone = "NOT EXISTS (SELECT 1 FROM records w WHERE w.id = s.workspace)"
    own = "" if seen.created_by is None else " AND s.created_by = ?"
    values: list[Value] = [*seen.workspaces]
    if seen.created_by is not None:
        values.append(seen.created_by)
    return f"s.workspace IN ({shared}) OR ((s.workspace = '' OR {gone}){own})", values


def listed(query: SessionQuery, beyond: int | None, waits: str) -> tuple[str, list[Value]]:
    """A page of sessions: the conditions and the order, and their values. `waits` is the condition that a session
    has something pending, which databases write differently.
    """
    descending = (query.order == "desc") is not query.reverse
    where = Filter().equal("s.tenant", query.tenant)
    where.equal("s.agent_id", query.agent_id)
    where.equal("s.agent_version", query.agent_version)
    where.equal("s.environment_id", query.environment_id)
    where.equal("s.workspace", query.workspace)
    if query.deployment_id is not None:
        where.either(_OF_DEPLOYMENT, [query.tenant, query.deployment_id])
    where.among("s.status", query.statuses)
    if query.waiting:
        where.either(f"s.status = ? AND {waits}", [Status.IDLE.value])
    if query.seen is not None:
        where.either(*_seen(query.seen))
    where.at_least("s.created_at", query.since)
    where.at_most("s.created_at", query.until)
    if not query.include_archived:
        where.absent("s.archived_at")
    where.beyond("s.num", beyond, descending)
    order = f"ORDER BY s.num {'DESC' if descending else 'ASC'} LIMIT ?"
    return f"WHERE {where.text} {order}", [*where.values, query.limit]
