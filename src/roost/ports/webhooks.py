"""Endpoints of webhooks, and what is on its way to them.

What is told is written by the store itself, in the commit of the change that it tells of: one row for each
endpoint of the tenant that is enabled and wants it. Where no endpoint is enabled, nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from roost.domain.events import Micros
from roost.domain.webhook import Attempt, Delivery, DeliveryState, Webhook


class DeliveryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries of an endpoint a listing shows, newest first; `before` is the number of the last one seen."""

    webhook: Webhook
    state: DeliveryState | None = None
    before: int | None = None
    limit: int = 20


class Outlook(msgspec.Struct, frozen=True):
    """Whether any endpoint is enabled, and in how many seconds the next delivery is due; None: none waits."""

    enabled: bool
    due_in: float | None


class ClaimedDelivery(msgspec.Struct, frozen=True):
    """A delivery that the caller may send now, and where to."""

    webhook: Webhook
    delivery: Delivery


class Webhooks(Protocol):
    """The endpoints of all tenants, and their deliveries."""

    async def add(self, webhook: Webhook) -> Webhook:
        """A new one, created now. Called when its secrets are sealed.

        :raises QuotaExceeded: the tenant has `MOST_WEBHOOKS`
        """
        ...

    async def get(self, tenant: str, webhook_id: str) -> Webhook:
        """The endpoint of that id. :raises NotFound: absent, or another tenant's"""
        ...

    async def all(self, tenant: str) -> list[Webhook]:
        """Those of a tenant, oldest first."""
        ...

    async def change(
        self, tenant: str, webhook_id: str, change: Callable[[Webhook, Micros], Webhook]
    ) -> Webhook:
        """Apply `change` to the endpoint as it is now, at this moment, in one transaction.

        What waits for an endpoint that is disabled by it is held in the same commit, and what was held for one
        that is enabled by it is due. :raises NotFound: and whatever `change` raises
        """
        ...

    async def delete(self, tenant: str, webhook_id: str) -> None:
        """Remove it with its secrets and all its deliveries. :raises NotFound:"""
        ...

    async def every(self, *, after: str | None = None, limit: int) -> list[Webhook]:
        """Those of all tenants, the lowest ids first, above `after`: for sealing with another key."""
        ...

    async def reseal(self, webhook: Webhook, sealed: str) -> bool:
        """Put another sealed text in the place of the one that was read; False: it is another one by now."""
        ...

    async def outlook(self) -> Outlook:
        """When somebody should look again. It costs the same however many deliveries there are."""
        ...

    async def claim(
        self, limit: int, seconds: float, *, without: Sequence[str] = ()
    ) -> list[ClaimedDelivery]:
        """Deliveries that are due, those due for longest first, which nobody else gets for so many seconds; each
        is counted as an attempt. None of the endpoints in `without`.

        Whoever has one and dies has not ended it: it is due again when the time is over.
        """
        ...

    async def ended(
        self, claimed: ClaimedDelivery, attempt: Attempt, wait: float | None, patience: float
    ) -> Webhook | None:
        """What came of a claimed delivery: it is delivered, due again after `wait`, or, without that, given up.

        If the attempt disables the endpoint, or that has failed for longer than `patience`, this is in the same
        commit. A late answer takes nothing back: what was delivered stays so. Gives the endpoint if this has
        disabled it.
        """
        ...

    async def page(self, query: DeliveryQuery) -> list[Delivery]:
        """A page of an endpoint's deliveries."""
        ...

    async def delivery(self, webhook: Webhook, event_id: str) -> Delivery:
        """One of an endpoint's deliveries. :raises NotFound:"""
        ...

    async def replay(
        self, webhook: Webhook, states: Sequence[DeliveryState], since: Micros, event_id: str | None
    ) -> int:
        """Deliveries of an enabled endpoint are due now, with all their attempts before them: those in one of
        these states that tell of something since then, or only the one of an event. How many they are.

        :raises Conflict: the endpoint is disabled :raises NotFound: it is gone
        """
        ...

    async def forget(self, before: Micros, limit: int) -> int:
        """Remove deliveries that are over, of events before then; how many there were."""
        ...
