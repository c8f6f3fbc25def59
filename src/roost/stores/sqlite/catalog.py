"""Versioned records, on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import apsw

from roost.errors import Conflict, NotFound
from roost.ports.catalog import Kind, Record, RecordQuery
from roost.stores.sqlite.driver import Row
from roost.stores.sqlite.listing import Filter, position
from roost.stores.sqlite.readers import Readers
from roost.stores.sqlite.rows import decode, encode
from roost.stores.sqlite.transaction import Transaction
from roost.stores.sqlite.writer import Writer

# Records at whichever version a condition picks.
_SELECT = """
SELECT r.num, r.kind, r.tenant, r.id, v.version, v.body, r.created_at, v.updated_at, r.archived_at
FROM records r JOIN versions v ON v.record = r.num
"""

# A record at its newest version.
_NEWEST = f"{_SELECT} WHERE r.id = ? AND r.kind = ? AND r.tenant = ? AND v.version = r.version"

# A record at any version.
_ANY = f"{_SELECT} WHERE r.id = ? AND r.kind = ? AND r.tenant = ? AND v.version = ?"

# The versions of a record, newest first.
_VERSIONS = f"""
{_SELECT} WHERE r.id = ? AND r.kind = ? AND r.tenant = ? AND v.version < ?
ORDER BY v.version DESC LIMIT ?
"""

# Whether a name is taken.
_NAMED = """
SELECT 1 FROM records WHERE tenant = ? AND kind = ? AND name = ? AND archived_at IS NULL LIMIT 1
"""

# A new record, without its first version.
_ADD = """
INSERT INTO records (id, kind, tenant, name, version, created_at, updated_at)
VALUES (?, ?, ?, ?, 1, ?, ?) RETURNING num
"""

# A version of a record.
_ADD_VERSION = "INSERT INTO versions (record, version, updated_at, body) VALUES (?, ?, ?, ?)"

# The record stands at a new version.
_ADVANCE = "UPDATE records SET version = ?, name = ?, updated_at = ? WHERE num = ?"

# The record, and its newest version with it, is archived.
_ARCHIVE = "UPDATE records SET archived_at = ?, updated_at = ? WHERE num = ?"
_TOUCH = "UPDATE versions SET updated_at = ? WHERE record = ? AND version = ?"

# Whether a session that still exists was made from a record.
_USED: Final[dict[Kind, str]] = {
    "agent": "SELECT 1 FROM sessions WHERE agent_id = ? LIMIT 1",
    "environment": "SELECT 1 FROM sessions WHERE environment_id = ? LIMIT 1",
}

# A record goes; a listing may still go on after it.
_DELETE: Final = ("DELETE FROM records WHERE num = ?", "DELETE FROM versions WHERE record = ?")
_BURY = "INSERT INTO graves (kind, num, tenant, id, swept) VALUES (?, ?, ?, ?, 1)"

_NO_VERSION: Final = 2**62


class SqliteCatalog:
    """`ports.catalog.Catalog`."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def add(
        self, kind: Kind, tenant: str, record_id: str, body: dict[str, Any], *, unique_name: bool
    ) -> Record:
        return await self._writer.do(partial(_add, kind, tenant, record_id, body, unique_name))

    async def get(
        self, kind: Kind, tenant: str, record_id: str, version: int | None = None
    ) -> Record:
        found = await self._readers.ask(partial(_get, kind, tenant, record_id, version))
        if found is None:
            raise _absent(kind, record_id, version)
        return found

    async def page(self, query: RecordQuery) -> list[Record]:
        return await self._readers.ask(partial(_page, query))

    async def versions(
        self, kind: Kind, tenant: str, record_id: str, *, before: int | None, limit: int
    ) -> list[Record]:
        below = _NO_VERSION if before is None else before
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
    ) -> Record:
        op = partial(_change, kind, tenant, record_id, change, expected, unique_name)
        return await self._writer.do(op)

    async def archive(self, kind: Kind, tenant: str, record_id: str) -> Record:
        return await self._writer.do(partial(_archive, kind, tenant, record_id))

    async def delete(self, kind: Kind, tenant: str, record_id: str) -> None:
        await self._writer.do(partial(_delete, kind, tenant, record_id))


def _absent(kind: Kind, record_id: str, version: int | None = None) -> NotFound:
    which = "" if version is None else f" with a version {version}"
    return NotFound(f"there is no {kind} {record_id}{which}")


def _record_of(row: Row) -> Record:
    _, kind, tenant, id, version, body, created_at, updated_at, archived_at = row
    return Record(
        kind=kind,
        tenant=tenant,
        id=id,
        version=version,
        body=decode(body),
        created_at=created_at,
        updated_at=updated_at,
        archived_at=archived_at,
    )


# What the writer does


def _newest(kind: Kind, tenant: str, record_id: str, tx: Transaction) -> tuple[int, Record]:
    found = tx.ask(_NEWEST, (record_id, kind, tenant))
    if not found:
        raise _absent(kind, record_id)
    return found[0][0], _record_of(found[0])


def _add(
    kind: Kind,
    tenant: str,
    record_id: str,
    body: dict[str, Any],
    unique_name: bool,
    tx: Transaction,
) -> Record:
    name = body.get("name")
    if unique_name:
        _check_name(kind, tenant, name, tx)
    text = encode(body)
    [(num,)] = tx.ask(_ADD, (record_id, kind, tenant, name, tx.now, tx.now))
    tx.ask(_ADD_VERSION, (num, 1, tx.now, text))
    return _newest(kind, tenant, record_id, tx)[1]


def _check_name(kind: Kind, tenant: str, name: str | None, tx: Transaction) -> None:
    if tx.ask(_NAMED, (tenant, kind, name)):
        raise Conflict(
            f"there is a {kind} named {name!r} already", hint="Archive it, or take another name."
        )


def _change(
    kind: Kind,
    tenant: str,
    record_id: str,
    change: Callable[[Record], dict[str, Any]],
    expected: int | None,
    unique_name: bool,
    tx: Transaction,
) -> Record:
    num, record = _newest(kind, tenant, record_id, tx)
    if expected is not None and record.version != expected:
        raise Conflict(f"the {kind} is at version {record.version}, not {expected}")
    text = encode(change(record))
    body = decode(text)
    if body == record.body:
        return record
    if unique_name and body.get("name") != record.body.get("name"):
        _check_name(kind, tenant, body.get("name"), tx)
    tx.ask(_ADD_VERSION, (num, record.version + 1, tx.now, text))
    tx.ask(_ADVANCE, (record.version + 1, body.get("name"), tx.now, num))
    return _newest(kind, tenant, record_id, tx)[1]


def _archive(kind: Kind, tenant: str, record_id: str, tx: Transaction) -> Record:
    num, record = _newest(kind, tenant, record_id, tx)
    if record.archived_at is not None:
        return record
    tx.ask(_ARCHIVE, (tx.now, tx.now, num))
    tx.ask(_TOUCH, (tx.now, num, record.version))
    return _newest(kind, tenant, record_id, tx)[1]


def _delete(kind: Kind, tenant: str, record_id: str, tx: Transaction) -> None:
    num, _ = _newest(kind, tenant, record_id, tx)
    if kind in _USED and tx.ask(_USED[kind], (record_id,)):
        raise Conflict(
            f"the {kind} is used by a session", hint="Delete its sessions first, or archive it."
        )
    for statement in _DELETE:
        tx.ask(statement, (num,))
    tx.ask(_BURY, (kind, num, tenant, record_id))


# What readers answer


def _get(
    kind: Kind, tenant: str, record_id: str, version: int | None, db: apsw.Connection
) -> Record | None:
    which = (record_id, kind, tenant)
    if version is None:
        row = db.execute(_NEWEST, which).fetchone()
    else:
        row = db.execute(_ANY, (*which, version)).fetchone()
    return None if row is None else _record_of(row)


def _page(query: RecordQuery, db: apsw.Connection) -> list[Record]:
    where = Filter().equal("r.tenant", query.tenant).equal("r.kind", query.kind)
    where.at_least("r.created_at", query.since)
    where.at_most("r.created_at", query.until)
    if not query.include_archived:
        where.absent("r.archived_at")
    if query.after is not None:
        where.beyond("r.num", position(db, query.kind, query.tenant, query.after), True)
    rows = db.execute(
        f"{_SELECT} WHERE {where.text} AND v.version = r.version ORDER BY r.num DESC LIMIT ?",
        (*where.values, query.limit),
    )
    return [_record_of(row) for row in rows]


def _versions(
    kind: Kind, tenant: str, record_id: str, below: int, limit: int, db: apsw.Connection
) -> list[Record]:
    rows = db.execute(_VERSIONS, (record_id, kind, tenant, below, limit))
    return [_record_of(row) for row in rows]
