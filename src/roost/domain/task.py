"""Tasks: pieces of work that an agent can do with nobody watching, and the runs in which it does.

A task's body carries its runs, so that a run's end and what it means for the task are one change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from roost.domain.events import Micros
from roost.errors import Conflict, NotFound

Body = dict[str, Any]
TaskStatus = Literal["open", "running", "done", "failed"]

FIELDS: Final = ("title", "description", "details")
"""What a task says of itself, and what its agent may change."""

SETTINGS: Final = ("status", "agent", "environment_id")
ENDED: Final = ("succeeded", "failed", "cancelled")
_MOST_RUNS: Final = 50
_MOST_APPLIED: Final = 50
_LONGEST_OUTCOME: Final = 16_000

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


def created(params: Mapping[str, Any]) -> Body:
    """The body of a new task."""
    return {
        "title": params["title"],
        "description": params.get("description") or "",
        "details": params.get("details") or "",
        "status": params.get("status") or "open",
        "outcome": None,
        "agent": params.get("agent"),
        "environment_id": params.get("environment_id"),
        "runs": [],
        "applied": [],
    }


def updated(body: Body, params: Mapping[str, Any]) -> Body:
    """The body after an update: what is omitted stays."""
    given = {name: params[name] for name in (*FIELDS, *SETTINGS) if name in params}
    if "status" in given and body["status"] == "running":
        raise Conflict("status: the task is running", hint="Interrupt its session first.")
    return {**body, **given}


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


def run_in(body: Body, run_id: str) -> Body:
    """One of its runs. :raises NotFound:"""
    for run in body["runs"]:
        if run["id"] == run_id:
            found: Body = run
            return found
    raise NotFound(f"run {run_id} was not found")


def begun(body: Body, run: Body) -> Body:
    """The body with a new run. :raises Conflict: it runs already"""
    if any(other["status"] not in ENDED for other in body["runs"]):
        raise Conflict("the task runs already", hint="Wait for its end, or interrupt its session.")
    return {
        **body,
        "status": "running",
        "outcome": None,
        "runs": [*body["runs"], run][-_MOST_RUNS:],
    }


def without(body: Body, run_id: str) -> Body:
    """The body as if the run had never begun."""
    left = [run for run in body["runs"] if run["id"] != run_id]
    return {**body, "status": "open", "runs": left}


def moved(body: Body, run_id: str, **fields: Any) -> Body:
    """The body with a run that stands elsewhere now. One that has ended stays as it is."""
    runs = [
        {**run, **fields} if run["id"] == run_id and run["status"] not in ENDED else run
        for run in body["runs"]
    ]
    return {**body, "runs": runs}


def ended(
    body: Body, run_id: str, status: str, now: Micros, *, outcome: str, error: str | None
) -> Body:
    """The body with a run that is over, and what that means for the task."""
    if run_in(body, run_id)["status"] in ENDED:
        return body
    text = outcome[:_LONGEST_OUTCOME]
    after = moved(body, run_id, status=status, outcome=text, error=error, ended_at=now)
    task_status = {"succeeded": "done", "failed": "failed", "cancelled": "open"}[status]
    return {**after, "status": task_status, "outcome": text or error}


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
