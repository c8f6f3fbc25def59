"""Webhooks: what is told to servers elsewhere, in which form, and what becomes of one that does not take it.

The form is that of the official API and of Standard Webhooks: a small JSON body that names what has changed, and
three headers that prove who sends it. The types are the official ones; those that nothing here can cause are left
out, and refused when somebody asks for them.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal
from urllib.parse import SplitResult

import msgspec

from roost.domain import address
from roost.domain.events import Entry, Micros, iso
from roost.errors import FieldNotServed, InvalidRequest

MOST_WEBHOOKS: Final = 32  # of a tenant: each of them is a row for each event
EVERYTHING: Final = "*"
LONGEST_URL: Final = 2048
SECRET_BYTES: Final = 32
LONGEST_ANSWER: Final = 1024  # characters of a receiver's answer that are kept
MOST_OVERLAP: Final = 7 * 86400
USUAL_OVERLAP: Final = 86400
_PREFIX: Final = "whsec_"
_MICROS: Final = 1_000_000

# What causes which events. Another kind of record is another line.

RECORD_EVENTS: Final[Mapping[str, Sequence[str]]] = {
    "agent": ("created", "updated", "archived"),
    "environment": ("created", "updated", "archived", "deleted"),
    "vault": ("created", "archived", "deleted"),
    "deployment": ("created", "updated", "paused", "unpaused", "archived"),
}
"""Of which kinds of records it is told what happens to them."""

_ENTRY_EVENTS: Final[Mapping[str, Sequence[str]]] = {
    "session.status_running": ("session.running", "session.status_run_started"),
    "session.status_idle": ("session.idled", "session.status_idled"),
    "session.status_rescheduled": ("session.status_rescheduled",),
    "session.status_terminated": ("session.status_terminated",),
    "session.updated": ("session.updated",),
    "session.thread_created": ("session.thread_created",),
    "session.thread_status_idle": ("session.thread_idled",),
    "session.thread_status_terminated": ("session.thread_terminated",),
}
"""Which entries of a log are told, and as what."""

_REST_EVENTS: Final[Mapping[str, str]] = {
    "requires_action": "session.requires_action",
    "budget_reached": "session.budget_reached",
}
"""What is told besides of a session that rests for one of these reasons."""

RUN_EVENTS: Final[Mapping[str, str]] = {
    "open": "deployment_run.started",
    "started": "deployment_run.succeeded",
    "failed": "deployment_run.failed",
}
"""What is told of a deployment's scheduled run that has come to this state. It has succeeded when it has a session."""

EVENT_TYPES: Final = frozenset(
    (
        *(f"{kind}.{what}" for kind, happens in RECORD_EVENTS.items() for what in happens),
        *(type for types in _ENTRY_EVENTS.values() for type in types),
        *_REST_EVENTS.values(),
        *RUN_EVENTS.values(),
        "session.created",
        "session.archived",
        "session.deleted",
        "vault_credential.created",
        "vault_credential.archived",
        "vault_credential.deleted",
        "vault_credential.refresh_failed",
    )
)
"""All that this server tells."""


def change_of(kind: str, before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """What has happened to a record that has another body now."""
    paused = "paused_reason"
    if kind != "deployment" or before.get(paused) == after.get(paused):
        return "updated"
    return "unpaused" if after.get(paused) is None else "paused"


def told_by(entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """The types of the events that new entries of a log cause, each with the thread that it is about, if any."""
    for entry in entries:
        types = _ENTRY_EVENTS.get(entry.type)
        if types is None:
            continue
        thread = entry.fields["session_thread_id"] if "thread_" in entry.type else ""
        for type in types:
            yield type, thread
        if entry.type == "session.status_idle":
            reason = _REST_EVENTS.get(entry.fields["stop_reason"]["type"])
            if reason is not None:
                yield reason, ""


# Endpoints

WebhookState = Literal["enabled", "disabled"]


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint: where events of a tenant are sent. `sealed` are its `WebhookSecrets`.

    `disabled_reason` is why the server has disabled it; empty if a person has, or nobody. `failing_since` is
    when the first delivery failed after the last one that was taken; 0: the last one was.
    """

    id: str
    tenant: str
    url: str
    sealed: str
    enabled_events: Sequence[str] = (EVERYTHING,)
    name: str = ""
    description: str = ""
    created_by: str = ""
    state: WebhookState = "enabled"
    disabled_reason: str = ""
    failing_since: Micros = 0
    created_at: Micros = 0
    updated_at: Micros = 0

    @property
    def about(self) -> str:
        """What its sealed secrets are about: they cannot be opened as another endpoint's."""
        return f"webhook {self.tenant} {self.id}"


class WebhookSecrets(msgspec.Struct, frozen=True):
    """The signing secret, and the one before, which also signs until a moment."""

    current: str
    previous: str | None = None
    previous_until: Micros = 0

    def __repr__(self) -> str:
        return "WebhookSecrets(…)"

    def at(self, now: Micros) -> list[str]:
        """Those that sign now."""
        old = self.previous if now < self.previous_until else None
        return [self.current, *([old] if old else [])]


def checked_url(url: str) -> SplitResult:
    """The parts of an address that events can be sent to. :raises InvalidRequest:"""
    parts = address.checked(url, "url")
    if parts.fragment:
        raise InvalidRequest("url: an address that is sent to has no fragment")
    if parts.scheme == "http" and not address.is_private(parts.hostname or ""):
        raise InvalidRequest(
            "url: events are sent over https only",
            hint="http:// is for private addresses that the operator allows (ROOST_WEBHOOK_NETWORKS), "
            "and for names of a private network such as `receiver` or `hooks.internal`.",
        )
    return parts


def checked_events(types: Sequence[str]) -> list[str]:
    """The types that an endpoint is to get, in order and each once.

    :raises InvalidRequest: there are none :raises FieldNotServed: nothing here causes one of them
    """
    if not types:
        raise InvalidRequest(
            "enabled_events: give one type at least", hint="Leave it out for all of them."
        )
    if EVERYTHING in types:
        return [EVERYTHING]
    for i, type in enumerate(types):
        if type not in EVENT_TYPES:
            raise FieldNotServed(
                f"enabled_events.{i}: this server tells of nothing called {type[:80]!r}",
                hint=f"It tells of {', '.join(sorted(EVENT_TYPES))}.",
            )
    return sorted(set(types))


def secret_of(data: bytes) -> str:
    """A signing secret as receivers are given it."""
    return _PREFIX + b64encode(data).decode()


# Events and deliveries

DeliveryState = Literal["pending", "delivered", "failed", "held"]


class WebhookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened: what, to which thing, when. `parent` is a second id, such as a vault's."""

    id: str
    type: str
    subject: str
    at: Micros
    parent: str = ""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """An event on its way to one endpoint. `due_at` is when it is tried next; 0: it is not.

    `status` is the last answer's, None if there was none; `note` says what was wrong, `answer` is the beginning
    of what the receiver said. `held`: its endpoint is disabled.
    """

    num: int
    event: WebhookEvent
    state: DeliveryState
    due_at: Micros
    attempts: int
    status: int | None
    note: str
    answer: str
    updated_at: Micros


def body_of(event: WebhookEvent, organization_id: str, workspace_id: str) -> bytes:
    """What is sent; always the same bytes for one event."""
    data: dict[str, str] = {
        "type": event.type,
        "id": event.subject,
        "organization_id": organization_id,
        "workspace_id": workspace_id,
    }
    if event.parent:
        is_credential = event.type.startswith("vault_credential.")
        data["vault_id" if is_credential else "session_thread_id"] = event.parent
    return msgspec.json.encode(
        {"type": "event", "id": event.id, "created_at": iso(event.at), "data": data}
    )


def headers_of(event_id: str, body: bytes, secrets: Sequence[str], now: Micros) -> dict[str, str]:
    """What proves where a body is from and when it was sent: signed anew for each attempt, since receivers refuse
    what is older than five minutes.
    """
    stamp = str(now // _MICROS)
    signed = f"{event_id}.{stamp}.".encode() + body
    return {
        "content-type": "application/json",
        "user-agent": "Roost-Webhooks",
        "webhook-id": event_id,
        "webhook-timestamp": stamp,
        "webhook-signature": " ".join(f"v1,{_signature(secret, signed)}" for secret in secrets),
    }


def _signature(secret: str, signed: bytes) -> str:
    key = b64decode(secret.removeprefix(_PREFIX))
    return b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


# When it is tried again


class DeliveryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often, in seconds. A delivery is tried once, and again after each of the `waits`.

    `claim_seconds` is how long whoever sends it has it to itself, longer than a request can take; `patience` is
    how long an endpoint may fail without taking anything, before it is disabled. `look_seconds` is how long a
    new event waits at most, `rest_seconds` how often a server without endpoints looks whether there are any.
    """

    waits: Sequence[float] = (5, 30, 120, 600, 3600, 6 * 3600, 24 * 3600)
    spread: float = 0.2
    claim_seconds: float = 60
    patience: float = 3 * 86400
    look_seconds: float = 1.0
    rest_seconds: float = 5.0
    keep_seconds: float = 30 * 86400

    def faster(self, times: float) -> DeliveryPolicy:
        """The same in less time: an hour of it in 3.6 seconds, if it is a thousand times as fast."""
        shorter = {
            name: getattr(self, name) / times
            for name in ("patience", "look_seconds", "rest_seconds", "keep_seconds")
        }
        return msgspec.structs.replace(self, waits=[wait / times for wait in self.waits], **shorter)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What came of sending a delivery. `refused`: the server's own rules forbid to connect there."""

    status: int | None = None
    note: str = ""
    answer: str = ""
    refused: bool = False

    @property
    def delivered(self) -> bool:
        """Whether the receiver has taken it."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def disables(self) -> str:
        """Why the endpoint is to get nothing more; empty: it is."""
        if self.refused:
            return self.note
        if self.status == 410:
            return "the receiver says that it is gone (410)"
        if self.status is not None and 300 <= self.status < 400:
            return f"the receiver redirects ({self.status}), which is not followed"
        return ""


def next_wait(policy: DeliveryPolicy, attempts: int, chance: float) -> float | None:
    """Seconds until a delivery is tried again that has failed so often; None: it is given up. `chance` is from
    0 to 1, and spreads those that failed together.
    """
    if attempts > len(policy.waits):
        return None
    return policy.waits[attempts - 1] * (1 + policy.spread * (2 * chance - 1))
