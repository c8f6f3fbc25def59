"""API keys: made once, shown once, known afterwards by their digest only."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

from roost.domain.session import TrustLevel
from roost.errors import Unauthenticated
from roost.ids import mint
from roost.ports.keys import Key, Keys, Role, Sees, UsageLimits

_CACHED_SECONDS = 5.0  # how late another node's revocation is noticed; this node's is at once
_MOST_CACHED = 10_000
_Name = TypeVar("_Name")


class Keyring:
    """Makes keys and recognises them."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._known: OrderedDict[bytes, tuple[float, Key]] = OrderedDict()
        self._by_id: OrderedDict[str, tuple[float, Key]] = OrderedDict()
        # Those revoked here: a look-up under way must not bring one back.
        self._revoked: OrderedDict[str, None] = OrderedDict()
        self._changes = 0  # nor what a key could do before it was changed

    @staticmethod
    def mint_secret() -> str:
        """256 random bits, recognisable as ours."""
        return f"roost_{secrets.token_urlsafe(32)}"

    async def create(
        self,
        *,
        tenant: str,
        name: str,
        role: Role = "user",
        trust_ceiling: TrustLevel = "sandboxed",
        limits: UsageLimits | None = None,
        sees: Sees | None = None,
        owner: str = "",
        secret: str | None = None,
    ) -> tuple[Key, str]:
        """A new key and its secret, which is not kept. `secret` gives one instead of a random one.

        A user's key sees what it has made itself, unless `sees` says otherwise. `owner`: whom it acts for.
        """
        secret = secret or self.mint_secret()
        key = Key(
            id=mint("apikey"),
            tenant=tenant,
            name=name,
            role=role,
            digest=digest_of(secret),
            hint=_hint(secret),
            created_at=0,
            trust_ceiling=trust_ceiling,
            limits=limits or UsageLimits(),
            sees=sees or ("tenant" if role == "admin" else "own"),
            owner=owner,
        )
        return await self._keys.add(key), secret

    def known(self, secret: bytes) -> Key | None:
        """Whose key this is, if it was recognised within the last seconds: most are."""
        checked, key = self._known.get(_digest(secret), (0.0, None))
        return key if time.monotonic() - checked <= _CACHED_SECONDS else None

    async def recognise(self, secret: str) -> Key:
        """Whose key this is. :raises Unauthenticated: nobody's, or revoked"""
        if (known := self.known(secret.encode())) is not None:
            return known
        digest, changes = digest_of(secret), self._changes
        key = await self._keys.find(digest)
        if key is None or key.revoked_at is not None or key.id in self._revoked:
            self._known.pop(digest, None)
            raise Unauthenticated()
        if changes == self._changes:
            _remember(self._known, digest, key)
        return key

    async def named(self, tenant: str, key_id: str) -> Key:
        """The tenant's key with this id. :raises Unauthenticated: there is none, or it is revoked"""
        checked, key = self._by_id.get(key_id, (0.0, None))
        if key is None or time.monotonic() - checked > _CACHED_SECONDS:
            changes = self._changes
            found = {key.id: key for key in await self._keys.all(tenant)}
            key = found.get(key_id)
            if key is None or key.revoked_at is not None or key.id in self._revoked:
                self._by_id.pop(key_id, None)
                raise Unauthenticated()
            if changes == self._changes:
                _remember(self._by_id, key_id, key)
        if key.tenant != tenant:
            raise Unauthenticated()
        return key

    async def acting_for(self, tenant: str, key_id: str, principal: str) -> Key:
        """A key to act with when nobody calls: this one, or if it was replaced, the newest of the same principal.

        :raises Unauthenticated: there is none that is not revoked
        """
        try:
            return await self.named(tenant, key_id)
        except Unauthenticated:
            keys = await self._keys.all(tenant)
        valid = [key for key in keys if key.revoked_at is None and key.id not in self._revoked]
        for key in reversed(valid):
            if key.principal == principal:
                return key
        raise Unauthenticated(
            "every API key that it could act with is revoked",
            hint="Update it with a key that is valid.",
        )

    def doubt(self) -> None:
        """Somebody was told elsewhere that a key is no more: ask again for each."""
        self._changes += 1
        self._known.clear()
        self._by_id.clear()

    async def all(self) -> list[Key]:
        """Every key, revoked ones too, oldest first."""
        return await self._keys.all()

    async def change(self, key_id: str, fields: Mapping[str, Any]) -> Key:
        """What it may do from now on; other nodes notice within seconds. :raises NotFound:"""
        key = await self._keys.change(key_id, fields)
        self._changes += 1
        self._known.pop(key.digest, None)
        self._by_id.pop(key.id, None)
        return key

    async def revoke(self, key_id: str) -> Key:
        """From now on it opens nothing. :raises NotFound: no such key :raises LastAdministrator:"""
        key = await self._keys.revoke(key_id)
        self._revoked[key.id] = None
        if len(self._revoked) > _MOST_CACHED:
            self._revoked.popitem(last=False)  # its look-ups are long over
        self._known.pop(key.digest, None)
        self._by_id.pop(key.id, None)
        return key


def _remember(known: OrderedDict[_Name, tuple[float, Key]], name: _Name, key: Key) -> None:
    known[name] = time.monotonic(), key
    if len(known) > _MOST_CACHED:
        known.popitem(last=False)


def _hint(secret: str) -> str:
    """Enough to tell keys apart. Of a short secret, which somebody chose, that would be too much."""
    return f"{secret[:9]}…{secret[-4:]}" if len(secret) >= 32 else "…"


def digest_of(secret: str) -> bytes:
    """What is kept of a secret."""
    return _digest(secret.encode())


def _digest(secret: bytes) -> bytes:
    # A random secret of 256 bits needs no salt and no slow hash; looking it up by digest means
    # that no comparison's timing depends on the secret.
    return hashlib.sha256(secret).digest()
