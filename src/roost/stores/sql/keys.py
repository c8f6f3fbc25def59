"""API keys as rows: what both databases are asked, in one wording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from roost.errors import LastAdministrator, NotFound
from roost.ports.keys import Key
from roost.stores.sql.rows import Row, decode, encode

_IN_COLUMNS: Final = ("id", "tenant", "digest", "created_at", "revoked_at")

# Whole keys.
SELECT = "SELECT id, tenant, digest, created_at, revoked_at, rest FROM keys"

# A new key.
ADD = """
INSERT INTO keys (id, tenant, digest, created_at, revoked_at, rest) VALUES (?, ?, ?, ?, ?, ?)
"""

# A key under another name, or with other limits.
CHANGE = "UPDATE keys SET rest = ? WHERE id = ?"

# A key that opens nothing any more.
REVOKE = "UPDATE keys SET revoked_at = ? WHERE id = ?"

# A key to revoke, and all that would be left.
REVOCABLE = f"{SELECT} WHERE id = ?1 OR revoked_at IS NULL ORDER BY id"

# All keys, or one tenant's, oldest first.
LIST = f"{SELECT} WHERE ?1 IS NULL OR tenant = ?1 ORDER BY num"


def columns_of(key: Key) -> Row:
    """What `ADD` takes."""
    fields = asdict(key)
    columns = [fields.pop(name) for name in _IN_COLUMNS]
    return (*columns, encode(fields))


def changed(key_id: str, rows: Sequence[Row], fields: Mapping[str, Any]) -> Key:
    """What becomes of the key that was found. :raises NotFound: none was, or it is revoked"""
    key = key_of(rows[0]) if rows else None
    if key is None or key.revoked_at is not None:
        raise NotFound(f"there is no key {key_id}, or it is revoked")
    return replace(key, **fields)


def to_revoke(key_id: str, rows: Iterable[Row]) -> Key:
    """The key among the rows of `REVOCABLE`. :raises NotFound: :raises LastAdministrator:"""
    found = {key.id: key for key in map(key_of, rows)}
    key = found.pop(key_id, None)
    if key is None:
        raise NotFound(f"there is no key {key_id}")
    last = key.role == "admin" and all(other.role != "admin" for other in found.values())
    if last and key.revoked_at is None:
        raise LastAdministrator()
    return key


def key_of(row: Row) -> Key:
    """From a row of `SELECT`."""
    *columns, rest = row
    fields: dict[str, Any] = decode(rest)
    fields.update(zip(_IN_COLUMNS, columns, strict=True))
    return msgspec.convert(fields, Key, builtin_types=(bytes,))
