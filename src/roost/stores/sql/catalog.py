"""Versioned records in a SQL database: `SqlCatalog`, then what the writer does, then what readers are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from roost.domain.events import Micros
from roost.domain.session import TrustLevel, reaches
from roost.domain.webhook import RECORD_EVENTS, change_of
from roost.errors import Conflict, NotFound, QuotaExceeded
from roost.ports import catalog
from roost.ports.catalog import Kind, Record, RecordQuery
from roost.stores.sql.batch import LockKind, Needs, SqlTransaction
from roost.stores.sql.database import Rows, SqlReader, SqlWriter, rows_of
from roost.stores.sql.listing import POSITION, Filter, Value, position
from roost.stores.sql.rows import Row, decode, encode

# Records at whichever version a condition picks.
_SELECT: Final = """
SELECT r.num, r.kind, r.tenant, r.id, v.version, v.body, r.created_at, v.updated_at, r.archived_at,
       r.created_by, v.ceiling, r.due_at
FROM records r JOIN versions v ON v.record = r.num
"""

# A record at its newest version.
_NEWEST: Final = (
    f"{_SELECT} WHERE r.id = ? AND r.kind = ? AND r.tenant = ? AND v.version = r.version"
)

# A record at any version.
_ANY: Final = f"{_SELECT} WHERE r.id = ? AND r.kind = ? AND r.tenant = ? AND v.version = ?"

# The newest record of a name.
_BY_NAME: Final = f"""
{_SELECT} WHERE r.tenant = ? AND r.kind = ? AND r.name = ? AND r.archived_at IS NULL
AND v.version = r.version ORDER BY r.num DESC LIMIT 1
"""

# The versions of a record, newest first.
_VERSIONS: Final = f"""
{_SELECT} WHERE r.id = ? AND r.kind = ? AND r.tenant = ? AND v.version < ?
ORDER BY v.version DESC LIMIT ?
"""

# Records of all tenants, the newest ids first.
_EVERY: Final = f"""
{_SELECT} WHERE r.kind = ? AND (CAST(? AS TEXT) = '' OR r.id < ?) AND r.archived_at IS NULL
AND v.version = r.version ORDER BY r.id DESC LIMIT ?
"""

# Records of all tenants that are due, those due for longest first.
DUE: Final = f"""
{_SELECT} WHERE r.kind = ? AND r.due_at < ? AND r.archived_at IS NULL
AND v.version = r.version ORDER BY r.due_at, r.num LIMIT ?
"""

# Whether a name is taken.
_NAMED: Final = """
SELECT 1 FROM records WHERE tenant = ? AND kind = ? AND name = ? AND archived_at IS NULL LIMIT 1
"""

# How many records of a kind a tenant has, archived ones too, as far as it matters.
_COUNT: Final = """
SELECT count(*) FROM (SELECT 1 FROM records WHERE tenant = ? AND kind = ? LIMIT ?) AS counted
"""

# A new record, without its first version.
_ADD: Final = """
INSERT INTO records (id, kind, tenant, name, created_by, due_at, version, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?) RETURNING num
"""

# A version of a record.
_ADD_VERSION: Final = """
INSERT INTO versions (record, version, updated_at, body, ceiling) VALUES (?, ?, ?, ?, ?)
"""

# The record stands at a new version.
_ADVANCE: Final = "UPDATE records SET version = ?, name = ?, updated_at = ? WHERE num = ?"

# The same version has another body.
_REWRITE: Final = "UPDATE versions SET body = ?, updated_at = ? WHERE record = ? AND version = ?"

# The record is due at another time. Its version stays as it is; but that something happened is noted.
SET_DUE: Final = "UPDATE records SET due_at = ?, updated_at = ? WHERE num = ?"

# Versions that nobody asks for go.
_FORGET: Final = "DELETE FROM versions WHERE record = ? AND version <= ?"

# The record, and its newest version with it, is archived.
_ARCHIVE: Final = "UPDATE records SET archived_at = ?, updated_at = ? WHERE num = ?"
_TOUCH: Final = "UPDATE versions SET updated_at = ? WHERE record = ? AND version = ?"

# The record itself.
_LOCK: Final = "SELECT num FROM records WHERE id = ? AND kind = ? AND tenant = ?"

# Whether a session that still exists was made from a record.
_USED: Final[dict[Kind, str]] = {
    "agent": "SELECT 1 FROM sessions WHERE agent_id = ? LIMIT 1",
    "environment": "SELECT 1 FROM sessions WHERE environment_id = ? LIMIT 1",
    "workspace": "SELECT 1 FROM sessions WHERE workspace = ? AND archived_at IS NULL LIMIT 1",
}

# A record goes; a listing may still go on after it.
_DELETE: Final = ("DELETE FROM records WHERE num = ?", "DELETE FROM versions WHERE record = ?")
_WITH_RUNS: Final = frozenset(("task",))
_DELETE_RUNS: Final = "DELETE FROM runs WHERE owner = ?"
_BURY: Final = "INSERT INTO graves (kind, num, tenant, id, swept) VALUES (?, ?, ?, ?, 1)"


_NO_VERSION: Final = 2**62


class SqlCatalog:
    """The `ports.catalog.Catalog` on an SQL database."""

    def __init__(self, writer: SqlWriter, reader: SqlReader) -> None:
        self._writer = writer
        self._reader = reader

    async def add(
        self,
        kind: Kind,
        tenant: str,
        record_id: str,
        body: dict[str, Any],
        *,
        unique_name: bool,
        created_by: str = "",
        ceiling: TrustLevel | None = None,
        due_at: Micros | None = None,
    ) -> Record:
        which = RecordKey(kind, tenant, record_id)
        return await self._writer.alone(
            AddRecord(which, body, unique_name, created_by, ceiling, due_at)
        )

    async def get(
        self, kind: Kind, tenant: str, record_id: str, version: int | None = None
    ) -> Record:
        which = (record_id, kind, tenant)
        statement, values = (_NEWEST, which) if version is None else (_ANY, (*which, version))
        rows = await rows_of(self._reader, statement, *values)
        if not rows:
            raise _absent(kind, record_id, version)
        return _record_of(rows[0])

    async def named(self, kind: Kind, tenant: str, name: str) -> Record | None:
        rows = await rows_of(self._reader, _BY_NAME, tenant, kind, name)
        return _record_of(rows[0]) if rows else None

    async def page(self, query: RecordQuery) -> list[Record]:
        return await self._reader.read(lambda rows: _page(rows, query))

    async def every(self, kind: Kind, *, before: str | None = None, limit: int) -> list[Record]:
        last = before or ""
        return _records_of(await rows_of(self._reader, _EVERY, kind, last, last, limit))

    async def due(self, kind: Kind, before: Micros, *, limit: int) -> list[Record]:
        return _records_of(await rows_of(self._reader, DUE, kind, before, limit))

    async def versions(
        self, kind: Kind, tenant: str, record_id: str, *, before: int | None, limit: int
    ) -> list[Record]:
        below = _NO_VERSION if before is None else before
        await self.get(kind, tenant, record_id)
        which = (record_id, kind, tenant)
        return _records_of(await rows_of(self._reader, _VERSIONS, *which, below, limit))

    async def change(
        self,
        kind: Kind,
        tenant: str,
        record_id: str,
        change: Callable[[Record], dict[str, Any]],
        *,
        expected: int | None = None,
        unique_name: bool = False,
        ceiling: TrustLevel | None = None,
        due_at: Micros | UnsetType | None = UNSET,
    ) -> Record:
        which = RecordKey(kind, tenant, record_id)
        return await self._writer.alone(
            ChangeRecord(which, change, expected, unique_name, ceiling, due_at)
        )

    async def rewrite(self, record: Record, body: dict[str, Any]) -> bool:
        return await self._writer.alone(RewriteRecord(record, body))

    async def archive(
        self,
        kind: Kind,
        tenant: str,
        record_id: str,
        change: Callable[[Record], dict[str, Any]] | None = None,
    ) -> Record:
        return await self._writer.alone(ArchiveRecord(RecordKey(kind, tenant, record_id), change))

    async def delete(
        self,
        kind: Kind,
        tenant: str,
        record_id: str,
        *,
        expected: int | None = None,
        force: bool = False,
    ) -> None:
        which = RecordKey(kind, tenant, record_id)
        await self._writer.alone(DeleteRecord(which, force, expected))


# What the writer does


class RecordKey(msgspec.Struct, frozen=True):
    """What names one record: its kind, its tenant and its id."""

    kind: Kind
    tenant: str
    id: str


class AddRecord(msgspec.Struct, frozen=True):
    """A new record at version 1."""

    which: RecordKey
    body: dict[str, Any]
    unique_name: bool
    created_by: str
    ceiling: TrustLevel | None
    due_at: Micros | None
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Record:
        kind, tenant, now = self.which.kind, self.which.tenant, tx.now
        name = self.body.get("name")
        if self.unique_name:
            await _check_name(tx, self.which, name)
        await _check_count(tx, self.which)
        text = encode(self.body)
        who = (self.which.id, kind, tenant, name, self.created_by)
        [(num,)] = await tx.ask(_ADD, *who, self.due_at, now, now)
        await tx.ask(_ADD_VERSION, num, 1, now, text, self.ceiling or "")
        _tell(tx, self.which, "created")
        return (await newest(tx, self.which))[1]


class ChangeRecord(msgspec.Struct, frozen=True):
    """A new version, if the change makes one."""

    which: RecordKey
    change: Callable[[Record], dict[str, Any]]
    expected: int | None
    unique_name: bool
    ceiling: TrustLevel | None
    due_at: Micros | UnsetType | None
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Record:
        num, record = await newest(tx, self.which)
        _check_version(record, self.expected)
        text = encode(self.change(record))
        if not _stays(record, decode(text), self.ceiling):
            await self._advance(tx, num, record, text)
        elif self.due_at in (UNSET, record.due_at):
            return record
        if self.due_at is not UNSET:
            await tx.ask(SET_DUE, self.due_at, tx.now, num)
        return (await newest(tx, self.which))[1]

    async def _advance(self, tx: SqlTransaction, num: int, record: Record, text: bytes) -> None:
        _check_versions(record)
        name, version = decode(text).get("name"), record.version + 1
        if self.unique_name and name != record.body.get("name"):
            await _check_name(tx, self.which, name)
        ceiling = self.ceiling or record.ceiling or ""
        await tx.ask(_ADD_VERSION, num, version, tx.now, text, ceiling)
        await tx.ask(_ADVANCE, version, name, tx.now, num)
        _tell(tx, self.which, change_of(record.kind, record.body, decode(text)))
        if (kept := catalog.kept_versions(record.kind)) is not None:
            await tx.ask(_FORGET, num, version - kept)


class RewriteRecord(msgspec.Struct, frozen=True):
    """Another body for the newest version, if that is as it was read."""

    record: Record
    body: dict[str, Any]
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> bool:
        read = self.record
        try:
            num, now = await newest(tx, RecordKey(read.kind, read.tenant, read.id))
        except NotFound:
            return False
        if (now.version, now.body) != (read.version, read.body):
            return False
        await tx.ask(_REWRITE, encode(self.body), tx.now, num, now.version)
        await tx.ask(_ADVANCE, now.version, self.body.get("name"), tx.now, num)
        return True


class ArchiveRecord(msgspec.Struct, frozen=True):
    """Archived, if it is not yet, with its last body, if that is to be another one."""

    which: RecordKey
    change: Callable[[Record], dict[str, Any]] | None = None
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Record:
        num, record = await newest(tx, self.which)
        if record.archived_at is not None:
            return record
        await tx.ask(_ARCHIVE, tx.now, tx.now, num)
        await tx.ask(_TOUCH, tx.now, num, record.version)
        if self.change is not None:
            body = encode(self.change(record))
            await tx.ask(_REWRITE, body, tx.now, num, record.version)
        _tell(tx, self.which, "archived")
        return (await newest(tx, self.which))[1]


class DeleteRecord(msgspec.Struct, frozen=True):
    """Gone with all versions. `force`: also if a session uses it."""

    which: RecordKey
    force: bool
    expected: int | None = None
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> None:
        num, record = await newest(tx, self.which)
        _check_version(record, self.expected)
        used = None if self.force else _USED.get(record.kind)
        if used is not None and await tx.ask(used, record.id):
            raise _in_use(record.kind)
        for statement in _DELETE:
            await tx.ask(statement, num)
        if record.kind in _WITH_RUNS:
            await tx.ask(_DELETE_RUNS, record.id)
        await tx.ask(_BURY, record.kind, num, record.tenant, record.id)
        _tell(tx, self.which, "deleted")


def _tell(tx: SqlTransaction, which: RecordKey, what: str) -> None:
    """Have webhooks told, if they are told of this kind of record."""
    if what in RECORD_EVENTS.get(which.kind, ()):
        tx.tell(which.tenant, f"{which.kind}.{what}", which.id)


async def newest(tx: SqlTransaction, which: RecordKey) -> tuple[int, Record]:
    """The record, which nobody else changes from here on. The moment of a change is not before the last one's."""
    # First the lock: a statement that waited for it would join the new row with a version of the old one.
    await tx.ask_locked(_LOCK, which.id, which.kind, which.tenant)
    found = await tx.ask(_NEWEST, which.id, which.kind, which.tenant)
    if not found:
        raise _absent(which.kind, which.id)
    record = _record_of(found[0])
    tx.at_least(record.updated_at)
    return found[0][0], record


async def _check_name(tx: SqlTransaction, which: RecordKey, name: str | None) -> None:
    # Those who want one name wait for each other, or two would both find it free.
    await tx.lock(LockKind.RECORD_NAME, f"{which.tenant} {which.kind} {name}")
    if await tx.ask(_NAMED, which.tenant, which.kind, name):
        raise _name_taken(which.kind, name)


async def _check_count(tx: SqlTransaction, which: RecordKey) -> None:
    # A few more may come to be: transactions that add at the same moment do not see each other.
    if catalog.is_counted_by_owner(which.kind):
        return
    most = catalog.MOST_RECORDS
    [(count,)] = await tx.ask(_COUNT, which.tenant, which.kind, most)
    if count >= most:
        raise _too_many(which.kind)


# What readers are asked


async def _page(rows: Rows, query: RecordQuery) -> list[Record]:
    beyond = None
    if query.after is not None:
        found = await rows.fetch(POSITION, query.kind, query.tenant, query.after)
        beyond = position(found, query.kind, query.after)
    statement, values = _listed(query, beyond)
    return _records_of(await rows.fetch(statement, *values))


def _records_of(rows: Sequence[Row]) -> list[Record]:
    return [_record_of(row) for row in rows]


def _too_many(kind: Kind) -> QuotaExceeded:
    return QuotaExceeded(
        f"there are {catalog.MOST_RECORDS} records of the kind {kind!r} already, and no more are allowed",
        hint="Delete some that are no longer needed; those that are archived count, too.",
    )


def _check_versions(record: Record) -> None:
    """Refuse another version of a record that has as many as it may.

    :raises QuotaExceeded: it has as many versions as a record may
    """
    if (
        not catalog.is_counted_by_owner(record.kind)
        and catalog.kept_versions(record.kind) is None
        and record.version >= catalog.MOST_VERSIONS
    ):
        raise QuotaExceeded(
            f"this {record.kind} has {record.version} versions, and no more are allowed",
            hint="Create another one instead.",
        )


def _absent(kind: Kind, record_id: str, version: int | None = None) -> NotFound:
    which = "" if version is None else f" with a version {version}"
    return NotFound(f"there is no {kind} {record_id}{which}")


def _record_of(row: Row) -> Record:
    """From a row of `SELECT`."""
    _, kind, tenant, id, version, body, created_at, updated_at, archived_at = row[:9]
    created_by, ceiling, due_at = row[9:]
    return Record(
        kind=kind,
        tenant=tenant,
        id=id,
        version=version,
        body=decode(body),
        created_at=created_at,
        updated_at=updated_at,
        archived_at=archived_at,
        created_by=created_by,
        ceiling=ceiling or None,
        due_at=due_at,
    )


def _name_taken(kind: Kind, name: str | None) -> Conflict:
    return Conflict(
        f"there is {'an' if kind[0] in 'aeiou' else 'a'} {kind} named {name!r} already",
        hint="Use that one, archive it, or take another name.",
    )


def _in_use(kind: Kind) -> Conflict:
    hint = "Delete its sessions first, or archive it."
    if kind == "workspace":
        hint = "Archive or delete its sessions first, or delete it with `force`."
    return Conflict(f"the {kind} is used by a session", hint=hint)


def _check_version(record: Record, expected: int | None) -> None:
    """Refuse a change that was made to another version. :raises Conflict: it is another one"""
    if expected is not None and record.version != expected:
        raise Conflict(f"the {record.kind} is at version {record.version}, not {expected}")


def _stays(record: Record, body: dict[str, Any], ceiling: TrustLevel | None) -> bool:
    """Whether a change makes no new version: nothing is different, nor does anybody vouch for more trust."""
    if body != record.body:
        return False
    return record.ceiling is None or ceiling is None or reaches(record.ceiling, ceiling)


def _listed(query: RecordQuery, beyond: int | None) -> tuple[str, list[Value]]:
    """A page of records at their newest versions: the statement, and its values."""
    where = Filter().equal("r.tenant", query.tenant).equal("r.kind", query.kind)
    where.equal("r.name", query.name)
    where.equal("r.created_by", query.created_by)
    where.at_least("r.created_at", query.since)
    where.at_most("r.created_at", query.until)
    if not query.include_archived:
        where.absent("r.archived_at")
    where.beyond("r.num", beyond, descending=True)
    order = "AND v.version = r.version ORDER BY r.num DESC LIMIT ?"
    return f"{_SELECT} WHERE {where.text} {order}", [*where.values, query.limit]
