"""What the commands of `roost webhooks` do."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from roost.cli.client import ApiClient, at
from roost.cli.table import print_json, print_table, when

_WEBHOOKS = "/roost/v1/webhooks"


def print_webhooks(client: ApiClient, *, as_json: bool) -> None:
    """All of them, oldest first."""
    found = client.get(_WEBHOOKS)["data"]
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "name", "url", "events", "state", "why"],
        [
            [w["id"], w["name"], w["url"], _events(w), w["state"], w["disabled_reason"]]
            for w in found
        ],
    )


def create_webhook(client: ApiClient, given: Mapping[str, Any], *, as_json: bool) -> None:
    """Make one, and print its id and its secret."""
    _print_secret(client.post(_WEBHOOKS, _body(given)), as_json=as_json)


def edit_webhook(
    client: ApiClient, webhook_id: str, given: Mapping[str, Any], *, as_json: bool
) -> None:
    """Change what is given."""
    now = client.post(_at(webhook_id), _body(given))
    if as_json:
        print_json(now)
    else:
        print(f"{now['id']} is {now['state']}")


def rotate_secret(
    client: ApiClient, webhook_id: str, overlap: int | None, *, as_json: bool
) -> None:
    """Another secret, which is printed."""
    body = _body({"overlap_seconds": overlap})
    now = client.post(_at(webhook_id, "regenerate_signing_secret"), body)
    _print_secret(now, as_json=as_json)


def remove_webhook(client: ApiClient, webhook_id: str, *, as_json: bool) -> None:
    """It is gone."""
    answer = client.delete(_at(webhook_id))
    if as_json:
        print_json(answer)
    else:
        print(f"removed {webhook_id}")


def print_deliveries(
    client: ApiClient, webhook_id: str, state: str | None, limit: int, *, as_json: bool
) -> None:
    """What was sent, newest first."""
    asked: dict[str, str | int] = {"limit": min(limit, 100)}
    if state is not None:
        asked["state"] = state
    found = list(islice(client.pages(_at(webhook_id, "deliveries"), asked), limit))
    if as_json:
        print_json(found)
        return
    print_table(
        ["event", "type", "about", "when", "state", "attempts", "next", "status", "error"],
        [
            [
                d["id"],
                d["event_type"],
                d["subject_id"],
                when(d["created_at"]),
                d["state"],
                str(d["attempts"]),
                when(d["next_attempt_at"]),
                str(d["status"] or ""),
                d["error"] or "",
            ]
            for d in found
        ],
    )


def replay(client: ApiClient, webhook_id: str, event_id: str | None, *, as_json: bool) -> None:
    """Send one event again, or all that were given up."""
    if event_id is None:
        answer = client.post(_at(webhook_id, "replay"), {})
    else:
        answer = client.post(_at(webhook_id, "deliveries", event_id, "replay"), {})
    if as_json:
        print_json(answer)
    else:
        print(f"{answer.get('replayed', 1)} sent again")


def _print_secret(made: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    print(made["id"])
    print(made["signing_secret"])


def _body(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _events(webhook: Mapping[str, Any]) -> str:
    types = webhook["enabled_events"]
    return "all" if types == ["*"] else ", ".join(types)


def _at(webhook_id: str, *more: str) -> str:
    return at("roost", "v1", "webhooks", webhook_id, *more)
