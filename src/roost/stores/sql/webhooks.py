"""Webhooks in a SQL database: `SqlWebhooks`, then what the writer does, then rows.

Whoever locks an endpoint and its deliveries locks the endpoint first. A change that tells of something only reads
endpoints: it may write a delivery to one that is being disabled or deleted at that moment. A claim sorts these out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, get_args

import msgspec
from msgspec.structs import replace

from roost.domain.events import Micros
from roost.domain.webhook import (
    EVERYTHING,
    MOST_WEBHOOKS,
    Attempt,
    Delivery,
    DeliveryState,
    Webhook,
    WebhookEvent,
)
from roost.errors import Conflict, NotFound, QuotaExceeded
from roost.ports.webhooks import ClaimedDelivery, DeliveryQuery, Outlook
from roost.stores.sql.batch import LockKind, Needs, SqlTransaction
from roost.stores.sql.database import Rows, SqlReader, SqlWriter, rows_of
from roost.stores.sql.rows import Row, decode, encode

_COLUMNS: Final = """
w.num, w.id, w.tenant, w.state, w.events, w.body, w.sealed, w.reason, w.failing_since, w.created_at, w.updated_at
"""
_SELECT: Final = f"SELECT {_COLUMNS} FROM webhooks w"
_ONE: Final = f"{_SELECT} WHERE w.id = ? AND w.tenant = ?"
_OF_TENANT: Final = f"{_SELECT} WHERE w.tenant = ? ORDER BY w.num"
_BY_NUM: Final = f"{_SELECT} WHERE w.num = ?"
_EVERY: Final = f"{_SELECT} WHERE w.id > ? ORDER BY w.id LIMIT ?"
_COUNT: Final = "SELECT count(*) FROM webhooks WHERE tenant = ?"
_ADD: Final = """
INSERT INTO webhooks (id, tenant, state, events, body, sealed, reason, failing_since, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_CHANGE: Final = """
UPDATE webhooks SET state = ?, events = ?, body = ?, sealed = ?, reason = ?, failing_since = ?, updated_at = ?
WHERE id = ?
"""
_RESEAL: Final = "UPDATE webhooks SET sealed = ? WHERE id = ? AND sealed = ? RETURNING 1"
_DELETE: Final = (
    "DELETE FROM webhooks WHERE num = ?",
    "DELETE FROM deliveries WHERE webhook = ?",
)

# What happened to the health of an endpoint.
_TAKES: Final = "UPDATE webhooks SET failing_since = 0 WHERE num = ? AND failing_since > 0"
_FAILS: Final = "UPDATE webhooks SET failing_since = ? WHERE num = ?"

_DELIVERY: Final = """
d.num, d.event, d.type, d.subject, d.parent, d.at, d.state, d.due_at, d.attempts, d.status, d.note, d.answer,
d.updated_at
"""

# Whether any endpoint is enabled, and when the next delivery is due.
_OUTLOOK: Final = """
SELECT (SELECT count(*) FROM (SELECT 1 FROM webhooks WHERE state = 'enabled' LIMIT 1) AS enabled),
       (SELECT due_at FROM deliveries WHERE due_at > 0 ORDER BY due_at, num LIMIT 1)
"""

# What is due, those due for longest first, of all endpoints but some.
_DUE: Final = """
SELECT {delivery}, d.webhook FROM deliveries d WHERE d.due_at > 0 AND d.due_at <= ?
AND d.webhook NOT IN (SELECT num FROM webhooks WHERE id IN ({without})) ORDER BY d.due_at, d.num LIMIT ?
"""
_CLAIM: Final = """
UPDATE deliveries SET due_at = ?, attempts = attempts + 1, updated_at = ? WHERE num = ?
"""
_DROP: Final = "DELETE FROM deliveries WHERE num = ?"

_DELIVERED: Final = """
UPDATE deliveries SET state = 'delivered', due_at = 0, status = ?, note = '', answer = ?, updated_at = ?
WHERE num = ?
"""

# A failure counts only if nobody has claimed it since, and as long as it waits.
_NOT_DELIVERED: Final = """
UPDATE deliveries SET state = ?, due_at = ?, status = ?, note = ?, answer = ?, updated_at = ?
WHERE num = ? AND attempts = ? AND state = 'pending'
"""

_HOLD: Final = "UPDATE deliveries SET state = 'held', due_at = 0 WHERE webhook = ? AND due_at > 0"
_HOLD_ONE: Final = "UPDATE deliveries SET state = 'held', due_at = 0 WHERE num = ?"
_RESUME: Final = """
UPDATE deliveries SET state = 'pending', due_at = ? WHERE webhook = ? AND state = 'held'
"""
_REPLAY: Final = """
UPDATE deliveries SET state = 'pending', due_at = ?, attempts = 0
WHERE webhook = ? AND at >= ? AND state IN ({states}) AND (CAST(? AS TEXT) = '' OR event = ?) RETURNING 1
"""
_FORGET: Final = """
DELETE FROM deliveries WHERE num IN (
    SELECT num FROM deliveries WHERE due_at = 0 AND at < ? ORDER BY at LIMIT ?
) RETURNING 1
"""

TELL: Final = """
INSERT INTO deliveries (webhook, event, type, subject, parent, at, due_at, updated_at)
SELECT w.num, CAST(?1 AS TEXT), CAST(?3 AS TEXT), CAST(?4 AS TEXT), CAST(?5 AS TEXT), CAST(?6 AS BIGINT),
       CAST(?6 AS BIGINT), CAST(?6 AS BIGINT)
FROM webhooks w WHERE w.tenant = CAST(?2 AS TEXT) AND w.state = 'enabled'
AND (w.events = '*' OR w.events LIKE '% ' || CAST(?3 AS TEXT) || ' %')
"""
"""An event (its id, tenant, type, subject, parent and moment), for each endpoint that is to get it."""

ANY_ENABLED: Final = "EXISTS (SELECT 1 FROM webhooks WHERE state = 'enabled')"
"""Whether anything is to be told at all."""


class SqlWebhooks:
    """The `ports.webhooks.Webhooks` on an SQL database."""

    def __init__(self, writer: SqlWriter, reader: SqlReader) -> None:
        self._writer = writer
        self._reader = reader

    async def add(self, webhook: Webhook) -> Webhook:
        return await self._writer.alone(AddWebhook(webhook))

    async def get(self, tenant: str, webhook_id: str) -> Webhook:
        return _only(await rows_of(self._reader, _ONE, webhook_id, tenant), webhook_id)

    async def all(self, tenant: str) -> list[Webhook]:
        return [_webhook_of(row) for row in await rows_of(self._reader, _OF_TENANT, tenant)]

    async def change(
        self, tenant: str, webhook_id: str, change: Callable[[Webhook, Micros], Webhook]
    ) -> Webhook:
        return await self._writer.alone(ChangeWebhook(tenant, webhook_id, change))

    async def delete(self, tenant: str, webhook_id: str) -> None:
        await self._writer.alone(DeleteWebhook(tenant, webhook_id))

    async def every(self, *, after: str | None = None, limit: int) -> list[Webhook]:
        return [_webhook_of(row) for row in await rows_of(self._reader, _EVERY, after or "", limit)]

    async def reseal(self, webhook: Webhook, sealed: str) -> bool:
        return await self._writer.alone(ResealWebhook(webhook, sealed))

    async def outlook(self) -> Outlook:
        return await self._reader.read(_outlook)

    async def claim(
        self, limit: int, seconds: float, *, without: Sequence[str] = ()
    ) -> list[ClaimedDelivery]:
        return await self._writer.alone(ClaimDeliveries(limit, seconds, without))

    async def ended(
        self, claimed: ClaimedDelivery, attempt: Attempt, wait: float | None, patience: float
    ) -> Webhook | None:
        return await self._writer.alone(EndDelivery(claimed, attempt, wait, patience))

    async def page(self, query: DeliveryQuery) -> list[Delivery]:
        return await self._reader.read(lambda rows: _page(rows, query))

    async def delivery(self, webhook: Webhook, event_id: str) -> Delivery:
        sql = f"SELECT {_DELIVERY} FROM webhooks w JOIN deliveries d ON d.webhook = w.num WHERE w.id = ? AND d.event = ?"
        found = await rows_of(self._reader, sql, webhook.id, event_id)
        if not found:
            raise NotFound(f"there is no delivery of {event_id} to the webhook {webhook.id}")
        return _delivery_of(found[0])

    async def replay(
        self, webhook: Webhook, states: Sequence[DeliveryState], since: Micros, event_id: str | None
    ) -> int:
        return await self._writer.alone(ReplayDeliveries(webhook, states, since, event_id))

    async def forget(self, before: Micros, limit: int) -> int:
        return await self._writer.alone(ForgetDeliveries(before, limit))


# What the writer does


class AddWebhook(msgspec.Struct, frozen=True):
    """One more endpoint of a tenant."""

    webhook: Webhook
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Webhook:
        new = replace(self.webhook, created_at=tx.now, updated_at=tx.now)
        # Those who add one to a tenant wait for each other, or two would both see the last free place.
        await tx.lock(LockKind.WEBHOOKS, new.tenant)
        [(count,)] = await tx.ask(_COUNT, new.tenant)
        if count >= MOST_WEBHOOKS:
            raise QuotaExceeded(
                f"there are {MOST_WEBHOOKS} webhooks already, and no more are allowed",
                hint="Delete one that is no longer needed.",
            )
        state, events, body, sealed, reason, failing, at = _columns_of(new)
        await tx.ask(_ADD, new.id, new.tenant, state, events, body, sealed, reason, failing, at, at)
        tx.webhooks_changed()
        return new


class ChangeWebhook(msgspec.Struct, frozen=True):
    """Another address, other events, another secret, or another state, with what that does to its deliveries."""

    tenant: str
    webhook_id: str
    change: Callable[[Webhook, Micros], Webhook]
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Webhook:
        num, before = await _locked(tx, self.webhook_id, self.tenant)
        after = self.change(before, tx.now)
        if after == before:
            return before
        return await _put(tx, num, before, after)


async def _put(tx: SqlTransaction, num: int, before: Webhook, after: Webhook) -> Webhook:
    """Write an endpoint that is locked."""
    after = replace(after, updated_at=tx.now)
    await tx.ask(_CHANGE, *_columns_of(after), after.id)
    if after.state != before.state:
        if after.state == "disabled":
            await tx.ask(_HOLD, num)
        else:
            await tx.ask(_RESUME, tx.now, num)
    tx.webhooks_changed()
    return after


class DeleteWebhook(msgspec.Struct, frozen=True):
    """Gone with its secrets and its deliveries."""

    tenant: str
    webhook_id: str
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> None:
        num, _ = await _locked(tx, self.webhook_id, self.tenant)
        for statement in _DELETE:
            await tx.ask(statement, num)
        tx.webhooks_changed()


class ResealWebhook(msgspec.Struct, frozen=True):
    """The same secrets, sealed with another key."""

    webhook: Webhook
    sealed: str
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> bool:
        return bool(await tx.ask(_RESEAL, self.sealed, self.webhook.id, self.webhook.sealed))


class ClaimDeliveries(msgspec.Struct, frozen=True):
    """Deliveries that are due become the caller's for a while.

    One that was written while its endpoint was disabled is held, and one to an endpoint that is gone is dropped.
    """

    limit: int
    seconds: float
    without: Sequence[str]
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> list[ClaimedDelivery]:
        # One node after the other: what the next one reads has what the last one took.
        await tx.lock(LockKind.WEBHOOKS, "claim")
        places = ", ".join("?" * len(self.without)) or "NULL"
        sql = _DUE.format(delivery=_DELIVERY, without=places)
        due = await tx.ask(sql, tx.now, *self.without, self.limit)
        found: dict[int, Webhook | None] = {}
        claimed = []
        for *columns, num in due:
            if num not in found:
                rows = await tx.ask(_BY_NUM, num)
                found[num] = _webhook_of(rows[0]) if rows else None
            webhook, delivery = found[num], _delivery_of(tuple(columns))
            if webhook is None:
                await tx.ask(_DROP, delivery.num)
            elif webhook.state == "disabled":
                await tx.ask(_HOLD_ONE, delivery.num)
            else:
                claimed.append(ClaimedDelivery(webhook, await self._taken(tx, delivery)))
        return claimed

    async def _taken(self, tx: SqlTransaction, delivery: Delivery) -> Delivery:
        until = tx.now + _micros(self.seconds)
        await tx.ask(_CLAIM, until, tx.now, delivery.num)
        return replace(delivery, due_at=until, attempts=delivery.attempts + 1, updated_at=tx.now)


class EndDelivery(msgspec.Struct, frozen=True):
    """What came of an attempt, and of its endpoint with it."""

    claimed: ClaimedDelivery
    attempt: Attempt
    wait: float | None
    patience: float
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> Webhook | None:
        attempt, delivery = self.attempt, self.claimed.delivery
        if attempt.delivered:
            await tx.ask(_DELIVERED, attempt.status, attempt.answer, tx.now, delivery.num)
            [(num,)] = await tx.ask(
                "SELECT webhook FROM deliveries WHERE num = ?", delivery.num
            ) or [(0,)]
            await tx.ask(_TAKES, num)
            return None
        try:
            num, webhook = await _locked(tx, self.claimed.webhook.id, self.claimed.webhook.tenant)
        except NotFound:  # its deliveries went with it
            return None
        await tx.ask(_NOT_DELIVERED, *self._outcome(tx.now), delivery.num, delivery.attempts)
        if webhook.state == "disabled":
            return None
        return await self._judged(tx, num, webhook)

    def _outcome(self, now: Micros) -> Row:
        attempt = self.attempt
        said = (attempt.status, attempt.note, attempt.answer, now)
        if self.wait is None:
            return ("failed", 0, *said)
        return ("pending", now + _micros(self.wait), *said)

    async def _judged(self, tx: SqlTransaction, num: int, webhook: Webhook) -> Webhook | None:
        """Whether the endpoint is disabled by this."""
        since = webhook.failing_since or tx.now
        reason = self.attempt.disables
        if not reason and tx.now - since > _micros(self.patience):
            reason = f"it has taken nothing since its first failure: {self.attempt.note}"
        if reason:
            off = replace(webhook, state="disabled", disabled_reason=reason, failing_since=since)
            return await _put(tx, num, webhook, off)
        if not webhook.failing_since:
            await tx.ask(_FAILS, since, num)
        return None


class ReplayDeliveries(msgspec.Struct, frozen=True):
    """Deliveries are due now, as if they were new; their events keep their ids."""

    webhook: Webhook
    states: Sequence[DeliveryState]
    since: Micros
    event_id: str | None
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> int:
        num, webhook = await _locked(tx, self.webhook.id, self.webhook.tenant)
        if webhook.state == "disabled":
            raise Conflict(f"the webhook {webhook.id} is disabled", hint="Enable it first.")
        sql = _REPLAY.format(states=", ".join("?" * len(self.states)))
        event = self.event_id or ""
        return len(await tx.ask(sql, tx.now, num, self.since, *self.states, event, event))


class ForgetDeliveries(msgspec.Struct, frozen=True):
    """Some that are over go."""

    before: Micros
    limit: int
    needs: Sequence[Needs] = ()

    async def on(self, tx: SqlTransaction) -> int:
        return len(await tx.ask(_FORGET, self.before, self.limit))


async def _locked(tx: SqlTransaction, webhook_id: str, tenant: str) -> tuple[int, Webhook]:
    """The endpoint as it is now, which nobody else changes from here on."""
    found = await tx.ask_locked(_ONE, webhook_id, tenant)
    webhook = _only(found, webhook_id)
    tx.at_least(webhook.updated_at)
    return found[0][0], webhook


# Rows


def _columns_of(webhook: Webhook) -> Row:
    """state, events, body, sealed, reason, failing_since, updated_at."""
    types = webhook.enabled_events
    events = EVERYTHING if EVERYTHING in types else f" {' '.join(types)} "
    names = ("url", "name", "description", "created_by")
    body = encode({name: getattr(webhook, name) for name in names})
    kept = (webhook.sealed, webhook.disabled_reason, webhook.failing_since, webhook.updated_at)
    return (webhook.state, events, body, *kept)


def _webhook_of(row: Row) -> Webhook:
    """From a row of `_COLUMNS`."""
    _, id, tenant, state, events, body, sealed, reason, failing_since, created_at, updated_at = row
    return Webhook(
        id=id,
        tenant=tenant,
        state=state,
        enabled_events=events.split(),
        sealed=sealed,
        disabled_reason=reason,
        failing_since=failing_since,
        created_at=created_at,
        updated_at=updated_at,
        **decode(body),
    )


def _only(rows: Sequence[Row], webhook_id: str) -> Webhook:
    if not rows:
        raise NotFound(f"there is no webhook {webhook_id}")
    return _webhook_of(rows[0])


def _delivery_of(row: Row) -> Delivery:
    """From a row of `_DELIVERY`."""
    (
        num,
        event,
        type,
        subject,
        parent,
        at,
        state,
        due_at,
        attempts,
        status,
        note,
        answer,
        updated_at,
    ) = row
    return Delivery(
        num=num,
        event=WebhookEvent(id=event, type=type, subject=subject, parent=parent, at=at),
        state=state,
        due_at=due_at,
        attempts=attempts,
        status=status,
        note=note,
        answer=answer,
        updated_at=updated_at,
    )


async def _outlook(rows: Rows) -> Outlook:
    [(enabled, due_at)] = await rows.fetch(_OUTLOOK)
    if due_at is None:
        return Outlook(bool(enabled), None)
    return Outlook(bool(enabled), max(0.0, (due_at - await rows.now()) / 1_000_000))


async def _page(rows: Rows, query: DeliveryQuery) -> list[Delivery]:
    states = [query.state] if query.state else list(get_args(DeliveryState))
    sql = f"""
    SELECT {_DELIVERY} FROM deliveries d WHERE d.webhook = (SELECT num FROM webhooks WHERE id = ?)
    AND d.num < ? AND d.state IN ({", ".join("?" * len(states))}) ORDER BY d.num DESC LIMIT ?
    """
    before = _NO_NUMBER if query.before is None else query.before
    found = await rows.fetch(sql, query.webhook.id, before, *states, query.limit)
    return [_delivery_of(row) for row in found]


_NO_NUMBER: Final = 2**62


def _micros(seconds: float) -> Micros:
    return int(seconds * 1_000_000)
