"""`/roost/v1/webhooks`: servers elsewhere that are told what happens, and what was sent to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, Required, TypedDict

from pydantic import AwareDatetime, Field
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall
from roost.api.framework.paging import DEFAULT_PAGE, Cursor, cursor_in, cut, page
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.core.webhooks.endpoints import WebhookEndpoints
from roost.core.webhooks.sender import WebhookSender
from roost.domain.events import Micros, iso
from roost.domain.webhook import (
    LONGEST_URL,
    MOST_OVERLAP,
    USUAL_OVERLAP,
    Delivery,
    DeliveryState,
    Webhook,
)

RESOURCE: Final = Resource()

_Url = Annotated[str, Field(min_length=1, max_length=LONGEST_URL)]
_Name = Annotated[str, Field(max_length=256)]
_Description = Annotated[str, Field(max_length=2048)]
_Types = Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=128)]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class WebhookCreateParams(TypedDict, total=False):
    """A new endpoint. Without `enabled_events`, it is told everything."""

    url: Required[_Url]
    enabled_events: _Types
    name: _Name
    description: _Description


class WebhookUpdateParams(TypedDict, total=False):
    """What is to be different. One that was disabled is enabled by its `state`."""

    url: _Url
    enabled_events: _Types
    name: _Name
    description: _Description
    state: Literal["enabled", "disabled"]


class SecretParams(TypedDict, total=False):
    """For how many seconds the old signing secret also signs; a day, unless given. 0: from now on it does not."""

    overlap_seconds: Annotated[int, Field(ge=0, le=MOST_OVERLAP)]


class DeliveryListParams(TypedDict, total=False):
    """Which deliveries to list."""

    state: DeliveryState
    limit: Annotated[int, Field(ge=1, le=100)]
    page: str


class ReplayParams(TypedDict, total=False):
    """What is sent again: deliveries in these states, of events since then; those that were given up, unless given."""

    states: Annotated[list[Literal["delivered", "failed"]], Field(min_length=1, max_length=2)]
    since: Annotated[AwareDatetime, Field(strict=False)]


@RESOURCE.post("roost.webhooks.create", "/roost/v1/webhooks", WebhookCreateParams)
async def create(call: ApiCall, endpoints: WebhookEndpoints, sender: WebhookSender) -> ASGIApp:
    """A new endpoint. Its signing secret is in this answer, and nowhere else."""
    webhook, secret = await endpoints.create(call.key, call.body)
    sender.look()
    return reply({**_view(webhook), "signing_secret": secret})


@RESOURCE.get("roost.webhooks.list", "/roost/v1/webhooks")
async def list_(call: ApiCall, endpoints: WebhookEndpoints) -> ASGIApp:
    """All endpoints, oldest first."""
    found = await endpoints.all(call.key)
    return reply({"data": [_view(each) for each in found], "next_page": None})


@RESOURCE.get("roost.webhooks.retrieve", "/roost/v1/webhooks/{webhook_id}")
async def retrieve(call: ApiCall, endpoints: WebhookEndpoints) -> ASGIApp:
    """An endpoint as it stands."""
    return reply(_view(await endpoints.seen(call.key, call.params["webhook_id"])))


@RESOURCE.post("roost.webhooks.update", "/roost/v1/webhooks/{webhook_id}", WebhookUpdateParams)
async def update(call: ApiCall, endpoints: WebhookEndpoints, sender: WebhookSender) -> ASGIApp:
    """An endpoint, changed."""
    webhook = await endpoints.update(call.key, call.params["webhook_id"], call.body)
    sender.look()
    return reply(_view(webhook))


@RESOURCE.delete("roost.webhooks.delete", "/roost/v1/webhooks/{webhook_id}")
async def delete(call: ApiCall, endpoints: WebhookEndpoints) -> ASGIApp:
    """Gone, with what was to be sent to it."""
    webhook_id = call.params["webhook_id"]
    await endpoints.delete(call.key, webhook_id)
    return reply({"id": webhook_id, "type": "webhook_deleted"})


@RESOURCE.post(
    "roost.webhooks.regenerate_signing_secret",
    "/roost/v1/webhooks/{webhook_id}/regenerate_signing_secret",
    SecretParams,
)
async def regenerate_signing_secret(call: ApiCall, endpoints: WebhookEndpoints) -> ASGIApp:
    """Another signing secret, in this answer and nowhere else. For a while both sign."""
    overlap = call.body.get("overlap_seconds", USUAL_OVERLAP)
    found = await endpoints.regenerate_secret(call.key, call.params["webhook_id"], overlap)
    return reply({**_view(found[0]), "signing_secret": found[1]})


@RESOURCE.post("roost.webhooks.replay", "/roost/v1/webhooks/{webhook_id}/replay", ReplayParams)
async def replay(call: ApiCall, endpoints: WebhookEndpoints, sender: WebhookSender) -> ASGIApp:
    """What was given up is sent again, with the same ids."""
    states = call.body.get("states", ["failed"])
    since = _micros(call.body.get("since", _EPOCH))
    count = await endpoints.replay(call.key, call.params["webhook_id"], states, since)
    sender.look()
    return reply({"type": "webhook_replay", "replayed": count})


@RESOURCE.get(
    "roost.webhooks.deliveries.list",
    "/roost/v1/webhooks/{webhook_id}/deliveries",
    DeliveryListParams,
)
async def list_deliveries(call: ApiCall, endpoints: WebhookEndpoints) -> ASGIApp:
    """What was sent to an endpoint, or is to be, newest first."""
    webhook_id, limit = call.params["webhook_id"], call.query.get("limit", DEFAULT_PAGE)
    cursor = cursor_in(call.query, webhook_id, "desc")
    found = await endpoints.deliveries(
        call.key,
        webhook_id,
        state=call.query.get("state"),
        before=None if cursor is None else int(cursor.after),
        limit=limit + 1,
    )
    shown, more = cut(found, limit)
    last = Cursor(of=webhook_id, order="desc", after=shown[-1].num) if more else None
    return reply(page([_delivery_view(each, webhook_id) for each in shown], last))


@RESOURCE.get(
    "roost.webhooks.deliveries.retrieve",
    "/roost/v1/webhooks/{webhook_id}/deliveries/{event_id}",
)
async def retrieve_delivery(call: ApiCall, endpoints: WebhookEndpoints) -> ASGIApp:
    """What became of one event at one endpoint."""
    webhook_id = call.params["webhook_id"]
    found = await endpoints.delivery(call.key, webhook_id, call.params["event_id"])
    return reply(_delivery_view(found, webhook_id))


@RESOURCE.post(
    "roost.webhooks.deliveries.replay",
    "/roost/v1/webhooks/{webhook_id}/deliveries/{event_id}/replay",
)
async def replay_delivery(
    call: ApiCall, endpoints: WebhookEndpoints, sender: WebhookSender
) -> ASGIApp:
    """One event is sent again, with the same id."""
    webhook_id = call.params["webhook_id"]
    found = await endpoints.replay_one(call.key, webhook_id, call.params["event_id"])
    sender.look()
    return reply(_delivery_view(found, webhook_id))


def _micros(moment: datetime) -> Micros:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _view(webhook: Webhook) -> dict[str, Any]:
    failing = webhook.failing_since
    return {
        "type": "webhook",
        "id": webhook.id,
        "url": webhook.url,
        "name": webhook.name,
        "description": webhook.description,
        "enabled_events": list(webhook.enabled_events),
        "state": webhook.state,
        "disabled_reason": webhook.disabled_reason,
        "failing_since": iso(failing) if failing else None,
        "created_at": iso(webhook.created_at),
        "updated_at": iso(webhook.updated_at),
    }


def _delivery_view(delivery: Delivery, webhook_id: str) -> dict[str, Any]:
    event = delivery.event
    return {
        "type": "webhook_delivery",
        "id": event.id,
        "webhook_id": webhook_id,
        "event_type": event.type,
        "subject_id": event.subject,
        "state": delivery.state,
        "attempts": delivery.attempts,
        "next_attempt_at": iso(delivery.due_at) if delivery.due_at else None,
        "status": delivery.status,
        "error": delivery.note or None,
        "answer": delivery.answer,
        "created_at": iso(event.at),
        "updated_at": iso(delivery.updated_at),
    }
