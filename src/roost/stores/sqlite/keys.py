"""API keys, on SQLite."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import apsw
import msgspec
from msgspec.structs import asdict, replace

from roost.errors import Conflict, NotFound
from roost.ports.keys import Key
from roost.stores.sqlite.driver import Row
from roost.stores.sqlite.readers import Readers
from roost.stores.sqlite.rows import decode, encode
from roost.stores.sqlite.transaction import Transaction
from roost.stores.sqlite.writer import Writer

_IN_COLUMNS: Final = ("id", "tenant", "digest", "created_at", "revoked_at")

# Whole keys.
_SELECT = "SELECT id, tenant, digest, created_at, revoked_at, rest FROM keys"

# A new key.
_ADD = """
INSERT INTO keys (id, tenant, digest, created_at, revoked_at, rest) VALUES (?, ?, ?, ?, ?, ?)
"""

# A key that opens nothing any more.
_REVOKE = "UPDATE keys SET revoked_at = ? WHERE id = ?"


class SqliteKeys:
    """`ports.keys.Keys`."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self._writer = writer
        self._readers = readers

    async def add(self, key: Key) -> Key:
        return await self._writer.do(partial(_add, key))

    async def find(self, digest: bytes) -> Key | None:
        return await self._readers.ask(partial(_find, digest))

    async def all(self, tenant: str | None = None) -> list[Key]:
        return await self._readers.ask(partial(_all, tenant))

    async def revoke(self, key_id: str) -> Key:
        return await self._writer.do(partial(_revoke, key_id))


def _add(key: Key, tx: Transaction) -> Key:
    if tx.ask(f"{_SELECT} WHERE id = ? OR digest = ?", (key.id, key.digest)):
        raise Conflict(f"there is a key {key.id} already, or one with its secret")
    kept = replace(key, created_at=tx.now)
    fields = asdict(kept)
    columns = [fields.pop(name) for name in _IN_COLUMNS]
    tx.ask(_ADD, (*columns, encode(fields)))
    return kept


def _revoke(key_id: str, tx: Transaction) -> Key:
    found = tx.ask(f"{_SELECT} WHERE id = ?", (key_id,))
    if not found:
        raise NotFound(f"there is no key {key_id}")
    key = _key_of(found[0])
    if key.revoked_at is not None:
        return key
    tx.ask(_REVOKE, (tx.now, key_id))
    return replace(key, revoked_at=tx.now)


def _find(digest: bytes, db: apsw.Connection) -> Key | None:
    row = db.execute(f"{_SELECT} WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else _key_of(row)


def _all(tenant: str | None, db: apsw.Connection) -> list[Key]:
    where = "WHERE ?1 IS NULL OR tenant = ?1 ORDER BY num"
    return [_key_of(row) for row in db.execute(f"{_SELECT} {where}", (tenant,))]


def _key_of(row: Row) -> Key:
    *columns, rest = row
    fields: dict[str, Any] = decode(rest)
    fields.update(zip(_IN_COLUMNS, columns, strict=True))
    return msgspec.convert(fields, Key, builtin_types=(bytes,))
