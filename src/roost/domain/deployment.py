"""Deployments: sessions that are made again and again in the same way, by hand or on a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from roost.domain.agent import merged
from roost.domain.resource import shown
from roost.domain.schedule import missed_runs

Body = dict[str, Any]
Fault = dict[str, str]
"""Why a run has no session, as the API has it: its `type` and a message."""

OPTIONS: Final = ("trust_level", "workspace", "mount_scope", "harness", "sandbox_fallback")
"""What Roost adds to sessions, and a deployment may ask for its own."""

_LISTS: Final = ("resources", "vault_ids")
_GIVEN: Final = ("name", "environment_id", "budget", "schedule", "overlap", *OPTIONS)

ENDS: Final = "agent_archived_error"
"""After this fault a deployment is archived: its agent will not come back."""

PAUSES: Final = frozenset(
    {
        "environment_archived_error",
        "environment_not_found_error",
        "vault_archived_error",
        "vault_not_found_error",
        "file_not_found_error",
        "skill_not_found_error",
        "self_hosted_resources_unsupported_error",
        "unknown_error",
    }
)
"""After these a scheduled run would fail again and again: the deployment is paused until somebody looks."""


def created(params: Mapping[str, Any], agent: Mapping[str, Any], key_id: str) -> Body:
    """The body of a new deployment. `key_id` is the key that its scheduled runs act with."""
    start = dict.fromkeys(("description", "budget", "schedule", "paused_reason", *OPTIONS))
    given = {name: params[name] for name in _GIVEN if name in params}
    return {
        **start,
        "overlap": "allow",
        **given,
        "description": params.get("description") or None,
        "agent": dict(agent),
        "initial_events": _events(params["initial_events"]),
        "metadata": dict(params.get("metadata") or {}),
        **{name: list(params.get(name) or ()) for name in _LISTS},
        "missed_runs": missed_runs(params.get("missed_runs")),
        "key_id": key_id,
    }


def updated(body: Body, params: Mapping[str, Any], agent: Mapping[str, Any] | None) -> Body:
    """The body after an update: what is omitted stays."""
    after = {**body, **{name: params[name] for name in _GIVEN if name in params}}
    if "description" in params:
        after["description"] = params["description"] or None
    if agent is not None:
        after["agent"] = dict(agent)
    if "initial_events" in params:
        after["initial_events"] = _events(params["initial_events"])
    if "missed_runs" in params:
        after["missed_runs"] = missed_runs(params["missed_runs"])
    after |= {name: list(params[name] or ()) for name in _LISTS if name in params}
    return {**after, "metadata": merged(body["metadata"], params.get("metadata"))}


def _events(events: Sequence[Mapping[str, Any]]) -> list[Body]:
    """Without the sender's own ids: each session has events of its own."""
    return [{name: each[name] for name in each if name != "client_id"} for each in events]


def paused(body: Body, reason: Mapping[str, Any] | None) -> Body:
    """The body of a deployment that starts nothing by itself; None: that does again."""
    return {**body, "paused_reason": reason and dict(reason)}


def failed(body: Body, fault: Fault) -> Body:
    """The body after a scheduled run that failed for good."""
    return paused(body, {"type": "error", "error": {"type": fault["type"]}})


def ended(body: Body) -> Body:
    """The body of a deployment that runs no more: without tokens."""
    return {**body, "resources": [shown(each) for each in body["resources"]]}


def session_params(deployment_id: str, body: Body, agent: Mapping[str, Any]) -> dict[str, Any]:
    """What a session of a deployment is made with, besides its first inputs."""
    asked = {name: body[name] for name in OPTIONS if body[name] is not None}
    same = ("environment_id", "vault_ids", "resources", "metadata", "budget")
    return {
        **asked,
        **{name: body[name] for name in same},
        "agent": dict(agent),
        "title": body["name"],
        "deployment_id": deployment_id,
    }
