"""Logins: a browser shows an API key once, and from then on a cookie that can be taken back.

Each is a record of its own: a hash of the cookie's secret, whose key it stands for, until when. It
ends at its time, at logout, or with its key.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from contextlib import suppress

import msgspec

from roost.core.access.keys import Keyring, digest_of
from roost.domain.events import Micros
from roost.errors import NotFound, Unauthenticated
from roost.ids import mint
from roost.ports.catalog import SYSTEM_TENANT, Catalog, Record, RecordQuery
from roost.ports.keys import Key

_CACHED_SECONDS = 5.0  # how late a logout at another node is noticed; this node's is at once
_MOST_CACHED = 10_000
_SWEPT_AT_ONCE = 100
_MOST_OF_A_KEY = 500
_LONGEST_COOKIE = 200


class Login(msgspec.Struct, frozen=True):
    """A browser that is logged in with a key."""

    id: str
    key: Key
    expires_at: Micros


class Logins:
    """Begins logins, recognises them, ends them."""

    def __init__(self, catalog: Catalog, keyring: Keyring, *, seconds: float) -> None:
        self._catalog = catalog
        self._keyring = keyring
        self._seconds = seconds
        self._known: OrderedDict[str, tuple[float, Record]] = OrderedDict()
        # Here: a look-up under way must not bring one back.
        self._ended: OrderedDict[str, None] = OrderedDict()

    async def begin(self, api_key: str) -> tuple[Login, str]:
        """A login with this key, and its cookie, which is not kept.

        :raises Unauthenticated: the key is not one of ours
        """
        key = await self._keyring.recognise(api_key)
        await self._sweep()
        await self._make_room(key.id)
        secret = secrets.token_urlsafe(32)
        expires_at = _now() + int(self._seconds * 1_000_000)
        body = {
            "digest": digest_of(secret).hex(),
            "name": key.id,  # what they are found by
            "key_id": key.id,
            "tenant": key.tenant,
            "expires_at": expires_at,
        }
        made = await self._catalog.add(
            "login", SYSTEM_TENANT, mint("login"), body, unique_name=False
        )
        return Login(made.id, key, expires_at), f"{made.id}.{secret}"

    async def recognise(self, cookie: str) -> Login:
        """Whose cookie this is. :raises Unauthenticated: nobody's, or its login has ended"""
        login_id, _, secret = cookie[:_LONGEST_COOKIE].partition(".")
        record = await self._record(login_id)
        if not hmac.compare_digest(digest_of(secret).hex(), record.body["digest"]):
            raise Unauthenticated("The login is not valid.")
        return await self._login(record)

    async def still(self, login_id: str) -> Login:
        """The login with this id. :raises Unauthenticated: it has ended"""
        return await self._login(await self._record(login_id))

    async def end(self, login_id: str) -> None:
        """Log out. Again: nothing changes."""
        self._ended[login_id] = None
        if len(self._ended) > _MOST_CACHED:
            self._ended.popitem(last=False)
        self._known.pop(login_id, None)
        with suppress(NotFound):  # twice, or its time had come
            await self._catalog.delete("login", SYSTEM_TENANT, login_id)

    def doubt(self) -> None:
        """Somebody has logged out elsewhere: ask again for each."""
        self._known.clear()

    async def _login(self, record: Record) -> Login:
        body = record.body
        if body["expires_at"] <= _now() or record.id in self._ended:
            raise Unauthenticated("The login has ended.", hint="Log in again.")
        key = await self._keyring.named(body["tenant"], body["key_id"])
        return Login(record.id, key, body["expires_at"])

    async def _record(self, login_id: str) -> Record:
        checked, record = self._known.get(login_id, (0.0, None))
        if record is None or time.monotonic() - checked > _CACHED_SECONDS:
            try:
                record = await self._catalog.get("login", SYSTEM_TENANT, login_id)
            except NotFound:
                self._known.pop(login_id, None)
                raise Unauthenticated("The login has ended.", hint="Log in again.") from None
            self._known[login_id] = time.monotonic(), record
            if len(self._known) > _MOST_CACHED:
                self._known.popitem(last=False)
        return record

    async def _sweep(self) -> None:
        """Remove some whose time is over: as many are made as are swept, so none pile up."""
        until = _now() - int(self._seconds * 1_000_000)
        query = RecordQuery(kind="login", tenant=SYSTEM_TENANT, until=until, limit=_SWEPT_AT_ONCE)
        for record in await self._catalog.page(query):
            await self.end(record.id)
            self._ended.pop(record.id, None)

    async def _make_room(self, key_id: str) -> None:
        """A key has so many logins; one more ends the oldest."""
        query = RecordQuery(
            kind="login", tenant=SYSTEM_TENANT, name=key_id, limit=2 * _MOST_OF_A_KEY
        )
        for record in (await self._catalog.page(query))[_MOST_OF_A_KEY - 1 :]:
            await self.end(record.id)


def _now() -> Micros:
    return time.time_ns() // 1000
