"""API keys: who may call, for which tenant, how often, and up to which trust level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from roost.domain.events import Micros
from roost.domain.session import TrustLevel

Role = Literal["admin", "user"]
Sees = Literal["own", "tenant"]


class UsageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a key may use. None: the server's default; 0: no limit."""

    writes_per_minute: int | None = None
    reads_per_minute: int | None = None
    max_sessions: int | None = None


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key, without its secret: only a hash of that is kept.

    `sees`: what of its tenant's, unless it is an administrator's: what it has made itself, or all. Keys from
    before this was noted see all. `owner` is whom it acts for, if that is not itself: a key that replaces
    another one acts for whom that did.
    """

    id: str
    tenant: str
    name: str
    role: Role
    digest: bytes
    hint: str
    created_at: Micros
    trust_ceiling: TrustLevel = "sandboxed"
    sees: Sees = "tenant"
    owner: str = ""
    limits: UsageLimits = UsageLimits()
    revoked_at: Micros | None = None

    @property
    def principal(self) -> str:
        """Whose is what it makes: stays the same when a key is replaced."""
        return self.owner or self.id


class Keys(Protocol):
    """All keys, of all tenants."""

    async def add(self, key: Key) -> Key:
        """Keep a new key; the store sets `created_at`. :raises Conflict: that id exists"""
        ...

    async def find(self, digest: bytes) -> Key | None:
        """The key with this digest, revoked or not. Called for each request whose key is not cached."""
        ...

    async def all(self, tenant: str | None = None) -> list[Key]:
        """All keys, or one tenant's, oldest first."""
        ...

    async def change(self, key_id: str, fields: Mapping[str, Any]) -> Key:
        """With other `name`, `trust_ceiling`, `sees` or `limits`. :raises NotFound: none, or it is revoked"""
        ...

    async def revoke(self, key_id: str) -> Key:
        """From now on it opens nothing. Again: the same answer.

        Of two revocations at once that would leave no administrator's key, one is refused.

        :raises NotFound:
        :raises LastAdministrator: no other administrator's key opens anything
        """
        ...
