"""Environment keys: what the workers of one self-hosted environment are known by, and what they may do with it.

Each is a record of its own: a hash of its secret, and the environment it is for.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from roost.core.access.keys import digest_of
from roost.errors import NotFound, QuotaExceeded, Unauthenticated
from roost.ids import mint
from roost.ports.catalog import SYSTEM_TENANT, Catalog, Record, RecordQuery
from roost.ports.keys import Key, UsageLimits

PREFIX: Final = "roost_env_"
"""What the secret of an environment key begins with."""

KIND: Final = "environment_key"
_CACHED_SECONDS: Final = (
    5.0  # how late another node's revocation is noticed; this node's is at once
)
_MOST_CACHED: Final = 10_000
_MOST: Final = 100  # of one environment


class EnvironmentKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    environment_id: str
    tenant: str
    name: str
    digest: str
    created_by: str
    created_at: int

    def caller(self) -> Key:
        """It as the one who calls: what it may do is limited elsewhere."""
        return Key(
            id=self.id,
            tenant=self.tenant,
            name=self.name,
            role="user",
            digest=b"",
            hint="",
            created_at=self.created_at,
            sees="tenant",
            owner=self.id,
            limits=UsageLimits(writes_per_minute=0, reads_per_minute=0),
        )


class EnvironmentKeys:
    """Makes keys for workers, recognises them, and takes them back."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: OrderedDict[str, tuple[float, EnvironmentKey]] = OrderedDict()
        self._revoked: OrderedDict[str, None] = OrderedDict()  # here: not to be brought back

    async def create(
        self, caller: Key, environment_id: str, name: str
    ) -> tuple[EnvironmentKey, str]:
        """A new key of an environment, and its secret, which is not kept."""
        if len(await self.of(environment_id)) >= _MOST:
            raise QuotaExceeded(
                f"the environment has {_MOST} keys already", hint="Revoke one that is not used."
            )
        secret = secrets.token_urlsafe(32)
        body = {
            "name": environment_id,  # what they are found by
            "called": name,
            "tenant": caller.tenant,
            "digest": digest_of(secret).hex(),
        }
        made = await self._catalog.add(
            KIND,
            SYSTEM_TENANT,
            mint("envkey"),
            body,
            unique_name=False,
            created_by=caller.principal,
        )
        return _key(made), f"{PREFIX}{made.id}.{secret}"

    async def of(self, environment_id: str) -> list[EnvironmentKey]:
        """The keys of an environment, newest first."""
        query = RecordQuery(kind=KIND, tenant=SYSTEM_TENANT, name=environment_id, limit=_MOST)
        return [_key(record) for record in await self._catalog.page(query)]

    async def recognise(self, secret: str) -> EnvironmentKey:
        """Whose key this is. :raises Unauthenticated: nobody's, or it was revoked"""
        key_id, _, own = secret.removeprefix(PREFIX).partition(".")
        key = await self.named(key_id)
        if not hmac.compare_digest(digest_of(own).hex(), key.digest):
            raise Unauthenticated("The environment key is not valid.")
        return key

    async def named(self, key_id: str) -> EnvironmentKey:
        """The key with this id. :raises Unauthenticated: there is none, or it was revoked"""
        checked, key = self._known.get(key_id, (0.0, None))
        if key is None or time.monotonic() - checked > _CACHED_SECONDS:
            try:
                key = _key(await self._catalog.get(KIND, SYSTEM_TENANT, key_id))
            except NotFound:
                self._known.pop(key_id, None)
                raise _over() from None
            self._known[key_id] = time.monotonic(), key
            if len(self._known) > _MOST_CACHED:
                self._known.popitem(last=False)
        if key_id in self._revoked:
            raise _over()
        return key

    async def revoke(self, environment_id: str, key_id: str) -> EnvironmentKey:
        """From now on it opens nothing. :raises NotFound: the environment has no such key"""
        for key in await self.of(environment_id):
            if key.id == key_id:
                self._revoked[key_id] = None
                if len(self._revoked) > _MOST_CACHED:
                    self._revoked.popitem(last=False)
                self._known.pop(key_id, None)
                await self._catalog.delete(KIND, SYSTEM_TENANT, key_id)
                return key
        raise NotFound(f"the environment has no key {key_id}")

    async def ended(self, key_ids: Iterable[str]) -> list[str]:
        """Those of these keys that were environment keys, and are no more."""
        gone = []
        for key_id in key_ids:
            if key_id.startswith("envkey_"):
                try:
                    await self.named(key_id)
                except Unauthenticated:
                    gone.append(key_id)
        return gone

    def doubt(self) -> None:
        """One was revoked elsewhere: ask again for each."""
        self._known.clear()


def _key(record: Record) -> EnvironmentKey:
    body = record.body
    return EnvironmentKey(
        id=record.id,
        environment_id=body["name"],
        tenant=body["tenant"],
        name=body["called"],
        digest=body["digest"],
        created_by=record.created_by,
        created_at=record.created_at,
    )


def _over() -> Unauthenticated:
    return Unauthenticated("The environment key is not valid, or was revoked.")
