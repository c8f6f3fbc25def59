"""Endpoints of webhooks: created, listed, changed, deleted, with their deliveries. A secret is shown once.

Webhooks tell of everything that happens in a tenant, so they are for keys that see all of it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from roost.core.access.permissions import may_see
from roost.domain.events import Micros
from roost.domain.webhook import (
    EVERYTHING,
    SECRET_BYTES,
    Delivery,
    DeliveryState,
    Webhook,
    WebhookSecrets,
    checked_events,
    checked_url,
    secret_of,
)
from roost.errors import CannotUnseal, Forbidden
from roost.ids import mint
from roost.ports.keys import Key
from roost.ports.seal import Seal
from roost.ports.webhooks import DeliveryQuery, Webhooks

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WebhookSecrets).decode


class WebhookEndpoints:
    """The endpoints of all tenants."""

    def __init__(self, webhooks: Webhooks, seal: Seal) -> None:
        self._webhooks = webhooks
        self._seal = seal

    async def create(self, caller: Key, params: Mapping[str, Any]) -> tuple[Webhook, str]:
        """A new endpoint, and its signing secret, which cannot be read again.

        :raises Forbidden: :raises InvalidRequest: naming the field :raises QuotaExceeded:
        :raises CannotSeal: this server has no key for it
        """
        _check_sees_all(caller)
        checked_url(params["url"])
        secret = _new_secret()
        new = Webhook(
            id=mint("wh"),
            tenant=caller.tenant,
            url=params["url"],
            enabled_events=checked_events(params.get("enabled_events", [EVERYTHING])),
            name=params.get("name", ""),
            description=params.get("description", ""),
            created_by=caller.principal,
            sealed="",
        )
        new = replace(new, sealed=sealed_secrets(self._seal, new, WebhookSecrets(secret)))
        return await self._webhooks.add(new), secret

    async def all(self, caller: Key) -> list[Webhook]:
        """Those of the caller's tenant, oldest first. :raises Forbidden:"""
        _check_sees_all(caller)
        return await self._webhooks.all(caller.tenant)

    async def seen(self, caller: Key, webhook_id: str) -> Webhook:
        """One of the caller's tenant. :raises Forbidden: :raises NotFound:"""
        _check_sees_all(caller)
        return await self._webhooks.get(caller.tenant, webhook_id)

    async def update(self, caller: Key, webhook_id: str, params: Mapping[str, Any]) -> Webhook:
        """Change what is given. Whoever enables one again begins with what is held for it.

        :raises Forbidden: :raises NotFound: :raises InvalidRequest: naming the field
        """
        _check_sees_all(caller)
        given = dict(params)
        if "url" in given:
            checked_url(given["url"])
        if "enabled_events" in given:
            given["enabled_events"] = checked_events(given["enabled_events"])

        def change(now: Webhook, moment: Micros) -> Webhook:
            if given.get("state", now.state) != now.state:
                return replace(now, **given, disabled_reason="", failing_since=0)
            return replace(now, **given)

        return await self._webhooks.change(caller.tenant, webhook_id, change)

    async def regenerate_secret(
        self, caller: Key, webhook_id: str, overlap: float
    ) -> tuple[Webhook, str]:
        """Another signing secret; the one before also signs for so many seconds.

        :raises Forbidden: :raises NotFound: :raises CannotSeal:
        """
        _check_sees_all(caller)
        secret = _new_secret()

        def change(now: Webhook, moment: Micros) -> Webhook:
            try:
                old = opened_secrets(self._seal, now).current if overlap else None
            except CannotUnseal:  # what cannot be read signs nothing, and is replaced
                old = None
            until = moment + int(overlap * 1_000_000) if old else 0
            both = WebhookSecrets(secret, old, until)
            return replace(now, sealed=sealed_secrets(self._seal, now, both))

        return await self._webhooks.change(caller.tenant, webhook_id, change), secret

    async def delete(self, caller: Key, webhook_id: str) -> None:
        """Gone, with what was to be sent to it. :raises Forbidden: :raises NotFound:"""
        _check_sees_all(caller)
        await self._webhooks.delete(caller.tenant, webhook_id)

    async def deliveries(
        self,
        caller: Key,
        webhook_id: str,
        *,
        state: DeliveryState | None,
        before: int | None,
        limit: int,
    ) -> list[Delivery]:
        """A page of what was sent to an endpoint, or is to be. :raises Forbidden: :raises NotFound:"""
        webhook = await self.seen(caller, webhook_id)
        query = DeliveryQuery(webhook=webhook, state=state, before=before, limit=limit)
        return await self._webhooks.page(query)

    async def delivery(self, caller: Key, webhook_id: str, event_id: str) -> Delivery:
        """What became of one event. :raises Forbidden: :raises NotFound:"""
        return await self._webhooks.delivery(await self.seen(caller, webhook_id), event_id)

    async def replay(
        self, caller: Key, webhook_id: str, states: Sequence[DeliveryState], since: Micros
    ) -> int:
        """Send again what is in one of these states and happened since then; how many that are.

        :raises Forbidden: :raises NotFound: :raises Conflict: the endpoint is disabled
        """
        webhook = await self.seen(caller, webhook_id)
        return await self._webhooks.replay(webhook, states, since, None)

    async def replay_one(self, caller: Key, webhook_id: str, event_id: str) -> Delivery:
        """Send one event again, also one that was delivered.

        :raises Forbidden: :raises NotFound: :raises Conflict: the endpoint is disabled
        """
        webhook = await self.seen(caller, webhook_id)
        found = await self._webhooks.delivery(webhook, event_id)
        await self._webhooks.replay(webhook, [found.state], 0, event_id)
        return await self._webhooks.delivery(webhook, event_id)


def sealed_secrets(seal: Seal, webhook: Webhook, both: WebhookSecrets) -> str:
    """What is kept of an endpoint's secrets. :raises CannotSeal:"""
    return seal.seal(_encode(both).decode(), webhook.about)


def opened_secrets(seal: Seal, webhook: Webhook) -> WebhookSecrets:
    """The secrets of an endpoint. :raises CannotUnseal:"""
    return _decode(seal.open(webhook.sealed, webhook.about))


def now_in_micros() -> Micros:
    """The time by this machine's clock, which receivers compare with their own."""
    return time.time_ns() // 1000


def _new_secret() -> str:
    return secret_of(secrets.token_bytes(SECRET_BYTES))


def _check_sees_all(caller: Key) -> None:
    if not may_see(caller, ""):
        raise Forbidden(
            "webhooks tell of everything in a tenant, and this key sees only what is its own",
            hint="Use an administrator's key, or one that sees its whole tenant.",
        )
