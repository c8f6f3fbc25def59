"""The only door by which a secret of a vault leaves: for a request that leaves the server, and for its renewal.

Rows are read when a secret is used, so that one that is replaced or archived counts within seconds also for a
session that runs. Of several vaults of a session, the first that has a fitting credential counts.
"""

from __future__ import annotations

import hmac
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from roost.domain.session import Session
from roost.domain.vault import (
    CredentialSecrets,
    EnvironmentVariable,
    OpenedSecret,
    VaultCredential,
    key_of,
    normalised,
    use_of,
)
from roost.errors import CannotUnseal, NotFound
from roost.ports.credentials import Credentials
from roost.ports.seal import Seal

KEPT_SECONDS: Final = 5.0
"""How long an opened secret is used without looking at its row again: as long as it takes until one that was
replaced or archived is out of use.
"""

_MOST_KEPT: Final = 1024
_PLACEHOLDER_DIGITS: Final = 32

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CredentialSecrets).decode


class VaultSecrets:
    """The credentials of sessions, and their secrets.

    `placeholder_key` is the same on all servers of a database, and does not change with the master key.
    """

    def __init__(self, credentials: Credentials, seal: Seal, placeholder_key: bytes) -> None:
        self._credentials = credentials
        self._seal = seal
        self._placeholder_key = placeholder_key
        self._kept: OrderedDict[str, tuple[float, OpenedSecret]] = OrderedDict()

    async def mcp(self, session: Session, url: str) -> VaultCredential | None:
        """The credential for an MCP server; None: the session goes there without."""
        wanted = f"mcp {normalised(url)}"
        return _first(each for each in await self._of(session) if key_of(each.auth) == wanted)

    async def variables(self, session: Session) -> list[VaultCredential]:
        """Those that are variables inside, one for each name."""
        found: dict[str, VaultCredential] = {}
        for each in await self._of(session):
            if isinstance(each.auth, EnvironmentVariable):
                found.setdefault(each.auth.secret_name, each)
        return list(found.values())

    async def model(self, session: Session) -> VaultCredential | None:
        """The key of a model's API, of the session's LLM vault and of no other; None: there is none."""
        vault_id = session.spec.model_vault
        own = await self._credentials.active(session.tenant, [vault_id] if vault_id else [])
        return _first(each for each in own if use_of(each.auth) == "model")

    async def opened(self, credential_id: str, version: int | None = None) -> OpenedSecret:
        """The secret of a credential, at most `KEPT_SECONDS` old. `version`: of this one or a later one.

        :raises NotFound: it is archived or deleted :raises CannotUnseal:
        """
        now = time.monotonic()
        since, kept = self._kept.get(credential_id, (0.0, None))
        if kept and now - since < KEPT_SECONDS and kept.version >= (version or 0):
            return kept
        self._kept.pop(credential_id, None)  # before the first await: nobody gets it if that fails
        credential = await self._credentials.find(credential_id)
        secret = OpenedSecret(opened_parts(self._seal, credential).value, credential.version)
        self._kept[credential_id] = now, secret
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return secret

    async def found(self, credential_id: str) -> VaultCredential:
        """The credential as it is now, without its secret being opened. :raises NotFound:"""
        return await self._credentials.find(credential_id)

    def placeholder(self, session_id: str, name: str) -> str:
        """What a session's sandbox has in a variable instead of its secret.

        It is always the same, also on other nodes, and after the secret or the master key was replaced:
        processes and files keep it. Nobody can guess that of another session.
        """
        digest = hmac.digest(self._placeholder_key, f"{session_id} {name}".encode(), "sha256")
        return f"roost_{digest.hex()[:_PLACEHOLDER_DIGITS]}"

    async def _of(self, session: Session) -> list[VaultCredential]:
        """Those of the session's vaults that are not archived, of the first vault first."""
        return await self._credentials.active(session.tenant, session.spec.vault_ids)


def sealed(seal: Seal, credential: VaultCredential, secrets: CredentialSecrets) -> str:
    """What is kept of a credential's secrets. :raises CannotSeal:"""
    return seal.seal(_encode(secrets).decode(), credential.about)


def opened_parts(seal: Seal, credential: VaultCredential) -> CredentialSecrets:
    """All secrets of a credential: for its renewal, and where a part of them is replaced.

    :raises NotFound: it is archived :raises CannotUnseal:
    """
    if credential.sealed is None:
        raise NotFound(f"credential {credential.id} is archived")
    try:
        return _decode(seal.open(credential.sealed, credential.about))
    except CannotUnseal as closed:
        raise CannotUnseal(
            f"the secret of the credential {credential.id} cannot be read: {closed.message}"
        ) from None


def _first(credentials: Iterable[VaultCredential]) -> VaultCredential | None:
    return next(iter(credentials), None)
