"""Versioned records, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from roost.domain.session import TrustLevel
from roost.ports import catalog
from roost.ports.catalog import Kind, Record, RecordQuery
from roost.stores.postgres.database import Database
from roost.stores.postgres.driver import Connection, numbered
from roost.stores.postgres.transaction import Transaction
from roost.stores.postgres.writer import Writer
from roost.stores.sql import records
from roost.stores.sql.listing import POSITION, position
from roost.stores.sql.rows import decode, encode

_NEWEST = numbered(records.NEWEST)
_ANY = numbered(records.ANY)
_BY_NAME = numbered(records.BY_NAME)
_VERSIONS = numbered(records.VERSIONS)
_EVERY = numbered(records.EVERY.replace("? = ''", "CAST(? AS TEXT) = ''"))
_NAMED = numbered(records.NAMED)
_COUNT = numbered(records.COUNT)
_ADD = numbered(records.ADD)
_ADD_VERSION = numbered(records.ADD_VERSION)
_ADVANCE = numbered(records.ADVANCE)
_FORGET = numbered(records.FORGET)
_ARCHIVE = numbered(records.ARCHIVE)
_TOUCH = numbered(records.TOUCH)
_BURY = numbered(records.BURY)
_POSITION = numbered(POSITION.replace("?1", "?1::text"))

# Nobody else changes the record from here on. Its version is read afterwards: a statement that waited
# for the lock would join the new row with a version of the old one.
_LOCK = "SELECT num FROM records WHERE id = $1 AND kind = $2 AND tenant = $3 FOR UPDATE"

# Those who want one name wait for each other, or two would both find it free.
_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended($1, 3))"


class PostgresCatalog:
    """`ports.catalog.Catalog`."""

    def __init__(self, writer: Writer, database: Database) -> None:
        self._writer = writer
        self._database = database

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
    ) -> Record:
        by = created_by, ceiling or ""
        return await self._writer.alone(
            partial(_add, kind, tenant, record_id, body, unique_name, by)
        )

    async def get(
        self, kind: Kind, tenant: str, record_id: str, version: int | None = None
    ) -> Record:
        which = (record_id, kind, tenant)
        statement, values = (_NEWEST, which) if version is None else (_ANY, (*which, version))
        row = await self._database.read(lambda db: db.fetchrow(statement, *values))
        if row is None:
            raise records.absent(kind, record_id, version)
        return records.record_of(row)

    async def named(self, kind: Kind, tenant: str, name: str) -> Record | None:
        row = await self._database.read(lambda db: db.fetchrow(_BY_NAME, tenant, kind, name))
        return None if row is None else records.record_of(row)

    async def page(self, query: RecordQuery) -> list[Record]:
        return await self._database.read(partial(_page, query))

    async def every(self, kind: Kind, *, before: str | None = None, limit: int) -> list[Record]:
        last = before or ""
        rows = await self._database.read(lambda db: db.fetch(_EVERY, kind, last, last, limit))
        return [records.record_of(row) for row in rows]

    async def versions(
        self, kind: Kind, tenant: str, record_id: str, *, before: int | None, limit: int
    ) -> list[Record]:
        below = records.NO_VERSION if before is None else before
        await self.get(kind, tenant, record_id)
        rows = await self._database.read(
            lambda db: db.fetch(_VERSIONS, record_id, kind, tenant, below, limit)
        )
        return [records.record_of(row) for row in rows]

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
    ) -> Record:
        op = partial(_change, kind, tenant, record_id, change, expected, unique_name, ceiling)
        return await self._writer.alone(op)

    async def archive(self, kind: Kind, tenant: str, record_id: str) -> Record:
        return await self._writer.alone(partial(_archive, kind, tenant, record_id))

    async def delete(self, kind: Kind, tenant: str, record_id: str, *, force: bool = False) -> None:
        await self._writer.alone(partial(_delete, kind, tenant, record_id, force))


# What is done in one transaction


async def _newest(kind: Kind, tenant: str, record_id: str, tx: Transaction) -> tuple[int, Record]:
    """The record, locked. The moment of the change is not before the last one's."""
    await tx.ask(_LOCK, record_id, kind, tenant)
    found = await tx.ask(_NEWEST, record_id, kind, tenant)
    if not found:
        raise records.absent(kind, record_id)
    record = records.record_of(found[0])
    tx.now = max(tx.now, record.updated_at)
    return found[0][0], record


async def _add(
    kind: Kind,
    tenant: str,
    record_id: str,
    body: dict[str, Any],
    unique_name: bool,
    by: tuple[str, str],
    connection: Connection,
) -> Record:
    tx = await Transaction.begin(connection)
    name = body.get("name")
    if unique_name:
        await _check_name(kind, tenant, name, tx)
    await _check_count(kind, tenant, tx)
    text = encode(body)
    [(num,)] = await tx.ask(_ADD, record_id, kind, tenant, name, by[0], tx.now, tx.now)
    await tx.ask(_ADD_VERSION, num, 1, tx.now, text, by[1])
    return (await _newest(kind, tenant, record_id, tx))[1]


async def _check_name(kind: Kind, tenant: str, name: str | None, tx: Transaction) -> None:
    await tx.ask(_ONE_AT_A_TIME, f"{tenant} {kind} {name}")
    if await tx.ask(_NAMED, tenant, kind, name):
        raise records.name_taken(kind, name)


async def _check_count(kind: Kind, tenant: str, tx: Transaction) -> None:
    # A few more may come to be: transactions that add at the same moment do not see each other.
    most = catalog.MOST_RECORDS
    if kind in catalog.BOUNDED and (await tx.ask(_COUNT, tenant, kind, most))[0][0] >= most:
        raise records.too_many(kind)


async def _change(
    kind: Kind,
    tenant: str,
    record_id: str,
    change: Callable[[Record], dict[str, Any]],
    expected: int | None,
    unique_name: bool,
    ceiling: TrustLevel | None,
    connection: Connection,
) -> Record:
    tx = await Transaction.begin(connection)
    num, record = await _newest(kind, tenant, record_id, tx)
    records.check_version(record, expected)
    text = encode(change(record))
    body = decode(text)
    if records.stays(record, body, ceiling):
        return record
    records.check_versions(record)
    written = ceiling or record.ceiling or ""
    if unique_name and body.get("name") != record.body.get("name"):
        await _check_name(kind, tenant, body.get("name"), tx)
    await tx.ask(_ADD_VERSION, num, record.version + 1, tx.now, text, written)
    await tx.ask(_ADVANCE, record.version + 1, body.get("name"), tx.now, num)
    if kind == "task":
        await tx.ask(_FORGET, num, record.version + 1 - catalog.TASK_VERSIONS)
    return (await _newest(kind, tenant, record_id, tx))[1]


async def _archive(kind: Kind, tenant: str, record_id: str, connection: Connection) -> Record:
    tx = await Transaction.begin(connection)
    num, record = await _newest(kind, tenant, record_id, tx)
    if record.archived_at is not None:
        return record
    await tx.ask(_ARCHIVE, tx.now, tx.now, num)
    await tx.ask(_TOUCH, tx.now, num, record.version)
    return (await _newest(kind, tenant, record_id, tx))[1]


async def _delete(
    kind: Kind, tenant: str, record_id: str, force: bool, connection: Connection
) -> None:
    tx = await Transaction.begin(connection)
    num, _ = await _newest(kind, tenant, record_id, tx)
    if not force and kind in records.USED and await tx.ask(numbered(records.USED[kind]), record_id):
        raise records.in_use(kind)
    for statement in records.DELETE:
        await tx.ask(numbered(statement), num)
    await tx.ask(_BURY, kind, num, tenant, record_id)


# What is asked


async def _page(query: RecordQuery, db: Connection) -> list[Record]:
    beyond = None
    if query.after is not None:
        found = await db.fetchrow(_POSITION, query.kind, query.tenant, query.after)
        beyond = position(found, query.kind, query.after)
    statement, values = records.listed(query, beyond)
    return [records.record_of(row) for row in await db.fetch(numbered(statement), *values)]
