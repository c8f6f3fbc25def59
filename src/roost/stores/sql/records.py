"""Versioned records as rows: what both databases are asked, in one wording.

Placeholders are SQLite's; a store whose database wants others numbers them.
"""

from __future__ import annotations

from typing import Any, Final

from roost.domain.session import TrustLevel, reaches
from roost.errors import Conflict, NotFound, QuotaExceeded
from roost.ports import catalog
from roost.ports.catalog import Kind, Record, RecordQuery
from roost.stores.sql.listing import Filter, Value
from roost.stores.sql.rows import Row, decode

# Records at whichever version a condition picks.
SELECT = """
SELECT r.num, r.kind, r.tenant, r.id, v.version, v.body, r.created_at, v.updated_at, r.archived_at,
       r.created_by, v.ceiling
FROM records r JOIN versions v ON v.record = r.num
"""

# A record at its newest version.
NEWEST = f"{SELECT} WHERE r.id = ? AND r.kind = ? AND r.tenant = ? AND v.version = r.version"

# A record at any version.
ANY = f"{SELECT} WHERE r.id = ? AND r.kind = ? AND r.tenant = ? AND v.version = ?"

# The newest record of a name.
BY_NAME = f"""
{SELECT} WHERE r.tenant = ? AND r.kind = ? AND r.name = ? AND r.archived_at IS NULL
AND v.version = r.version ORDER BY r.num DESC LIMIT 1
"""

# The versions of a record, newest first.
VERSIONS = f"""
{SELECT} WHERE r.id = ? AND r.kind = ? AND r.tenant = ? AND v.version < ?
ORDER BY v.version DESC LIMIT ?
"""

# Records of all tenants, the newest ids first.
EVERY = f"""
{SELECT} WHERE r.kind = ? AND (? = '' OR r.id < ?) AND r.archived_at IS NULL
AND v.version = r.version ORDER BY r.id DESC LIMIT ?
"""

# Whether a name is taken.
NAMED = """
SELECT 1 FROM records WHERE tenant = ? AND kind = ? AND name = ? AND archived_at IS NULL LIMIT 1
"""

# How many records of a kind a tenant has, archived ones too, as far as it matters.
COUNT = """
SELECT count(*) FROM (SELECT 1 FROM records WHERE tenant = ? AND kind = ? LIMIT ?) AS counted
"""

# A new record, without its first version.
ADD = """
INSERT INTO records (id, kind, tenant, name, created_by, version, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, 1, ?, ?) RETURNING num
"""

# A version of a record.
ADD_VERSION = """
INSERT INTO versions (record, version, updated_at, body, ceiling) VALUES (?, ?, ?, ?, ?)
"""

# The record stands at a new version.
ADVANCE = "UPDATE records SET version = ?, name = ?, updated_at = ? WHERE num = ?"

# Versions that nobody asks for go.
FORGET = "DELETE FROM versions WHERE record = ? AND version <= ?"

# The record, and its newest version with it, is archived.
ARCHIVE = "UPDATE records SET archived_at = ?, updated_at = ? WHERE num = ?"
TOUCH = "UPDATE versions SET updated_at = ? WHERE record = ? AND version = ?"

# Whether a session that still exists was made from a record.
USED: Final[dict[Kind, str]] = {
    "agent": "SELECT 1 FROM sessions WHERE agent_id = ? LIMIT 1",
    "environment": "SELECT 1 FROM sessions WHERE environment_id = ? LIMIT 1",
    "workspace": "SELECT 1 FROM sessions WHERE workspace = ? AND archived_at IS NULL LIMIT 1",
}

# A record goes; a listing may still go on after it.
DELETE: Final = ("DELETE FROM records WHERE num = ?", "DELETE FROM versions WHERE record = ?")
BURY = "INSERT INTO graves (kind, num, tenant, id, swept) VALUES (?, ?, ?, ?, 1)"

NO_VERSION: Final = 2**62


def too_many(kind: Kind) -> QuotaExceeded:
    """The error that says so."""
    return QuotaExceeded(
        f"there are {catalog.MOST_RECORDS} records of the kind {kind!r} already, and no more are allowed",
        hint="Delete some that are no longer needed; those that are archived count, too.",
    )


def check_versions(record: Record) -> None:
    """:raises QuotaExceeded: it has as many versions as a record may"""
    if record.kind in catalog.BOUNDED - {"task"} and record.version >= catalog.MOST_VERSIONS:
        raise QuotaExceeded(
            f"this {record.kind} has {record.version} versions, and no more are allowed",
            hint="Create another one in its place.",
        )


def absent(kind: Kind, record_id: str, version: int | None = None) -> NotFound:
    """The error that says so."""
    which = "" if version is None else f" with a version {version}"
    return NotFound(f"there is no {kind} {record_id}{which}")


def record_of(row: Row) -> Record:
    """From a row of `SELECT`."""
    _, kind, tenant, id, version, body, created_at, updated_at, archived_at = row[:9]
    created_by, ceiling = row[9:]
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
    )


def name_taken(kind: Kind, name: str | None) -> Conflict:
    """The error that says so."""
    return Conflict(
        f"there is {'an' if kind[0] in 'aeiou' else 'a'} {kind} named {name!r} already",
        hint="Use that one, archive it, or take another name.",
    )


def in_use(kind: Kind) -> Conflict:
    """The error that says so."""
    hint = "Delete its sessions first, or archive it."
    if kind == "workspace":
        hint = "Archive or delete its sessions first, or delete it with `force`."
    return Conflict(f"the {kind} is used by a session", hint=hint)


def check_version(record: Record, expected: int | None) -> None:
    """:raises Conflict: it is another one"""
    if expected is not None and record.version != expected:
        raise Conflict(f"the {record.kind} is at version {record.version}, not {expected}")


def stays(record: Record, body: dict[str, Any], ceiling: TrustLevel | None) -> bool:
    """Whether a change makes no new version: nothing is different, nor does anybody vouch for more trust."""
    if body != record.body:
        return False
    return record.ceiling is None or ceiling is None or reaches(record.ceiling, ceiling)


def listed(query: RecordQuery, beyond: int | None) -> tuple[str, list[Value]]:
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
    return f"{SELECT} WHERE {where.text} {order}", [*where.values, query.limit]
