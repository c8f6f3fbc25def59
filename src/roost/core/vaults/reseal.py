"""Sealing every secret anew with another master key, while servers run.

A batch reads some rows, and puts a newly sealed text in the place of each that another key has sealed, if it is
still the text that was read: what is replaced, archived or deleted meanwhile stays as it is then. Each row is a
commit of its own, and old and new keys both open, so a crash leaves some rows old and some new, and all of them
readable; the next run goes on with the old ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from roost.domain.resource import about_token
from roost.domain.vault import VaultCredential
from roost.domain.webhook import Webhook
from roost.errors import CannotSeal, CannotUnseal
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
        """A batch of rows, first credentials, then secrets of webhooks, then tokens of repositories, and where
        it ends.
        """
        kind, _, last = (after or "credential:").partition(":")
        if kind == "credential":
            credentials = await self._credentials.every(after=last or None, limit=BATCH)
            rows = [self._of_credential(each) for each in credentials]
            return rows, f"credential:{rows[-1].id}" if len(rows) == BATCH else "webhook:"
        if kind == "webhook":
            webhooks = await self._webhooks.every(after=last or None, limit=BATCH)
            if rows := [self._of_webhook(each) for each in webhooks]:
                return rows, f"webhook:{rows[-1].id}" if len(rows) == BATCH else "secret:"
            last = ""
        records = await self._catalog.every("secret", before=last or None, limit=BATCH)
        rows = [self._of_token(each) for each in records]
        return rows, f"secret:{rows[-1].id}" if len(rows) == BATCH else None

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
