"""Vaults and their credentials: created, listed, changed, archived, deleted. No answer has a secret in it.

A secret comes in with a request, is sealed before it is written, and leaves by `core/vaults/secrets.py` only.
Every operation is one commit: a crash leaves the state before it or after it, and never a vault that is archived
with credentials that are not, or a credential that is archived and still has its secret.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from roost.core.access.permissions import check_owner, may_see
from roost.core.vaults.secrets import opened_parts, sealed
from roost.domain import vault
from roost.domain.agent import merged
from roost.domain.events import Micros
from roost.domain.llm_vault import check_not_moved, is_for_models
from roost.domain.vault import VaultCredential, changed_auth, new_auth, use_of
from roost.errors import InvalidRequest, NotFound
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.credentials import CredentialQuery, Credentials
from roost.ports.keys import Key
from roost.ports.seal import Seal


class Vaults:
    """The vaults of all tenants."""

    def __init__(self, catalog: Catalog, credentials: Credentials, seal: Seal) -> None:
        self._catalog = catalog
        self._credentials = credentials
        self._seal = seal

    async def create(self, caller: Key, params: Mapping[str, Any]) -> Record:
        """A new vault, the caller's, without credentials. :raises InvalidRequest: naming the field"""
        return await self._catalog.add(
            "vault",
            caller.tenant,
            mint("vlt"),
            vault.created(params),
            unique_name=False,
            created_by=caller.principal,
            ceiling=caller.trust_ceiling,
        )

    async def seen(self, caller: Key, vault_id: str) -> Record:
        """A vault that the caller may see, and use. :raises NotFound: absent, or not the caller's to see"""
        try:
            record = await self._catalog.get("vault", caller.tenant, vault_id)
        except NotFound:
            raise _absent(vault_id) from None
        if not may_see(caller, record.created_by):
            raise _absent(vault_id)
        return record

    async def page(self, caller: Key, query: RecordQuery) -> list[Record]:
        """A page of those that the caller may see."""
        own = None if may_see(caller, "") else caller.principal
        return await self._catalog.page(replace(query, created_by=own))

    async def update(self, caller: Key, vault_id: str, params: Mapping[str, Any]) -> Record:
        """Change what is given. Where the key in it is sent stays, as long as there is one: whoever may change a vault
        may use its secrets, and not see them.

        :raises NotFound: :raises NotTheOwner: :raises InvalidRequest: it is archived, or naming the field
        """
        await self._owned(caller, vault_id)
        in_use = await self._credentials.active(caller.tenant, [vault_id])
        has_key = any(use_of(each.auth) == "model" for each in in_use)

        def change(record: Record) -> dict[str, Any]:
            _refuse_archived(record)
            after = vault.updated(record.body, params)
            if has_key:
                check_not_moved(record.body["metadata"], after["metadata"])
            return after

        return await self._catalog.change(
            "vault", caller.tenant, vault_id, change, ceiling=caller.trust_ceiling
        )

    async def archive(self, caller: Key, vault_id: str) -> Record:
        """It and its credentials, whose secrets are gone; one way. :raises NotFound: :raises NotTheOwner:"""
        await self._owned(caller, vault_id)
        return await self._credentials.archive_vault(caller.tenant, vault_id)

    async def delete(self, caller: Key, vault_id: str) -> None:
        """It and its credentials; sessions that have it go on without. :raises NotFound: :raises NotTheOwner:"""
        await self._owned(caller, vault_id)
        await self._credentials.delete_vault(caller.tenant, vault_id)

    async def add_credential(
        self, caller: Key, vault_id: str, params: Mapping[str, Any]
    ) -> VaultCredential:
        """A credential more.

        :raises NotFound: :raises NotTheOwner: :raises InvalidRequest: naming the field, or it is archived or full
        :raises Conflict: one in use has the same MCP server or name
        :raises CannotSeal: this server has no key for it
        """
        record = await self._owned(caller, vault_id)
        for_models = is_for_models(record.body["metadata"])
        auth, secrets = new_auth(params["auth"], _now(), for_models=for_models)
        new = VaultCredential(
            id=mint("vcrd"),
            tenant=caller.tenant,
            vault_id=vault_id,
            auth=auth,
            display_name=params.get("display_name"),
            metadata=dict(params.get("metadata") or {}),
        )
        new = replace(new, sealed=sealed(self._seal, new, secrets))
        return await self._credentials.add(new)

    async def credential(self, caller: Key, vault_id: str, credential_id: str) -> VaultCredential:
        """One of a vault that the caller may see. :raises NotFound:"""
        await self.seen(caller, vault_id)
        return await self._credentials.get(caller.tenant, vault_id, credential_id)

    async def credentials(self, caller: Key, query: CredentialQuery) -> list[VaultCredential]:
        """A page of those of a vault that the caller may see. :raises NotFound:"""
        await self.seen(caller, query.vault_id)
        return await self._credentials.page(query)

    async def update_credential(
        self, caller: Key, vault_id: str, credential_id: str, params: Mapping[str, Any]
    ) -> VaultCredential:
        """Change what is given; sessions that run use the new secret from their next request on.

        :raises NotFound: :raises NotTheOwner: :raises InvalidRequest: it is archived, or naming the field
        :raises CannotUnseal: only a part of its secrets is replaced, and the others cannot be read
        """
        before = await self.owned_credential(caller, vault_id, credential_id)

        def change(now: VaultCredential, moment: Micros) -> VaultCredential:
            if now.archived_at is not None:
                raise InvalidRequest(f"credential {credential_id} is archived")
            after = replace(now, metadata=merged(now.metadata, params.get("metadata")))
            if "display_name" in params:
                after = replace(after, display_name=params["display_name"])
            if "auth" not in params:
                return after
            parts = opened_parts(self._seal, now)
            auth, secrets = changed_auth(now.auth, parts, params["auth"], moment)
            if secrets != parts:  # sealing the same again would look like another secret
                after = replace(after, sealed=sealed(self._seal, now, secrets))
            return replace(after, auth=auth, refresh_failed=False)

        return await self._credentials.change(before, change)

    async def archive_credential(
        self, caller: Key, vault_id: str, credential_id: str
    ) -> VaultCredential:
        """No session has it any more, and its secret is gone; one way. :raises NotFound: :raises NotTheOwner:"""
        return await self._credentials.archive(
            await self.owned_credential(caller, vault_id, credential_id)
        )

    async def delete_credential(self, caller: Key, vault_id: str, credential_id: str) -> None:
        """Gone. :raises NotFound: :raises NotTheOwner:"""
        await self._credentials.delete(await self.owned_credential(caller, vault_id, credential_id))

    async def given(self, caller: Key, vault_ids: Sequence[str]) -> dict[str, Record]:
        """The vaults that a new session is to have, by the field that names each.

        :raises NotFound: :raises InvalidRequest: naming the field
        """
        found = {}
        for i, vault_id in enumerate(vault_ids):
            record = found[f"vault_ids.{i}"] = await self.seen(caller, vault_id)
            if record.archived_at is not None:
                raise InvalidRequest(f"vault_ids.{i}: vault {vault_id} is archived")
        return found

    async def kept(self, caller: Key, vault_ids: Sequence[str]) -> list[str]:
        """Of another session's vaults, those that are there for the caller."""
        found = []
        for vault_id in vault_ids:
            with suppress(NotFound):
                found.append((await self.seen(caller, vault_id)).id)
        return found

    async def _owned(self, caller: Key, vault_id: str) -> Record:
        record = await self.seen(caller, vault_id)
        check_owner(caller, record)
        return record

    async def owned_credential(
        self, caller: Key, vault_id: str, credential_id: str
    ) -> VaultCredential:
        """A credential that the caller may change. :raises NotFound: :raises NotTheOwner:"""
        await self._owned(caller, vault_id)
        return await self._credentials.get(caller.tenant, vault_id, credential_id)


def _absent(vault_id: str) -> NotFound:
    return NotFound(f"vault {vault_id} was not found")


def _refuse_archived(record: Record) -> None:
    if record.archived_at is not None:
        raise InvalidRequest(f"vault {record.id} is archived")


def _now() -> Micros:
    return time.time_ns() // 1000
