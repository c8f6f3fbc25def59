"""Runs in a SQL database: `SqlRuns`, then what the writer does, then rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from roost.domain.events import Micros
from roost.domain.webhook import RUN_EVENTS
from roost.errors import NotFound
from roost.ports import runs as ports
from roost.ports.catalog import Kind, Record
from roost.ports.runs import Amend, Plan, Run, RunQuery, RunState
from roost.stores.sql.batch import Needs, SqlTransaction
from roost.stores.sql.catalog import SET_DUE, ArchiveRecord, ChangeRecord, RecordKey, newest
from roost.stores.sql.database import Rows, SqlReader, SqlWriter, rows_of
from roost.stores.sql.listing import Filter, position
from roost.stores.sql.rows import Row, decode, encode

_COLUMNS: Final = """
id, tenant, kind, owner, created_by, slot, state, look_at, body, scheduled_at, session_id,
created_at, started_at, ended_at
"""
_SELECT: Final = f"SELECT {_COLUMNS} FROM runs"
_ONE: Final = f"{_SELECT} WHERE id = ? AND kind = ? AND tenant = ?"
_SLOT: Final = f"{_SELECT} WHERE owner = ? AND slot = ?"
_UNFINISHED: Final = f"{_SELECT} WHERE owner = ? AND look_at > 0 ORDER BY num"
_POSITION: Final = "SELECT num FROM runs WHERE tenant = ? AND id = ?"

# A run, unless its slot is taken.
_ADD: Final = f"""
INSERT INTO runs ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING id
"""

# The oldest runs of an owner, beyond so many, that are over.
_FORGET: Final = """
DELETE FROM runs WHERE owner = ?1 AND look_at = 0
AND num <= (SELECT num FROM runs WHERE owner = ?1 ORDER BY num DESC LIMIT 1 OFFSET ?2)
"""

# Runs to look at. Of two who ask at once one waits for the other's rows, and then finds them taken.
_TAKE: Final = f"""
UPDATE runs SET look_at = ?2 WHERE look_at > 0 AND look_at <= ?1 AND num IN (
    SELECT num FROM runs WHERE look_at > 0 AND look_at <= ?1 ORDER BY look_at, num LIMIT ?3
) RETURNING {_COLUMNS}
"""

_LEAST_LOOK: Final = "SELECT look_at FROM runs WHERE look_at > 0 ORDER BY look_at LIMIT 1"

# What came of a run that has not ended.
_SETTLE: Final = """
UPDATE runs SET state = ?, look_at = ?, body = ?, session_id = ?, started_at = ?, ended_at = ?
WHERE id = ? AND state = ? AND look_at > 0 RETURNING id
"""

# The run that waits is opened, unless another one works.
_OPEN_NEXT: Final = f"""
UPDATE runs SET state = 'open', look_at = ?2 WHERE owner = ?1 AND look_at > 0 AND state = 'queued'
AND NOT EXISTS (SELECT 1 FROM runs w WHERE w.owner = ?1 AND w.look_at > 0 AND w.state <> 'queued')
RETURNING {_COLUMNS}
"""

_LAST_STARTED: Final = """
SELECT started_at FROM runs
WHERE owner = ? AND scheduled_at IS NOT NULL AND started_at IS NOT NULL ORDER BY num DESC LIMIT 1
"""


class SqlRuns:
    """The `ports.runs.Runs` on an SQL database."""

    def __init__(self, writer: SqlWriter, reader: SqlReader) -> None:
        self._writer = writer
        self._reader = reader

    async def claim(
        self, kind: Kind, tenant: str, owner: str, now: Micros, plan: Plan
    ) -> list[Run]:
        return await self._writer.alone(ClaimTime(RecordKey(kind, tenant, owner), now, plan))

    async def begin(self, run: Run) -> Run:
        return await self._writer.alone(BeginRun(run))

    async def amend(self, kind: Kind, tenant: str, owner: str, amend: Amend) -> list[Run]:
        return await self._writer.alone(AmendRuns(RecordKey(kind, tenant, owner), amend))

    async def take(self, now: Micros, until: Micros, *, limit: int) -> list[Run]:
        return await self._writer.alone(TakeRuns(now, until, limit))

    async def least_look(self) -> Micros | None:
        rows = await rows_of(self._reader, _LEAST_LOOK)
        return rows[0][0] if rows else None

    async def settle(
        self,
        run: Run,
        before: RunState,
        *,
        change: Callable[[Record], dict[str, Any]] | None = None,
        pauses: bool = False,
        archive: bool = False,
    ) -> Run | None:
        return await self._writer.alone(SettleRun(run, before, change, pauses, archive))

    async def get(self, kind: Kind, tenant: str, run_id: str) -> Run:
        rows = await rows_of(self._reader, _ONE, run_id, kind, tenant)
        if not rows:
            raise NotFound(f"run {run_id} was not found")
        return _run_of(rows[0])

    async def page(self, query: RunQuery) -> list[Run]:
        return await self._reader.read(lambda rows: _page(rows, query))

    async def last_started(self, owners: Sequence[str]) -> dict[str, Micros]:
        return await self._reader.read(lambda rows: _last_started(rows, owners))


# What the writer does. Whoever locks a record and its runs locks the record first.


class ClaimTime(msgspec.Struct, frozen=True):
    """The record is due at its next time, and what has come has its runs, in one commit."""

    which: RecordKey
    now: Micros
    plan: Plan
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> list[Run]:
        try:
            num, record = await newest(tx, self.which)
        except NotFound:
            return []
        if record.archived_at is not None or record.due_at is None or record.due_at > self.now:
            return []
        unfinished = [_run_of(row) for row in await tx.ask(_UNFINISHED, record.id)]
        planned = self.plan(record, unfinished)
        await tx.ask(SET_DUE, planned.due_at, tx.now, num)
        for run in planned.changed:
            await tx.ask(_SETTLE, *_settled(run), run.id, "queued")
        made = [replace(run, created_at=tx.now) for run in planned.runs]
        added = [run for run in made if await tx.ask(_ADD, *_row_of(run))]
        for run in added:
            _tell(tx, run)
        if added:
            await tx.ask(_FORGET, record.id, _most(record.kind))
        return added


class BeginRun(msgspec.Struct, frozen=True):
    """A run, or the one that has its slot."""

    run: Run
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Run:
        run = replace(self.run, created_at=tx.now)
        if await tx.ask(_ADD, *_row_of(run)):
            await tx.ask(_FORGET, run.owner, _most(run.kind))
            return run
        return _run_of((await tx.ask(_SLOT, run.owner, run.slot))[0])


class AmendRuns(msgspec.Struct, frozen=True):
    """Another body for a record, and runs that come with it."""

    which: RecordKey
    amend: Amend
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> list[Run]:
        _, record = await newest(tx, self.which)
        unfinished = [_run_of(row) for row in await tx.ask(_UNFINISHED, record.id)]
        body, runs = self.amend(record, unfinished)
        made = [replace(run, created_at=run.created_at or tx.now) for run in runs]
        added = [run for run in made if await tx.ask(_ADD, *_row_of(run))]
        if added or not made:
            await ChangeRecord(self.which, lambda _: body, None, False, None, UNSET).on(tx)
        if added:
            await tx.ask(_FORGET, record.id, _most(record.kind))
        return added


class TakeRuns(msgspec.Struct, frozen=True):
    """Runs that nobody else looks at for a while."""

    now: Micros
    until: Micros
    limit: int
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> list[Run]:
        return [_run_of(row) for row in await tx.ask(_TAKE, self.now, self.until, self.limit)]


class SettleRun(msgspec.Struct, frozen=True):
    """What came of a run, and what that means for its record."""

    run: Run
    before: RunState
    change: Callable[[Record], dict[str, Any]] | None
    pauses: bool
    archive: bool
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Run | None:
        run = self.run
        which = RecordKey(run.kind, run.tenant, run.owner)
        await newest(tx, which)
        if not await tx.ask(_SETTLE, *_settled(run), run.id, self.before):
            return None
        if run.state != self.before:
            _tell(tx, run)
        if not run.look_at:
            for row in await tx.ask(_OPEN_NEXT, run.owner, run.ended_at):
                _tell(tx, _run_of(row))
        if self.archive:
            await ArchiveRecord(which, self.change).on(tx)
        elif self.change is not None:
            due_at = None if self.pauses else UNSET
            await ChangeRecord(which, self.change, None, False, None, due_at).on(tx)
        return run


def _tell(tx: SqlTransaction, run: Run) -> None:
    """Have webhooks told where a scheduled run of a deployment stands; of runs by hand they are not."""
    if run.kind == "deployment" and run.scheduled_at is not None and run.state in RUN_EVENTS:
        tx.tell(run.tenant, RUN_EVENTS[run.state], run.id)


def _most(kind: Kind) -> int:
    """How many runs such a record keeps."""
    return ports.MOST_TASK_RUNS if kind == "task" else ports.MOST_RUNS


# Rows


def _settled(run: Run) -> Row:
    return (
        *(run.state, run.look_at, encode(run.body), run.session_id),
        *(run.started_at, run.ended_at),
    )


def _row_of(run: Run) -> Row:
    """As `_COLUMNS` has it."""
    who = (run.id, run.tenant, run.kind, run.owner, run.created_by, run.slot)
    where = (run.state, run.look_at, encode(run.body), run.scheduled_at, run.session_id)
    return (*who, *where, run.created_at, run.started_at, run.ended_at)


def _run_of(row: Row) -> Run:
    """From a row of `_COLUMNS`."""
    id, tenant, kind, owner, created_by, slot, state, look_at, body, scheduled_at = row[:10]
    session_id, created_at, started_at, ended_at = row[10:]
    return Run(
        id=id,
        tenant=tenant,
        kind=kind,
        owner=owner,
        created_by=created_by,
        slot=slot,
        state=state,
        look_at=look_at,
        body=decode(body),
        scheduled_at=scheduled_at,
        session_id=session_id,
        created_at=created_at,
        started_at=started_at,
        ended_at=ended_at,
    )


async def _page(rows: Rows, query: RunQuery) -> list[Run]:
    beyond = None
    if query.after is not None:
        beyond = position(
            await rows.fetch(_POSITION, query.tenant, query.after), "run", query.after
        )
    where = Filter().equal("tenant", query.tenant).equal("kind", query.kind)
    where.equal("owner", query.owner).equal("created_by", query.created_by)
    where.among("state", query.states)
    if query.scheduled is not None:
        where.either(f"scheduled_at IS {'NOT ' if query.scheduled else ''}NULL", [])
    where.at_least("created_at", query.since).at_most("created_at", query.until)
    where.beyond("num", beyond, descending=True)
    statement = f"{_SELECT} WHERE {where.text} ORDER BY num DESC LIMIT ?"
    return [_run_of(row) for row in await rows.fetch(statement, *where.values, query.limit)]


async def _last_started(rows: Rows, owners: Sequence[str]) -> dict[str, Micros]:
    found = {owner: await rows.fetch(_LAST_STARTED, owner) for owner in owners}
    return {owner: row[0][0] for owner, row in found.items() if row}
