"""Tasks: pieces of work that an agent can do with nobody watching, and the runs in which it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from roost.domain.schedule import missed_runs
from roost.errors import Conflict, InvalidRequest

Body = dict[str, Any]
TaskStatus = Literal["open", "running", "done", "failed"]

FIELDS: Final = ("title", "description", "details")
"""What a task says of itself, and what its agent may change."""

SETTINGS: Final = ("status", "agent", "environment_id")
TIMES: Final = ("schedule", "missed_runs", "overlap", "paused_reason")
"""What a task says of when it runs by itself."""

ENDED: Final = ("succeeded", "failed", "cancelled")
_MOST_APPLIED: Final = 50
LONGEST_OUTCOME: Final = 16_000

TOOL: Final[Body] = {
    "type": "custom",
    "name": "update_task",
    "description": (
        "Updates the task that you work on: its title, its description, or its details (plans, "
        "notes, results). Give the fields to change; each replaces what was there."
    ),
    "input_schema": {
        "type": "object",
        "properties": {field: {"type": "string"} for field in FIELDS},
    },
}
"""The tool by which an agent changes its task. The server carries it out."""


def created(params: Mapping[str, Any], key_id: str) -> Body:
    """The body of a new task. `key_id` is the key that its scheduled runs act with."""
    return {
        "title": params["title"],
        "description": params.get("description") or "",
        "details": params.get("details") or "",
        "status": params.get("status") or "open",
        "outcome": None,
        "agent": params.get("agent"),
        "environment_id": params.get("environment_id"),
        "schedule": params.get("schedule"),
        "missed_runs": missed_runs(params.get("missed_runs")),
        "overlap": params.get("overlap") or "skip",
        "paused_reason": None,
        "key_id": key_id,
        "runs": [],  # where servers of an older version have them
        "applied": [],
    }


def whole(body: Body) -> Body:
    """The body of a task that may be from before tasks had schedules."""
    usual = {"schedule": None, "missed_runs": missed_runs(None), "overlap": "skip"}
    return {**usual, "paused_reason": None, "key_id": None, **body}


def updated(body: Body, params: Mapping[str, Any]) -> Body:
    """The body after an update: what is omitted stays."""
    names = (*FIELDS, *SETTINGS, "schedule", "overlap")
    given = {name: params[name] for name in names if name in params}
    if "status" in given and body["status"] == "running":
        raise Conflict("status: the task is running", hint="Interrupt its session first.")
    if "missed_runs" in params:
        given["missed_runs"] = missed_runs(params["missed_runs"])
    return {**body, **given}


def check_schedule(body: Body) -> None:
    """Refuse a schedule of a task that lacks what a run needs. :raises InvalidRequest:"""
    for name in ("agent", "environment_id"):
        if body["schedule"] is not None and not body[name]:
            raise InvalidRequest(f"{name}: required in a task that has a schedule")


def paused(body: Body, reason: Mapping[str, Any] | None) -> Body:
    """The body of a task that starts nothing by itself; None: that does again."""
    return {**body, "paused_reason": reason and dict(reason)}


def applied(body: Body, event_id: str, fields: Mapping[str, str]) -> Body:
    """The body after its agent's call, which counts once however often it is carried out."""
    if event_id in body["applied"]:
        return body
    return {**body, **fields, "applied": [*body["applied"], event_id][-_MOST_APPLIED:]}


def fields_in(given: object) -> dict[str, str] | str:
    """What a call of the tool wants to change; or, as text, what is wrong with it."""
    if not isinstance(given, dict):
        return "Give an object."
    wrong = [name for name, value in given.items() if name not in FIELDS or not _fits(name, value)]
    if wrong or not given:
        sizes = ", ".join(f"{name} (at most {LONGEST[name]} characters)" for name in FIELDS)
        return f"Nothing was changed. Give any of these, as text: {sizes}."
    return given


LONGEST: Final = {"title": 500, "description": 20_000, "details": 100_000}


def _fits(name: str, value: object) -> bool:
    shortest = 1 if name == "title" else 0
    return isinstance(value, str) and shortest <= len(value) <= LONGEST[name] and "\0" not in value


def begun(body: Body) -> Body:
    """The body of a task that a session works on."""
    return {**body, "status": "running", "outcome": None}


def ended(body: Body, status: str, text: str) -> Body:
    """The body after a run that is over."""
    task_status = {"succeeded": "done", "failed": "failed", "cancelled": "open"}[status]
    return {**body, "status": task_status, "outcome": text}


def prompt(body: Body, instructions: str | None) -> str:
    """What its agent is told to begin with."""
    parts = [
        f"# Task: {body['title']}",
        body["description"],
        f"## Details\n\n{body['details']}" if body["details"] else "",
        instructions or "",
        "Work on this task to the end; nobody is there to answer. Keep its title, description and "
        "details up to date with the update_task tool. Say at last what came of it.",
    ]
    return "\n\n".join(part for part in parts if part)
