"""The LLM vault of a session: chosen when the session is made, and asked for its key at each request.

Which vault that is, is written down with the session. If the vault is archived or deleted, or loses its key, the
session's requests fail until it has one again: they never go on with the operator's key.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from roost.core.vaults.secrets import VaultSecrets
from roost.domain.llm_vault import KeyHeader, LlmVault, is_for_models, llm_vault
from roost.domain.session import Session
from roost.domain.vault import OpenedSecret
from roost.errors import InvalidRequest, ModelKeyMissing, NotFound
from roost.ports.catalog import Catalog, Record
from roost.ports.egress import Credential, Origin


def llm_vault_among(vaults: Mapping[str, Record]) -> tuple[str, LlmVault] | tuple[None, None]:
    """The id of a new session's LLM vault, and what it says. `vaults` are the session's, by the field that names
    each.

    :raises InvalidRequest: there are two
    """
    found = [
        (field, record)
        for field, record in vaults.items()
        if is_for_models(record.body["metadata"])
    ]
    if len({record.id for _, record in found}) > 1:
        raise InvalidRequest(f"{found[1][0]}: a session has one LLM vault, and this is the second")
    if not found:
        return None, None
    _, record = found[0]
    return record.id, llm_vault(record.body["metadata"])


async def model_origin(
    catalog: Catalog, secrets: VaultSecrets, session: Session, api: str
) -> Origin | None:
    """Where the session's requests to the model go, with the key of its vault; None: it has no LLM vault.

    :raises ModelKeyMissing: the vault is gone, or says nothing that can be used
    """
    vault_id = session.spec.model_vault
    if vault_id is None:
        return None
    vault = _SessionVault(catalog, session.tenant, vault_id, api)
    account = await vault.account()
    key = _VaultKey(secrets, session, vault, account)
    return Origin(
        url=account.url,
        protocol=api,
        credential=Credential(key.read, account.put),
        restricted=account.is_named,
    )


class _Account(msgspec.Struct, frozen=True):
    """Where a vault's key is sent, and how. `is_named`: the address is a client's word."""

    url: str
    put: KeyHeader
    is_named: bool


class _SessionVault:
    """The LLM vault of one session, for an agent that speaks one API."""

    def __init__(self, catalog: Catalog, tenant: str, vault_id: str, api: str) -> None:
        self.id = vault_id
        self._catalog = catalog
        self._tenant = tenant
        self._api = api

    async def account(self) -> _Account:
        """What it says now. :raises ModelKeyMissing: it is gone, or says nothing that can be used"""
        try:
            record = await self._catalog.get("vault", self._tenant, self.id)
        except NotFound:
            raise ModelKeyMissing(f"the session's LLM vault {self.id} was deleted") from None
        said = llm_vault(record.body["metadata"])
        if (url := said.url(self._api)) is None:
            raise ModelKeyMissing(
                f"the session's LLM vault {self.id} has no base URL for {self._api!r}"
            )
        return _Account(url, said.put(self._api), is_named=said.base_url is not None)


class _VaultKey:
    """The key in one session's LLM vault, as it is when it is asked for.

    Where it is sent is fixed when the sandbox is opened, so a key is given out only if its vault still says that:
    one that was put in for another address is not for this one.
    """

    def __init__(
        self, secrets: VaultSecrets, session: Session, vault: _SessionVault, account: _Account
    ) -> None:
        self._secrets = secrets
        self._session = session
        self._vault = vault
        self._account = account
        self._known: str | None = None  # the id of the credential that was used last
        self._checked: tuple[str, int] | None = None  # the key that is known to be for the address

    async def read(self) -> str:
        """:raises ModelKeyMissing: there is none any more, or it is for another address :raises CannotUnseal:"""
        credential_id, opened = await self._opened()
        if (credential_id, opened.version) != self._checked:
            # After the key was read: an address that was changed before the key is seen here.
            await self._check_address()
            self._checked = credential_id, opened.version
        return opened.value

    async def _opened(self) -> tuple[str, OpenedSecret]:
        if self._known is not None:
            try:
                return self._known, await self._secrets.opened(self._known)
            except NotFound:  # archived; there may be another one by now
                self._known = None
        found = await self._secrets.model(self._session)
        if found is None:
            raise ModelKeyMissing(f"the session's LLM vault {self._vault.id} has no key")
        opened = await self._secrets.opened(found.id)
        self._known = found.id
        return found.id, opened

    async def _check_address(self) -> None:
        if await self._vault.account() != self._account:
            raise ModelKeyMissing(
                f"the session's LLM vault {self._vault.id} was moved: its key is used from the session's next "
                "sandbox on",
                hint="`roost.base_url` or `roost.key_header` has changed since this sandbox was opened.",
            )
