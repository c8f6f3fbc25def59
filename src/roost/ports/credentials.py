"""The credentials of vaults, with their sealed secrets. Vaults themselves are records of the catalog.

They are rows of their own and no records: a record keeps its old versions, and of a secret that was replaced
or archived nothing may stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from roost.domain.events import Micros
from roost.domain.vault import VaultCredential
from roost.ports.catalog import Record


class CredentialQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which credentials of a vault a listing shows, newest first; `after` is the id of the last one seen."""

    tenant: str
    vault_id: str
    include_archived: bool = False
    after: str | None = None
    limit: int = 20


class Credentials(Protocol):
    """The credentials of all vaults."""

    async def add(self, credential: VaultCredential) -> VaultCredential:
        """A new one at version 1, created now. Called when its secrets are sealed.

        :raises NotFound: the vault :raises InvalidRequest: the vault is archived, or is full
        :raises Conflict: one that is not archived has its `key_of`
        :raises QuotaExceeded: there are `MOST_KEPT` together with the archived ones
        """
        ...

    async def get(self, tenant: str, vault_id: str, credential_id: str) -> VaultCredential:
        """The credential of that id, if it is the vault's.

        :raises NotFound: absent, or another vault's or tenant's
        """
        ...

    async def find(self, credential_id: str) -> VaultCredential:
        """For the server itself, when a secret is needed. :raises NotFound:"""
        ...

    async def page(self, query: CredentialQuery) -> list[VaultCredential]:
        """A page of a vault's credentials. :raises InvalidRequest: there never was an `after`"""
        ...

    async def active(self, tenant: str, vault_ids: Sequence[str]) -> list[VaultCredential]:
        """All credentials of these vaults that are not archived: those of the first vault first."""
        ...

    async def change(
        self,
        credential: VaultCredential,
        change: Callable[[VaultCredential, Micros], VaultCredential],
        *,
        expected: int | None = None,
        ends_lease: str | None = None,
    ) -> VaultCredential:
        """Apply `change` to the row as it is now, at this moment, in one transaction; a new version if it differs.

        A lease goes on: whoever has it may have sent the refresh token already, and nobody else may send that
        again. Only the holder's own change, which names it in `ends_lease`, ends it in the same commit.

        :raises NotFound: :raises Conflict: the version is not `expected`; and whatever `change` raises
        """
        ...

    async def lease(
        self, credential: VaultCredential, holder: str, seconds: float
    ) -> Micros | None:
        """The right to renew this version of it, until the moment that is returned; None: somebody else has it,
        or it is at another version, or archived. The holder itself may ask again.
        """
        ...

    async def every(self, *, after: str | None = None, limit: int) -> list[VaultCredential]:
        """Credentials of all tenants that have a secret, those with the lowest ids first, above `after`.

        For the server itself, when secrets are sealed with another key.
        """
        ...

    async def reseal(self, credential: VaultCredential, sealed: str) -> bool:
        """Put another sealed text in the place of the one that was read; False: it is another one by now. It
        is the same secret: its version stays.
        """
        ...

    async def archive(self, credential: VaultCredential) -> VaultCredential:
        """One way, and the sealed secrets go in the same commit. Again: the same answer. :raises NotFound:"""
        ...

    async def delete(self, credential: VaultCredential) -> None:
        """Remove a credential with its secrets. :raises NotFound:"""
        ...

    async def archive_vault(self, tenant: str, vault_id: str) -> Record:
        """Archive a vault and its credentials, whose sealed secrets go, in one commit. :raises NotFound:"""
        ...

    async def delete_vault(self, tenant: str, vault_id: str) -> None:
        """Remove a vault and its credentials in one commit. :raises NotFound:"""
        ...
