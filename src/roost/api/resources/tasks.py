"""`/roost/v1/tasks`: work that is done with nobody watching."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Literal, Required, TypedDict

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall
from roost.api.framework.paging import record_page, record_query
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.api.framework.runs import MissedRunsParams, run_page, schedule_view, skip_view
from roost.core.records.tasks import Tasks
from roost.core.records.timetable import Times
from roost.core.sessions.task_runs import TaskRuns
from roost.domain import task
from roost.domain.events import iso
from roost.domain.schedule import Overlap
from roost.domain.session import MountScope, TrustLevel
from roost.domain.vault import MOST_VAULTS
from roost.ports.catalog import Record
from roost.ports.runs import Run, RunQuery

_Id = Annotated[str, Field(min_length=1, max_length=128)]
_Title = Annotated[str, Field(min_length=1, max_length=task.LONGEST["title"])]
_Description = Annotated[str, Field(max_length=task.LONGEST["description"])]
_Details = Annotated[str, Field(max_length=task.LONGEST["details"])]
_Status = Literal["open", "done", "failed"]

_STATUS: Final = {"open": "starting", "queued": "queued", "failed": "failed", "skipped": "skipped"}
"""What a run is that has no session, or none yet; the others have it noted."""

RESOURCE: Final = Resource()


class ScheduleParams(TypedDict, total=False):
    """When a task runs by itself, as deployments do."""

    type: Required[Literal["cron"]]
    expression: Required[Annotated[str, Field(min_length=1, max_length=256)]]
    timezone: Required[Annotated[str, Field(min_length=1, max_length=64)]]


class TaskCreateParams(TypedDict, total=False):
    """A new task."""

    title: Required[_Title]
    description: _Description
    details: _Details
    status: _Status
    agent: _Id
    environment_id: _Id
    schedule: ScheduleParams | None
    missed_runs: MissedRunsParams
    overlap: Overlap


class TaskUpdateParams(TypedDict, total=False):
    """What is to be changed of a task; null takes its agent, environment or schedule away."""

    title: _Title
    description: _Description
    details: _Details
    status: _Status
    agent: _Id | None
    environment_id: _Id | None
    schedule: ScheduleParams | None
    missed_runs: MissedRunsParams
    overlap: Overlap


class TaskListParams(TypedDict, total=False):
    """Which tasks to list."""

    limit: int
    page: str


class TaskRunListParams(TypedDict, total=False):
    """Which runs of a task to list."""

    limit: int
    page: str


class RunCreateParams(TypedDict, total=False):
    """How to run a task."""

    agent: _Id
    environment_id: _Id
    instructions: Annotated[str, Field(max_length=100_000)]
    trust_level: TrustLevel
    workspace: Annotated[str, Field(max_length=256)]
    mount_scope: MountScope
    sandbox_fallback: Annotated[str, Field(min_length=1, max_length=64)]
    harness: Annotated[str, Field(min_length=1, max_length=64)]
    vault_ids: Annotated[list[_Id], Field(max_length=MOST_VAULTS)]


@RESOURCE.post("roost.tasks.create", "/roost/v1/tasks", TaskCreateParams)
async def create(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """A new task."""
    return reply(await _shown(tasks, await tasks.create(call.key, call.body)))


@RESOURCE.get("roost.tasks.list", "/roost/v1/tasks", TaskListParams)
async def list_(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """Tasks, newest first."""
    query = record_query(call.query, "task", call.tenant)
    found = await record_page(partial(tasks.page, call.key), query, lambda record: record)
    when = await tasks.times(found["data"])
    data = [_view(*each) for each in zip(found["data"], when, strict=True)]
    return reply({**found, "data": data})


@RESOURCE.get("roost.tasks.retrieve", "/roost/v1/tasks/{task_id}")
async def retrieve(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """A task as it stands."""
    return reply(await _shown(tasks, await tasks.seen(call.key, call.params["task_id"])))


@RESOURCE.post("roost.tasks.update", "/roost/v1/tasks/{task_id}", TaskUpdateParams)
async def update(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """A task, changed."""
    task_id = call.params["task_id"]
    return reply(await _shown(tasks, await tasks.update(call.key, task_id, call.body)))


@RESOURCE.post("roost.tasks.pause", "/roost/v1/tasks/{task_id}/pause")
async def pause(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """Its schedule starts nothing; runs by hand go on."""
    return reply(await _shown(tasks, await tasks.pause(call.key, call.params["task_id"])))


@RESOURCE.post("roost.tasks.unpause", "/roost/v1/tasks/{task_id}/unpause")
async def unpause(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """Its schedule goes on with the next time."""
    return reply(await _shown(tasks, await tasks.unpause(call.key, call.params["task_id"])))


@RESOURCE.delete("roost.tasks.delete", "/roost/v1/tasks/{task_id}")
async def delete(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """Gone with its runs; its sessions stay."""
    task_id = call.params["task_id"]
    await tasks.delete(call.key, task_id)
    return reply({"id": task_id, "type": "task_deleted"})


@RESOURCE.post("roost.tasks.runs.create", "/roost/v1/tasks/{task_id}/runs", RunCreateParams)
async def start_run(call: ApiCall, runs: TaskRuns) -> ASGIApp:
    """A session works on the task to the end."""
    task_id = call.params["task_id"]
    run = await runs.start(call.key, task_id, call.body, call.idempotency_key)
    return reply(_run_view(run))


@RESOURCE.get("roost.tasks.runs.list", "/roost/v1/tasks/{task_id}/runs", TaskRunListParams)
async def list_runs(call: ApiCall, runs: TaskRuns) -> ASGIApp:
    """A task's runs, newest first, also those that were skipped."""
    task_id = call.params["task_id"]
    query = RunQuery(kind="task", tenant=call.tenant, owner=task_id)
    found = partial(runs.page, call.key, task_id)
    return reply(await run_page(call.query, found, query, f"runs {task_id}", _run_view))


@RESOURCE.get("roost.tasks.runs.retrieve", "/roost/v1/tasks/{task_id}/runs/{run_id}")
async def retrieve_run(call: ApiCall, runs: TaskRuns) -> ASGIApp:
    """One of a task's runs."""
    return reply(
        _run_view(await runs.seen(call.key, call.params["task_id"], call.params["run_id"]))
    )


async def _shown(tasks: Tasks, record: Record) -> dict[str, Any]:
    [when] = await tasks.times([record])
    return _view(record, when)


def _view(record: Record, when: Times) -> dict[str, Any]:
    shown = (*task.FIELDS, "status", "outcome", "agent", "environment_id")
    body = record.body
    return {
        "type": "task",
        "id": record.id,
        **{name: body[name] for name in shown},
        "schedule": schedule_view(body["schedule"], when),
        **{name: body[name] for name in ("missed_runs", "overlap", "paused_reason")},
        "created_at": iso(record.created_at),
        "updated_at": iso(record.updated_at),
    }


def _run_view(run: Run) -> dict[str, Any]:
    body, ended, at = run.body, run.ended_at, run.scheduled_at
    fault = body.get("error")
    return {
        "type": "task_run",
        "id": run.id,
        "task_id": run.owner,
        "session_id": run.session_id,
        "status": _STATUS.get(run.state) or body["status"],
        "outcome": body.get("outcome"),
        "error": body.get("said") if fault is None else fault["message"],
        "scheduled_at": None if at is None else iso(at),
        "skipped": skip_view(body) if run.state == "skipped" else None,
        "created_at": iso(run.created_at),
        "ended_at": None if ended is None else iso(ended),
    }
