"""Sealing every secret anew with another master key, while servers run.

A batch reads some rows, and puts a newly sealed text in the place of each that another key has sealed, if it is
still the text that was read: what is replaced, archived or deleted meanwhile stays as it is then. Each row is a
commit of its own, and old and new keys both open, so a crash leaves some rows old and some new, and all of them
readable; the next run goes on with the old ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from roost.domain.resource import SEALED_TOKEN, Resource, about_token
from roost.domain.vault import VaultCredential
from roost.domain.webhook import Webhook
from roost.errors import CannotSeal, CannotUnseal, NotFound
from roost.ports.catalog import Catalog, Record
from roost.ports.credentials import Credentials
from roost.ports.seal import Seal
from roost.ports.webhooks import Webhooks

BATCH: Final = 200
"""How many rows one batch reads."""

NOT_SEALED: Final = "none"
"""What is counted for a token that was kept before there were master keys."""


class SealedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A secret in the database: which key has sealed it, how it is opened, and what takes its new text."""

    id: str
    sealed: str | None
    plain: str | None = None
    about: str
    put: Callable[[str], Awaitable[bool]]

    def __repr__(self) -> str:
        return f"SealedRow({self.id})"


class ResealStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch has come to. `after` is where the next one goes on; None: that was the last.

    `unreadable` are rows that no key of this server opens.
    """

    resealed: int
    unreadable: list[str]
    after: str | None


class Reseal:
    """Seals all secrets of the database with the first master key."""

    def __init__(
        self, catalog: Catalog, credentials: Credentials, webhooks: Webhooks, seal: Seal
    ) -> None:
        self._catalog = catalog
        self._credentials = credentials
        self._webhooks = webhooks
        self._seal = seal

    @property
    def key(self) -> str | None:
        """The fingerprint of the key that seals."""
        return self._seal.key

    async def counts(self) -> dict[str, int]:
        """How many secrets each key has sealed, by its fingerprint."""
        found: Counter[str] = Counter()
        after: str | None = None
        while True:
            rows, after = await self._rows(after)
            found.update(self._key_of(row) for row in rows)
            if after is None:
                return dict(found)

    async def batch(self, after: str | None) -> ResealStep:
        """Seal some rows anew, from where a batch has ended. :raises CannotSeal: there is no key for it"""
        if self.key is None:
            raise CannotSeal
        rows, after = await self._rows(after)
        resealed, unreadable = 0, []
        for row in rows:
            if self._key_of(row) == self.key:
                continue
            try:
                secret = row.plain or self._seal.open(row.sealed or "", row.about)
            except CannotUnseal:
                unreadable.append(row.id)
                continue
            resealed += await row.put(self._seal.seal(secret, row.about))
        return ResealStep(resealed=resealed, unreadable=unreadable, after=after)

    def _key_of(self, row: SealedRow) -> str:
        return NOT_SEALED if row.sealed is None else self._seal.key_of(row.sealed)

    async def _rows(self, after: str | None) -> tuple[list[SealedRow], str | None]:
        """A batch of rows, of one of the kinds in their order, and where it ends."""
        kinds = {
            "credential": self._credential_rows,
            "webhook": self._webhook_rows,
            "deployment": self._deployment_rows,
            "secret": self._secret_rows,
        }
        kind, _, last = (after or "credential:").partition(":")
        while True:
            rows, end = await kinds[kind](last or None)
            if end is not None:
                return rows, f"{kind}:{end}"
            following = [*kinds][[*kinds].index(kind) + 1 :]
            if rows or not following:
                return rows, f"{following[0]}:" if following else None
            kind, last = following[0], ""

    async def _credential_rows(self, after: str | None) -> tuple[list[SealedRow], str | None]:
        found = await self._credentials.every(after=after, limit=BATCH)
        return [self._of_credential(each) for each in found], _end(found)

    async def _webhook_rows(self, after: str | None) -> tuple[list[SealedRow], str | None]:
        found = await self._webhooks.every(after=after, limit=BATCH)
        return [self._of_webhook(each) for each in found], _end(found)

    async def _deployment_rows(self, before: str | None) -> tuple[list[SealedRow], str | None]:
        found = await self._catalog.every("deployment", before=before, limit=BATCH)
        rows = [
            self._of_deployment(record, resource)
            for record in found
            for resource in record.body["resources"]
            if SEALED_TOKEN in resource
        ]
        return rows, _end(found)

    async def _secret_rows(self, before: str | None) -> tuple[list[SealedRow], str | None]:
        found = await self._catalog.every("secret", before=before, limit=BATCH)
        return [self._of_token(each) for each in found], _end(found)

    def _of_credential(self, credential: VaultCredential) -> SealedRow:
        return SealedRow(
            id=credential.id,
            sealed=credential.sealed,
            about=credential.about,
            put=partial(self._credentials.reseal, credential),
        )

    def _of_webhook(self, webhook: Webhook) -> SealedRow:
        return SealedRow(
            id=webhook.id,
            sealed=webhook.sealed,
            about=webhook.about,
            put=partial(self._webhooks.reseal, webhook),
        )

    def _of_deployment(self, record: Record, resource: Resource) -> SealedRow:
        old = resource[SEALED_TOKEN]

        async def put(sealed: str) -> bool:
            while (
                True
            ):  # what else is changed of the deployment meanwhile is no reason to keep the old text
                try:
                    now = await self._catalog.get("deployment", record.tenant, record.id)
                except NotFound:
                    return False
                kept = now.body["resources"]
                after = [
                    {**each, SEALED_TOKEN: sealed} if each.get(SEALED_TOKEN) == old else each
                    for each in kept
                ]
                if after == kept:
                    return False
                if await self._catalog.rewrite(now, {**now.body, "resources": after}):
                    return True

        return SealedRow(
            id=record.id,
            sealed=old,
            about=about_token(record.tenant, record.id, resource["url"]),
            put=put,
        )

    def _of_token(self, record: Record) -> SealedRow:
        body = record.body

        async def put(sealed: str) -> bool:
            kept = {name: value for name, value in body.items() if name != "token"}
            return await self._catalog.rewrite(record, {**kept, "sealed": sealed})

        return SealedRow(
            id=record.id,
            sealed=body.get("sealed"),
            plain=body.get("token"),
            about=about_token(record.tenant, body["name"], body["resource"]),
            put=put,
        )


def _end(found: Sequence[VaultCredential | Webhook | Record]) -> str | None:
    """Where the next batch goes on, if there is one."""
    return found[-1].id if len(found) == BATCH else None
