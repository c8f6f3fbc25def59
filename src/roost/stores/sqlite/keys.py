"""API keys, on SQLite."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import apsw
from msgspec.structs import replace

from roost.errors import Conflict
from roost.ports.keys import Key
from roost.stores.sql import keys
from roost.stores.sqlite.readers import Readers
from roost.stores.sqlite.transaction import Transaction
from roost.stores.sqlite.writer import Writer


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

    async def change(self, key_id: str, fields: Mapping[str, Any]) -> Key:
        return await self._writer.do(partial(_change, key_id, fields))

    async def revoke(self, key_id: str) -> Key:
        return await self._writer.do(partial(_revoke, key_id))


def _add(key: Key, tx: Transaction) -> Key:
    if tx.ask(f"{keys.SELECT} WHERE id = ? OR digest = ?", (key.id, key.digest)):
        raise Conflict(f"there is a key {key.id} already, or one with its secret")
    kept = replace(key, created_at=tx.now)
    tx.ask(keys.ADD, keys.columns_of(kept))
    return kept


def _change(key_id: str, fields: Mapping[str, Any], tx: Transaction) -> Key:
    found = tx.ask(f"{keys.SELECT} WHERE id = ?", (key_id,))
    key = keys.changed(key_id, found, fields)
    tx.ask(keys.CHANGE, (keys.columns_of(key)[-1], key_id))
    return key


def _revoke(key_id: str, tx: Transaction) -> Key:
    key = keys.to_revoke(key_id, tx.ask(keys.REVOCABLE, (key_id,)))
    if key.revoked_at is not None:
        return key
    tx.ask(keys.REVOKE, (tx.now, key_id))
    return replace(key, revoked_at=tx.now)


def _find(digest: bytes, db: apsw.Connection) -> Key | None:
    row = db.execute(f"{keys.SELECT} WHERE digest = ?", (digest,)).fetchone()
    return None if row is None else keys.key_of(row)


def _all(tenant: str | None, db: apsw.Connection) -> list[Key]:
    return [keys.key_of(row) for row in db.execute(keys.LIST, (tenant,))]
