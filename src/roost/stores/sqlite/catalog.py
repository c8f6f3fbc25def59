"""Versioned records, on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import apsw

from roost.domain.session import TrustLevel
from roost.ports import catalog
from roost.ports.catalog import Kind, Record, RecordQuery
from roost.stores.sql import records
from roost.stores.sql.listing import POSITION, position
from roost.stores.sql.rows import decode, encode
from roost.stores.sqlite.readers import Readers
from roost.stores.sqlite.transaction import Transaction
from roost.stores.sqlite.writer import Writer


class SqliteCatalog:
    """`ports.catalog.Catalog`."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

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
        return await self._writer.do(partial(_add, kind, tenant, record_id, body, unique_name, by))

    async def get(
        self, kind: Kind, tenant: str, record_id: str, version: int | None = None
    ) -> Record:
        found = await self._readers.ask(partial(_get, kind, tenant, record_id, version))
        if found is None:
            raise records.absent(kind, record_id, version)
        return found

    async def named(self, kind: Kind, tenant: str, name: str) -> Record | None:
        return await self._readers.ask(partial(_named, kind, tenant, name))

    async def page(self, query: RecordQuery) -> list[Record]:
        return await self._readers.ask(partial(_page, query))

    async def every(self, kind: Kind, *, before: str | None = None, limit: int) -> list[Record]:
        return await self._readers.ask(partial(_every, kind, before or "", limit))

    async def versions(
        self, kind: Kind, tenant: str, record_id: str, *, before: int | None, limit: int
    ) -> list[Record]:
        below = records.NO_VERSION if before is None else before
        await self.get(kind, tenant, record_id)
        return await self._readers.ask(partial(_versions, kind, tenant, record_id, below, limit))

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
        return await self._writer.do(op)

    async def archive(self, kind: Kind, tenant: str, record_id: str) -> Record:
        return await self._writer.do(partial(_archive, kind, tenant, record_id))

    async def delete(self, kind: Kind, tenant: str, record_id: str, *, force: bool = False) -> None:
        await self._writer.do(partial(_delete, kind, tenant, record_id, force))


# What the writer does


def _newest(kind: Kind, tenant: str, record_id: str, tx: Transaction) -> tuple[int, Record]:
    found = tx.ask(records.NEWEST, (record_id, kind, tenant))
    if not found:
        raise records.absent(kind, record_id)
    return found[0][0], records.record_of(found[0])


def _add(
    kind: Kind,
    tenant: str,
    record_id: str,
    body: dict[str, Any],
    unique_name: bool,
    by: tuple[str, str],
    tx: Transaction,
) -> Record:
    name = body.get("name")
    if unique_name:
        _check_name(kind, tenant, name, tx)
    _check_count(kind, tenant, tx)
    text = encode(body)
    [(num,)] = tx.ask(records.ADD, (record_id, kind, tenant, name, by[0], tx.now, tx.now))
    tx.ask(records.ADD_VERSION, (num, 1, tx.now, text, by[1]))
    return _newest(kind, tenant, record_id, tx)[1]


def _check_name(kind: Kind, tenant: str, name: str | None, tx: Transaction) -> None:
    if tx.ask(records.NAMED, (tenant, kind, name)):
        raise records.name_taken(kind, name)


def _check_count(kind: Kind, tenant: str, tx: Transaction) -> None:
    most = catalog.MOST_RECORDS
    if kind in catalog.BOUNDED and tx.ask(records.COUNT, (tenant, kind, most))[0][0] >= most:
        raise records.too_many(kind)


def _change(
    kind: Kind,
    tenant: str,
    record_id: str,
    change: Callable[[Record], dict[str, Any]],
    expected: int | None,
    unique_name: bool,
    ceiling: TrustLevel | None,
    tx: Transaction,
) -> Record:
    num, record = _newest(kind, tenant, record_id, tx)
    records.check_version(record, expected)
    text = encode(change(record))
    body = decode(text)
    if records.stays(record, body, ceiling):
        return record
    records.check_versions(record)
    written = ceiling or record.ceiling or ""
    if unique_name and body.get("name") != record.body.get("name"):
        _check_name(kind, tenant, body.get("name"), tx)
    tx.ask(records.ADD_VERSION, (num, record.version + 1, tx.now, text, written))
    tx.ask(records.ADVANCE, (record.version + 1, body.get("name"), tx.now, num))
    if kind == "task":
        tx.ask(records.FORGET, (num, record.version + 1 - catalog.TASK_VERSIONS))
    return _newest(kind, tenant, record_id, tx)[1]


def _archive(kind: Kind, tenant: str, record_id: str, tx: Transaction) -> Record:
    num, record = _newest(kind, tenant, record_id, tx)
    if record.archived_at is not None:
        return record
    tx.ask(records.ARCHIVE, (tx.now, tx.now, num))
    tx.ask(records.TOUCH, (tx.now, num, record.version))
    return _newest(kind, tenant, record_id, tx)[1]


def _delete(kind: Kind, tenant: str, record_id: str, force: bool, tx: Transaction) -> None:
    num, _ = _newest(kind, tenant, record_id, tx)
    if not force and kind in records.USED and tx.ask(records.USED[kind], (record_id,)):
        raise records.in_use(kind)
    for statement in records.DELETE:
        tx.ask(statement, (num,))
    tx.ask(records.BURY, (kind, num, tenant, record_id))


# What readers answer


def _get(
    kind: Kind, tenant: str, record_id: str, version: int | None, db: apsw.Connection
) -> Record | None:
    which = (record_id, kind, tenant)
    if version is None:
        row = db.execute(records.NEWEST, which).fetchone()
    else:
        row = db.execute(records.ANY, (*which, version)).fetchone()
    return None if row is None else records.record_of(row)


def _named(kind: Kind, tenant: str, name: str, db: apsw.Connection) -> Record | None:
    row = db.execute(records.BY_NAME, (tenant, kind, name)).fetchone()
    return None if row is None else records.record_of(row)


def _page(query: RecordQuery, db: apsw.Connection) -> list[Record]:
    beyond = None
    if query.after is not None:
        found = db.execute(POSITION, (query.kind, query.tenant, query.after)).fetchone()
        beyond = position(found, query.kind, query.after)
    return [records.record_of(row) for row in db.execute(*records.listed(query, beyond))]


def _every(kind: Kind, before: str, limit: int, db: apsw.Connection) -> list[Record]:
    rows = db.execute(records.EVERY, (kind, before, before, limit))
    return [records.record_of(row) for row in rows]


def _versions(
    kind: Kind, tenant: str, record_id: str, below: int, limit: int, db: apsw.Connection
) -> list[Record]:
    rows = db.execute(records.VERSIONS, (record_id, kind, tenant, below, limit))
    return [records.record_of(row) for row in rows]
