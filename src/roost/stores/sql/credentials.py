"""Credentials of vaults in a SQL database: `SqlCredentials`, then what the writer does, then rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from roost.domain.events import Micros
from roost.domain.vault import MOST_CREDENTIALS, MOST_KEPT, Auth, VaultCredential, key_of
from roost.errors import Conflict, InvalidRequest, NotFound, QuotaExceeded
from roost.ports.catalog import Record
from roost.ports.credentials import CredentialQuery
from roost.stores.sql.batch import Needs, SqlTransaction
from roost.stores.sql.catalog import ArchiveRecord, DeleteRecord, RecordKey, newest
from roost.stores.sql.database import Rows, SqlReader, SqlWriter, rows_of
from roost.stores.sql.listing import Filter, position
from roost.stores.sql.rows import Row, encode

_SELECT: Final = """
SELECT id, tenant, vault, version, body, sealed, created_at, updated_at, archived_at FROM credentials
"""
_ONE: Final = f"{_SELECT} WHERE id = ? AND tenant = ? AND vault = ?"
_FIND: Final = f"{_SELECT} WHERE id = ?"

# Credentials of all tenants that have a secret.
_EVERY: Final = f"{_SELECT} WHERE id > ? AND sealed IS NOT NULL ORDER BY id LIMIT ?"

# Where a credential stands in its vault's listing; also one that was deleted since the last page was read.
_POSITION: Final = """
SELECT num FROM credentials WHERE tenant = ?1 AND id = ?2
UNION ALL SELECT num FROM graves WHERE kind = 'credential' AND tenant = ?1 AND id = ?2
"""

# How many credentials a vault has, all of them and those in use, and whether one in use has a key.
_COUNT: Final = """
SELECT count(*), coalesce(sum(CASE WHEN archived_at IS NULL THEN 1 ELSE 0 END), 0),
       coalesce(sum(CASE WHEN archived_at IS NULL AND unique_key = ? THEN 1 ELSE 0 END), 0)
FROM credentials WHERE vault = ?
"""

_ADD: Final = """
INSERT INTO credentials (id, tenant, vault, unique_key, version, body, sealed, created_at, updated_at)
VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?)
"""

_CHANGE: Final = """
UPDATE credentials SET version = ?, body = ?, sealed = ?, updated_at = ? WHERE id = ?
"""

_LEASED: Final = """
SELECT version, archived_at, lease_holder, lease_until FROM credentials WHERE id = ?
"""
_LEASE: Final = "UPDATE credentials SET lease_holder = ?, lease_until = ? WHERE id = ?"
_END_LEASE: Final = """
UPDATE credentials SET lease_holder = '', lease_until = 0 WHERE id = ? AND lease_holder = ?
"""

# Sealed anew, unless the secret was replaced or archived meanwhile.
_RESEAL: Final = "UPDATE credentials SET sealed = ? WHERE id = ? AND sealed = ? RETURNING 1"

# Archived without what is sealed: one credential, or all of a vault that are not yet.
_ARCHIVE: Final = (
    "UPDATE credentials SET sealed = NULL, archived_at = ?, updated_at = ?, version = version + 1"
)
_ARCHIVE_ONE: Final = f"{_ARCHIVE} WHERE id = ?"
_ARCHIVE_ALL: Final = f"{_ARCHIVE} WHERE vault = ? AND archived_at IS NULL RETURNING id"

_DELETE_ONE: Final = "DELETE FROM credentials WHERE id = ? RETURNING num"
_BURY: Final = "INSERT INTO graves (kind, num, tenant, id, swept) VALUES ('credential', ?, ?, ?, 1)"
_DELETE_ALL: Final = "DELETE FROM credentials WHERE vault = ? RETURNING id"


class SqlCredentials:
    """The `ports.credentials.Credentials` on an SQL database."""

    def __init__(self, writer: SqlWriter, reader: SqlReader) -> None:
        self._writer = writer
        self._reader = reader

    async def add(self, credential: VaultCredential) -> VaultCredential:
        return await self._writer.alone(AddCredential(credential))

    async def get(self, tenant: str, vault_id: str, credential_id: str) -> VaultCredential:
        return _only(
            await rows_of(self._reader, _ONE, credential_id, tenant, vault_id), credential_id
        )

    async def find(self, credential_id: str) -> VaultCredential:
        return _only(await rows_of(self._reader, _FIND, credential_id), credential_id)

    async def page(self, query: CredentialQuery) -> list[VaultCredential]:
        return await self._reader.read(lambda rows: _page(rows, query))

    async def active(self, tenant: str, vault_ids: Sequence[str]) -> list[VaultCredential]:
        if not vault_ids:
            return []
        where = Filter().equal("tenant", tenant).among("vault", vault_ids).absent("archived_at")
        statement = f"{_SELECT} WHERE {where.text} ORDER BY num"
        found = [
            _credential_of(row) for row in await rows_of(self._reader, statement, *where.values)
        ]
        return sorted(found, key=lambda each: vault_ids.index(each.vault_id))

    async def change(
        self,
        credential: VaultCredential,
        change: Callable[[VaultCredential, Micros], VaultCredential],
        *,
        expected: int | None = None,
        ends_lease: str | None = None,
    ) -> VaultCredential:
        return await self._writer.alone(ChangeCredential(credential, change, expected, ends_lease))

    async def lease(
        self, credential: VaultCredential, holder: str, seconds: float
    ) -> Micros | None:
        return await self._writer.alone(LeaseCredential(credential, holder, seconds))

    async def every(self, *, after: str | None = None, limit: int) -> list[VaultCredential]:
        rows = await rows_of(self._reader, _EVERY, after or "", limit)
        return [_credential_of(row) for row in rows]

    async def reseal(self, credential: VaultCredential, sealed: str) -> bool:
        return await self._writer.alone(ResealCredential(credential, sealed))

    async def archive(self, credential: VaultCredential) -> VaultCredential:
        return await self._writer.alone(ArchiveCredential(credential))

    async def delete(self, credential: VaultCredential) -> None:
        await self._writer.alone(DeleteCredential(credential))

    async def archive_vault(self, tenant: str, vault_id: str) -> Record:
        return await self._writer.alone(ArchiveVault(RecordKey("vault", tenant, vault_id)))

    async def delete_vault(self, tenant: str, vault_id: str) -> None:
        await self._writer.alone(DeleteVault(RecordKey("vault", tenant, vault_id)))


# What the writer does. Whoever locks a vault and its credentials locks the vault first.


class AddCredential(msgspec.Struct, frozen=True):
    """One more in a vault, which is locked meanwhile: nobody else adds one or archives it."""

    credential: VaultCredential
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> VaultCredential:
        new = self.credential
        _, vault = await newest(tx, RecordKey("vault", new.tenant, new.vault_id))
        if vault.archived_at is not None:
            raise InvalidRequest(f"vault {vault.id} is archived")
        key = key_of(new.auth)
        _check_room(key, (await tx.ask(_COUNT, key, new.vault_id))[0])
        who = (new.id, new.tenant, new.vault_id, key)
        await tx.ask(_ADD, *who, _body_of(new), new.sealed, tx.now, tx.now)
        tx.tell(new.tenant, "vault_credential.created", new.id, new.vault_id)
        return replace(new, version=1, created_at=tx.now, updated_at=tx.now)


class ChangeCredential(msgspec.Struct, frozen=True):
    """A new version, if the change makes one; with or without one, the end of a holder's lease."""

    credential: VaultCredential
    change: Callable[[VaultCredential, Micros], VaultCredential]
    expected: int | None
    ends_lease: str | None
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> VaultCredential:
        before = await _locked(tx, self.credential)
        if self.expected is not None and before.version != self.expected:
            raise Conflict(f"the credential is at version {before.version}, not {self.expected}")
        after = self.change(before, tx.now)
        if self.ends_lease is not None:
            await tx.ask(_END_LEASE, before.id, self.ends_lease)
        if after == before:
            return before
        after = replace(after, version=before.version + 1, updated_at=tx.now)
        values = (after.version, _body_of(after), after.sealed, tx.now, after.id)
        await tx.ask(_CHANGE, *values)
        if after.refresh_failed and not before.refresh_failed:
            tx.tell(after.tenant, "vault_credential.refresh_failed", after.id, after.vault_id)
        return after


class LeaseCredential(msgspec.Struct, frozen=True):
    """The right to make the next version, for a while."""

    credential: VaultCredential
    holder: str
    seconds: float
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Micros | None:
        found = await tx.ask_locked(_LEASED, self.credential.id)
        if not found:
            return None
        version, archived_at, holder, until = found[0]
        taken = holder not in ("", self.holder) and until > tx.now
        if version != self.credential.version or archived_at is not None or taken:
            return None
        until = tx.now + int(self.seconds * 1_000_000)
        await tx.ask(_LEASE, self.holder, until, self.credential.id)
        return until


class ResealCredential(msgspec.Struct, frozen=True):
    """The same secret, sealed with another key."""

    credential: VaultCredential
    sealed: str
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> bool:
        return bool(await tx.ask(_RESEAL, self.sealed, self.credential.id, self.credential.sealed))


class ArchiveCredential(msgspec.Struct, frozen=True):
    """Archived, if it is not yet, and nothing of its secrets stays."""

    credential: VaultCredential
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> VaultCredential:
        before = await _locked(tx, self.credential)
        if before.archived_at is not None:
            return before
        await tx.ask(_ARCHIVE_ONE, tx.now, tx.now, before.id)
        tx.tell(before.tenant, "vault_credential.archived", before.id, before.vault_id)
        return replace(
            before,
            sealed=None,
            version=before.version + 1,
            updated_at=tx.now,
            archived_at=tx.now,
        )


class DeleteCredential(msgspec.Struct, frozen=True):
    """Gone; a listing may still go on after it."""

    credential: VaultCredential
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> None:
        before = await _locked(tx, self.credential)
        [(num,)] = await tx.ask(_DELETE_ONE, before.id)
        await tx.ask(_BURY, num, before.tenant, before.id)
        tx.tell(before.tenant, "vault_credential.deleted", before.id, before.vault_id)


class ArchiveVault(msgspec.Struct, frozen=True):
    """The vault and its credentials, in one commit."""

    which: RecordKey
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Record:
        vault = await ArchiveRecord(self.which).on(tx)
        for (credential_id,) in await tx.ask(_ARCHIVE_ALL, tx.now, tx.now, vault.id):
            tx.tell(vault.tenant, "vault_credential.archived", credential_id, vault.id)
        return vault


class DeleteVault(msgspec.Struct, frozen=True):
    """The vault and its credentials, in one commit."""

    which: RecordKey
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> None:
        await DeleteRecord(self.which, force=False).on(tx)
        for (credential_id,) in await tx.ask(_DELETE_ALL, self.which.id):
            tx.tell(self.which.tenant, "vault_credential.deleted", credential_id, self.which.id)


async def _locked(tx: SqlTransaction, which: VaultCredential) -> VaultCredential:
    """The row as it is now, which nobody else changes from here on. A change is not before the last one."""
    found = await tx.ask_locked(_ONE, which.id, which.tenant, which.vault_id)
    credential = _only(found, which.id)
    tx.at_least(credential.updated_at)
    return credential


def _check_room(key: str, counts: Row) -> None:
    kept, used, same = counts
    if same:
        kind, _, what = key.partition(" ")
        words = {
            "mcp": f"for the MCP server {what}",
            "variable": f"named {what}",
            "model": "for a model",
        }
        raise Conflict(
            f"the vault has a credential {words[kind]} already",
            hint="Update that one, or archive it first.",
        )
    if used >= MOST_CREDENTIALS:
        raise InvalidRequest(
            f"a vault has at most {MOST_CREDENTIALS} credentials that are not archived",
            hint="Archive one that is no longer needed, or use another vault.",
        )
    if kept >= MOST_KEPT:
        raise QuotaExceeded(
            f"a vault has at most {MOST_KEPT} credentials, archived ones included",
            hint="Delete archived ones.",
        )


# Rows


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """What of a credential no statement looks at."""

    auth: Auth
    display_name: str | None = None
    metadata: dict[str, str] = {}
    refresh_failed: bool = False


_decode_body = msgspec.json.Decoder(_Body).decode


def _body_of(credential: VaultCredential) -> bytes:
    return encode(
        _Body(
            auth=credential.auth,
            display_name=credential.display_name,
            metadata=credential.metadata,
            refresh_failed=credential.refresh_failed,
        )
    )


def _credential_of(row: Row) -> VaultCredential:
    """From a row of `_SELECT`."""
    id, tenant, vault_id, version, body, sealed, created_at, updated_at, archived_at = row
    rest = _decode_body(body)
    return VaultCredential(
        id=id,
        tenant=tenant,
        vault_id=vault_id,
        auth=rest.auth,
        display_name=rest.display_name,
        metadata=rest.metadata,
        refresh_failed=rest.refresh_failed,
        sealed=sealed,
        version=version,
        created_at=created_at,
        updated_at=updated_at,
        archived_at=archived_at,
    )


def _only(rows: Sequence[Row], credential_id: str) -> VaultCredential:
    if not rows:
        raise NotFound(f"credential {credential_id} was not found")
    return _credential_of(rows[0])


async def _page(rows: Rows, query: CredentialQuery) -> list[VaultCredential]:
    beyond = None
    if query.after is not None:
        found = await rows.fetch(_POSITION, query.tenant, query.after)
        beyond = position(found, "credential", query.after)
    where = Filter().equal("tenant", query.tenant).equal("vault", query.vault_id)
    if not query.include_archived:
        where.absent("archived_at")
    where.beyond("num", beyond, descending=True)
    statement = f"{_SELECT} WHERE {where.text} ORDER BY num DESC LIMIT ?"
    return [_credential_of(row) for row in await rows.fetch(statement, *where.values, query.limit)]
