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
from roost.core.records.tasks import Tasks
from roost.core.sessions.task_runs import TaskRuns
from roost.domain import task
from roost.domain.events import iso
from roost.domain.session import MountScope, TrustLevel
from roost.domain.vault import MOST_VAULTS
from roost.ports.catalog import Record

_Id = Annotated[str, Field(min_length=1, max_length=128)]
_Title = Annotated[str, Field(min_length=1, max_length=task.LONGEST["title"])]
_Description = Annotated[str, Field(max_length=task.LONGEST["description"])]
_Details = Annotated[str, Field(max_length=task.LONGEST["details"])]
_Status = Literal["open", "done", "failed"]

RESOURCE: Final = Resource()


class TaskCreateParams(TypedDict, total=False):
    """A new task."""

    title: Required[_Title]
    description: _Description
    details: _Details
    status: _Status
    agent: _Id
    environment_id: _Id


class TaskUpdateParams(TypedDict, total=False):
    """What is to be changed of a task; null takes its agent or environment away."""

    title: _Title
    description: _Description
    details: _Details
    status: _Status
    agent: _Id | None
    environment_id: _Id | None


class TaskListParams(TypedDict, total=False):
    """Which tasks to list."""

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
    return reply(_view(await tasks.create(call.key, call.body)))


@RESOURCE.get("roost.tasks.list", "/roost/v1/tasks", TaskListParams)
async def list_(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """Tasks, newest first."""
    query = record_query(call.query, "task", call.tenant)
    return reply(await record_page(partial(tasks.page, call.key), query, _view))


@RESOURCE.get("roost.tasks.retrieve", "/roost/v1/tasks/{task_id}")
async def retrieve(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """A task as it stands."""
    return reply(_view(await tasks.seen(call.key, call.params["task_id"])))


@RESOURCE.post("roost.tasks.update", "/roost/v1/tasks/{task_id}", TaskUpdateParams)
async def update(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """A task, changed."""
    task_id = call.params["task_id"]
    return reply(_view(await tasks.update(call.key, task_id, call.body)))


@RESOURCE.delete("roost.tasks.delete", "/roost/v1/tasks/{task_id}")
async def delete(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """Gone; its sessions stay."""
    task_id = call.params["task_id"]
    await tasks.delete(call.key, task_id)
    return reply({"id": task_id, "type": "task_deleted"})


@RESOURCE.post("roost.tasks.runs.create", "/roost/v1/tasks/{task_id}/runs", RunCreateParams)
async def start_run(call: ApiCall, runs: TaskRuns) -> ASGIApp:
    """A session works on the task to the end."""
    task_id = call.params["task_id"]
    run = await runs.start(call.key, task_id, call.body, call.idempotency_key)
    return reply(_run_view(task_id, run))


@RESOURCE.get("roost.tasks.runs.list", "/roost/v1/tasks/{task_id}/runs")
async def list_runs(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """A task's runs, newest first."""
    record = await tasks.seen(call.key, call.params["task_id"])
    runs = [_run_view(record.id, run) for run in reversed(record.body["runs"])]
    return reply({"data": runs, "next_page": None})


@RESOURCE.get("roost.tasks.runs.retrieve", "/roost/v1/tasks/{task_id}/runs/{run_id}")
async def retrieve_run(call: ApiCall, tasks: Tasks) -> ASGIApp:
    """One of a task's runs."""
    record = await tasks.seen(call.key, call.params["task_id"])
    return reply(_run_view(record.id, task.run_in(record.body, call.params["run_id"])))


def _view(record: Record) -> dict[str, Any]:
    shown = (*task.FIELDS, "status", "outcome", "agent", "environment_id")
    return {
        "type": "task",
        "id": record.id,
        **{name: record.body[name] for name in shown},
        "created_at": iso(record.created_at),
        "updated_at": iso(record.updated_at),
    }


def _run_view(task_id: str, run: dict[str, Any]) -> dict[str, Any]:
    ended = run["ended_at"]
    return {
        "type": "task_run",
        "id": run["id"],
        "task_id": task_id,
        **{name: run[name] for name in ("session_id", "status", "outcome", "error")},
        "created_at": iso(run["created_at"]),
        "ended_at": None if ended is None else iso(ended),
    }
