"""Sends what is to be told. Any node sends anything; each delivery is one node's for a while.

What is written, in this order: the delivery, by the commit that it tells of; a claim, which counts the attempt and
moves its time on by longer than a request takes; and, after the answer, what came of it. Killed before the claim: it
is due, and any node claims it. Killed after the claim, whether or not the receiver has it: it is due again when the
claim runs out, and is sent once more with the same id, which receivers know it by.
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from contextlib import suppress
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from roost.core.webhooks.endpoints import now_in_micros, opened_secrets
from roost.domain.webhook import (
    LONGEST_ANSWER,
    Attempt,
    DeliveryPolicy,
    WebhookEvent,
    body_of,
    headers_of,
    next_wait,
)
from roost.errors import CannotUnseal, Conflict, RoostError
from roost.ids import mint
from roost.ports.catalog import SYSTEM_TENANT, Catalog
from roost.ports.outbound import NoAnswer, Outbound
from roost.ports.seal import Seal
from roost.ports.webhooks import ClaimedDelivery, Webhooks

_log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 64
"""Requests that one node has under way."""

MOST_PER_WEBHOOK: Final = 4
"""Of these, to one endpoint: one that is slow holds up nobody else."""

_FORGOTTEN_AT_ONCE: Final = 1000
_FORGET_EVERY: Final = 3600.0
_ORGANIZATION: Final = "organization"


class WebhookSender:
    """Looks for deliveries that are due, and sends them."""

    def __init__(
        self,
        webhooks: Webhooks,
        catalog: Catalog,
        seal: Seal,
        outbound: Outbound,
        policy: DeliveryPolicy,
    ) -> None:
        self._webhooks = webhooks
        self._catalog = catalog
        self._seal = seal
        self._outbound = outbound
        self._policy = policy
        self._organization = ""
        self._under_way: Counter[str] = Counter()
        self._wanted = anyio.Event()

    def look(self) -> None:
        """There may be something to send: do not wait for the next look."""
        self._wanted.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Send what is due, until cancelled. What is under way then is sent again by the next one."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._forget)
            task_status.started()
            while True:
                self._wanted = anyio.Event()
                pause = self._policy.rest_seconds
                try:
                    pause = await self._turn(tasks)
                except RoostError as error:
                    _log.warning("webhooks wait: %s", error.message, extra={"action": "webhooks"})
                with anyio.move_on_after(pause):
                    await self._wanted.wait()

    async def _turn(self, tasks: TaskGroup) -> float:
        """Begin to send what is due and has room; gives the seconds until the next look."""
        outlook = await self._webhooks.outlook()
        usual = self._policy.look_seconds if outlook.enabled else self._policy.rest_seconds
        room = MOST_AT_ONCE - self._under_way.total()
        if outlook.due_in is None or outlook.due_in > 0 or room <= 0:
            return min(usual, outlook.due_in or usual)
        busy = [one for one, count in self._under_way.items() if count >= MOST_PER_WEBHOOK]
        # All that is claimed may be one endpoint's: as much as each that has room has room for.
        most = max((n for n in self._under_way.values() if n < MOST_PER_WEBHOOK), default=0)
        limit = min(room, MOST_PER_WEBHOOK - most)
        claimed = await self._webhooks.claim(limit, self._policy.claim_seconds, without=busy)
        for each in claimed:
            self._under_way[each.webhook.id] += 1
            tasks.start_soon(self._deliver, each)
        return 0 if claimed else usual

    async def _deliver(self, claimed: ClaimedDelivery) -> None:
        try:
            attempt = await self._sent(claimed)
            attempts = claimed.delivery.attempts
            wait = next_wait(self._policy, attempts, random.random())
            patience = self._policy.patience
            disabled = await self._webhooks.ended(claimed, attempt, wait, patience)
            if disabled is not None:
                _log.warning(
                    "a webhook was disabled: %s", disabled.disabled_reason, extra=_about(claimed)
                )
        except RoostError as error:  # the claim runs out, and it is sent again
            _log.warning(
                "what came of a delivery is not kept: %s", error.message, extra=_about(claimed)
            )
        finally:
            self._under_way[claimed.webhook.id] -= 1
            self._under_way += Counter()  # without those that have none
            self.look()

    async def _sent(self, claimed: ClaimedDelivery) -> Attempt:
        """Send it, and say what came of that."""
        webhook, event = claimed.webhook, claimed.delivery.event
        now = now_in_micros()
        try:
            keys = opened_secrets(self._seal, webhook).at(now)
        except CannotUnseal as closed:
            return Attempt(note=f"the signing secret cannot be read: {closed.message}")
        body = await self._body(webhook.tenant, event)
        headers = headers_of(event.id, body, keys, now)
        answer = await self._outbound.post(webhook.url, headers, body, keys)
        if isinstance(answer, NoAnswer):
            return Attempt(note=answer.why, refused=answer.refused)
        good = 200 <= answer.status < 300
        note = "" if good else f"the receiver answered {answer.status}"
        return Attempt(status=answer.status, note=note, answer=_kept(answer.shown))

    async def _body(self, tenant: str, event: WebhookEvent) -> bytes:
        organization = await self._named()
        workspace = hashlib.sha256(f"{organization} {tenant}".encode()).hexdigest()[:24]
        return body_of(event, organization, f"wrkspc_{workspace}")

    async def _named(self) -> str:
        """What this installation is called in events: made once, and kept in the database."""
        if not self._organization:
            which = (_ORGANIZATION, SYSTEM_TENANT)
            with suppress(Conflict):  # another node was quicker
                if await self._catalog.named(*which, _ORGANIZATION) is None:
                    body = {"name": _ORGANIZATION}
                    await self._catalog.add(*which, mint("org"), body, unique_name=True)
            record = await self._catalog.named(*which, _ORGANIZATION)
            assert record is not None, "it is never removed"
            self._organization = record.id
        return self._organization

    async def _forget(self) -> None:
        """Remove old deliveries that are over, a slice at a time."""
        while True:
            before = now_in_micros() - int(self._policy.keep_seconds * 1_000_000)
            gone = 0
            try:
                gone = await self._webhooks.forget(before, _FORGOTTEN_AT_ONCE)
            except RoostError as error:
                _log.warning("old deliveries stay: %s", error.message, extra={"action": "webhooks"})
            await anyio.sleep(1 if gone == _FORGOTTEN_AT_ONCE else _FORGET_EVERY)


def _kept(answer: str) -> str:
    """The beginning of an answer, as every database can keep it."""
    return answer[:LONGEST_ANSWER].replace("\0", "�")


def _about(claimed: ClaimedDelivery) -> dict[str, str]:
    return {"action": "webhooks", "webhook": claimed.webhook.id, "event": claimed.delivery.event.id}
