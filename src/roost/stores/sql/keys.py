"""API keys in a SQL database: `SqlKeys`, then what the writer does, then how a key is a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from roost.errors import Conflict, LastAdministrator, NotFound
from roost.ports.keys import Key
from roost.stores.sql.batch import Needs, SqlTransaction
from roost.stores.sql.database import SqlReader, SqlWriter, rows_of
from roost.stores.sql.rows import Row, decode, encode

_IN_COLUMNS: Final = ("id", "tenant", "digest", "created_at", "revoked_at")

# Whole keys.
_SELECT: Final = "SELECT id, tenant, digest, created_at, revoked_at, rest FROM keys"
_BY_ID: Final = f"{_SELECT} WHERE id = ?"
_BY_DIGEST: Final = f"{_SELECT} WHERE digest = ?"

# All keys, or one tenant's, oldest first.
_LIST: Final = f"{_SELECT} WHERE CAST(?1 AS TEXT) IS NULL OR tenant = ?1 ORDER BY num"

# A new key, unless there is one with its id or its secret.
_ADD: Final = """
INSERT INTO keys (id, tenant, digest, created_at, revoked_at, rest) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1
"""

# A key under another name, or with other limits.
_CHANGE: Final = "UPDATE keys SET rest = ? WHERE id = ?"

# A key that opens nothing any more.
_REVOKE: Final = "UPDATE keys SET revoked_at = ? WHERE id = ?"

# A key to revoke, and all that would be left.
_REVOCABLE: Final = f"{_SELECT} WHERE id = ?1 OR revoked_at IS NULL ORDER BY id"


class SqlKeys:
    """The `ports.keys.Keys` on an SQL database."""

    def __init__(self, writer: SqlWriter, reader: SqlReader) -> None:
        self._writer = writer
        self._reader = reader

    async def add(self, key: Key) -> Key:
        return await self._writer.alone(AddKey(key))

    async def find(self, digest: bytes) -> Key | None:
        rows = await rows_of(self._reader, _BY_DIGEST, digest)
        return key_of(rows[0]) if rows else None

    async def all(self, tenant: str | None = None) -> list[Key]:
        return [key_of(row) for row in await rows_of(self._reader, _LIST, tenant)]

    async def change(self, key_id: str, fields: Mapping[str, Any]) -> Key:
        return await self._writer.alone(ChangeKey(key_id, fields))

    async def revoke(self, key_id: str) -> Key:
        return await self._writer.alone(RevokeKey(key_id))


# What the writer does


class AddKey(msgspec.Struct, frozen=True):
    """Stores a new key."""

    key: Key
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Key:
        kept = replace(self.key, created_at=tx.now)
        if not await tx.ask(_ADD, *_columns_of(kept)):
            raise Conflict(f"there is a key {kept.id} already, or one with its secret")
        return kept


class ChangeKey(msgspec.Struct, frozen=True):
    """Another name, or other limits."""

    key_id: str
    fields: Mapping[str, Any]
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Key:
        found = await tx.ask_locked(_BY_ID, self.key_id)
        key = key_of(found[0]) if found else None
        if key is None or key.revoked_at is not None:
            raise NotFound(f"there is no key {self.key_id}, or it is revoked")
        key = replace(key, **self.fields)
        await tx.ask(_CHANGE, _columns_of(key)[-1], self.key_id)
        return key


class RevokeKey(msgspec.Struct, frozen=True):
    """It opens nothing any more."""

    key_id: str
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Key:
        # All of them are locked: two administrators must not revoke each other at once.
        key = _to_revoke(self.key_id, await tx.ask_locked(_REVOCABLE, self.key_id))
        if key.revoked_at is not None:
            return key
        await tx.ask(_REVOKE, tx.now, self.key_id)
        return replace(key, revoked_at=tx.now)


def _to_revoke(key_id: str, rows: Iterable[Row]) -> Key:
    """The key among the rows of `_REVOCABLE`. :raises NotFound: :raises LastAdministrator:"""
    found = {key.id: key for key in map(key_of, rows)}
    key = found.pop(key_id, None)
    if key is None:
        raise NotFound(f"there is no key {key_id}")
    last = key.role == "admin" and all(other.role != "admin" for other in found.values())
    if last and key.revoked_at is None:
        raise LastAdministrator()
    return key


# How a key is a row


def _columns_of(key: Key) -> Row:
    """The values of a key, in the order in which `_ADD` takes them."""
    fields = asdict(key)
    columns = [fields.pop(name) for name in _IN_COLUMNS]
    return (*columns, encode(fields))


def key_of(row: Row) -> Key:
    """From a row of `_SELECT`."""
    *columns, rest = row
    fields: dict[str, Any] = decode(rest)
    fields.update(zip(_IN_COLUMNS, columns, strict=True))
    return msgspec.convert(fields, Key, builtin_types=(bytes,))
