"""The LLM vault of a session: chosen when the session is made, and asked for its key at each request.

Which vault that is, is written down with the session. If the vault is archived or deleted, or loses its key, the
session's requests fail until it has one again: they never go on with the operator's key.
"""

from __future__ import annotations

from collections.abc import Mapping

from roost.core.vaults.secrets import VaultSecrets
from roost.domain.llm_vault import LlmVault, is_for_models, llm_vault
from roost.domain.session import Session
from roost.domain.vault import VaultCredential
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
    try:
        record = await catalog.get("vault", session.tenant, vault_id)
    except NotFound:
        raise ModelKeyMissing(f"the session's LLM vault {vault_id} was deleted") from None
    said = llm_vault(record.body["metadata"])
    if (url := said.url(api)) is None:
        raise ModelKeyMissing(f"the session's LLM vault {vault_id} has no base URL for {api!r}")
    key = _VaultKey(secrets, session, vault_id)
    credential = Credential(key.read, said.put(api))
    return Origin(
        url=url, protocol=api, credential=credential, restricted=said.base_url is not None
    )


class _VaultKey:
    """The key in one session's LLM vault, as it is when it is asked for."""

    def __init__(self, secrets: VaultSecrets, session: Session, vault_id: str) -> None:
        self._secrets = secrets
        self._session = session
        self._vault_id = vault_id
        self._known: VaultCredential | None = None

    async def read(self) -> str:
        """:raises ModelKeyMissing: there is none any more :raises CannotUnseal:"""
        if self._known is not None:
            try:
                return (await self._secrets.opened(self._known.id)).value
            except NotFound:  # archived; there may be another one by now
                self._known = None
        found = await self._secrets.model(self._session)
        if found is None or found.vault_id != self._vault_id:
            raise ModelKeyMissing(f"the session's LLM vault {self._vault_id} has no key")
        opened = await self._secrets.opened(found.id)
        self._known = found
        return opened.value
