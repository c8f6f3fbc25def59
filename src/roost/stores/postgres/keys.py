"""API keys, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from roost.errors import Conflict
from roost.ports.keys import Key
from roost.stores.postgres.database import Database
from roost.stores.postgres.driver import Connection, numbered
from roost.stores.postgres.transaction import Transaction
from roost.stores.postgres.writer import Writer
from roost.stores.sql import keys

_ADD = numbered(f"{keys.ADD} ON CONFLICT DO NOTHING RETURNING 1")
_LIST = numbered(keys.LIST.replace("?1 IS", "?1::text IS"))
_CHANGE = numbered(keys.CHANGE)
_REVOKE = numbered(keys.REVOKE)
_REVOCABLE = f"{numbered(keys.REVOCABLE)} FOR UPDATE"
_BY_ID = f"{keys.SELECT} WHERE id = $1"
_BY_DIGEST = f"{keys.SELECT} WHERE digest = $1"


class PostgresKeys:
    """`ports.keys.Keys`."""

    def __init__(self, writer: Writer, database: Database) -> None:
        self._writer = writer
        self._database = database

    async def add(self, key: Key) -> Key:
        return await self._writer.alone(partial(_add, key))

    async def find(self, digest: bytes) -> Key | None:
        row = await self._database.read(lambda db: db.fetchrow(_BY_DIGEST, digest))
        return None if row is None else keys.key_of(row)

    async def all(self, tenant: str | None = None) -> list[Key]:
        rows = await self._database.read(lambda db: db.fetch(_LIST, tenant))
        return [keys.key_of(row) for row in rows]

    async def change(self, key_id: str, fields: Mapping[str, Any]) -> Key:
        return await self._writer.alone(partial(_change, key_id, fields))

    async def revoke(self, key_id: str) -> Key:
        return await self._writer.alone(partial(_revoke, key_id))


async def _add(key: Key, connection: Connection) -> Key:
    tx = await Transaction.begin(connection)
    kept = replace(key, created_at=tx.now)
    if not await tx.ask(_ADD, *keys.columns_of(kept)):
        raise Conflict(f"there is a key {key.id} already, or one with its secret")
    return kept


async def _change(key_id: str, fields: Mapping[str, Any], connection: Connection) -> Key:
    tx = await Transaction.begin(connection)
    key = keys.changed(key_id, await tx.ask(f"{_BY_ID} FOR UPDATE", key_id), fields)
    await tx.ask(_CHANGE, keys.columns_of(key)[-1], key_id)
    return key


async def _revoke(key_id: str, connection: Connection) -> Key:
    tx = await Transaction.begin(connection)
    # All of them are locked: two administrators must not revoke each other at once.
    key = keys.to_revoke(key_id, await tx.ask(_REVOCABLE, key_id))
    if key.revoked_at is not None:
        return key
    await tx.ask(_REVOKE, tx.now, key_id)
    return replace(key, revoked_at=tx.now)
