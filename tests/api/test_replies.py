"""Every answer has every field of its official type, with a value of the right kind."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel
from tests.api.api_server import message, official, skill_files
from tests.api.official_fields import shape_of
from tests.api.test_fields import OFFICIAL, VARIABLE, World, listed_world

from roost.api.framework.routes import Operation

COSTS = {"list_cost", "server_tool_use"}
IDLE = {"stop_details"}
LEFT_OUT = {
    "BetaManagedAgentsSessionUsage": COSTS,
    "BetaManagedAgentsSessionThreadUsage": COSTS,
    "BetaManagedAgentsSessionUsageSnapshot": COSTS,
    "BetaManagedAgentsSessionThreadStats": {"startup_seconds"},
    "BetaManagedAgentsSessionStatusIdleEvent": IDLE,
    "BetaManagedAgentsSessionThreadStatusIdleEvent": IDLE,
    "BetaManagedAgentsSessionUpdatedEvent": {"agent", "budget", "metadata", "title"},
}
"""What the official types allow to be left out, and docs/fields.md says when."""

WORK = "environments.work."
"""Work comes from sessions on self-hosted environments: its answers are checked with them."""

OAUTH = {
    "type": "mcp_oauth",
    "mcp_server_url": "https://oauth.example/mcp",
    "access_token": "access-1",
    "expires_at": "2099-01-31T12:00:00Z",
}
REPOSITORY = {"type": "github_repository", "url": "https://github.com/a/b"}


def missing(kind: Any, value: Any, at: str) -> Iterator[str]:
    """The fields of an official type that a value of it lacks, and those of what is in it."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from missing(args[0], value, at)
    elif origin in (Union, types.UnionType):
        for member in args:
            yield from missing(member, value, at)
    elif origin is list and isinstance(value, list):
        for i, each in enumerate(value):
            yield from missing(args[0], each, f"{at}.{i}")
    elif _is_of(kind, value):
        yield from _lacking(kind, value, at)


def _lacking(kind: type[BaseModel], value: dict[str, Any], at: str) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        if name in value:
            yield from missing(field.annotation, value[name], f"{at}.{name}")
        elif name not in LEFT_OUT.get(kind.__name__, ()):
            yield f"{at}.{name} of {kind.__name__}"


def _is_of(kind: Any, value: Any) -> bool:
    """Whether a value is an object of this type, or of this member of a union: it says so by its `type`."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict)):
        return False
    word = kind.model_fields.get("type")
    words = get_args(word.annotation) if word and get_origin(word.annotation) is Literal else ()
    return "type" not in value or not words or value["type"] in words


def type_of(operation: Operation) -> Any:
    folder, _, name = f"anthropic.types.{operation.reply}".rpartition(".")
    return getattr(import_module(folder), name)


def test_a_field_that_is_not_there_is_noticed():
    thread = type_of(next(o for o in OFFICIAL if o.name == "sessions.threads.retrieve"))
    found = list(missing(thread, {"stats": {"active_seconds": 1}}, "thread"))
    assert "thread.stats.duration_seconds of BetaManagedAgentsSessionThreadStats" in found
    assert "thread.status of BetaManagedAgentsSessionThread" in found
    assert "thread.stats.startup_seconds of BetaManagedAgentsSessionThreadStats" not in found


async def more(it: World) -> dict[str, str]:
    """The ids of what can be changed and then removed."""
    roost = it.roost
    file = {"type": "file", "file_id": it.bodies.sample("FileResourceParams", "file_id")}
    file["mount_path"] = "/in/a.txt"
    session = await roost.session(resources=[file, REPOSITORY], harness="able")
    resources = {each["type"]: each["id"] for each in session["resources"]}
    vault = (await roost.post("/v1/vaults", {"display_name": "last"}))["id"]
    credential = await roost.post(f"/v1/vaults/{vault}/credentials", {"auth": OAUTH})
    skill = await roost.skill("last")
    run = (await roost.get("/v1/deployment_runs"))["data"][0]
    deployment = await roost.post("/v1/deployments", it.bodies.least("DeploymentCreateParams"))
    upload = await roost.post("/v1/files", files={"file": ("b.txt", b"b", "text/plain")})
    return {
        "agent_id": (await roost.agent())["id"],
        "credential_id": credential["id"],
        "deployment_id": deployment["id"],
        "deployment_run_id": run["id"],
        "environment_id": (await roost.environment("last"))["id"],
        "file_id": upload["id"],
        "model_id": "model-1",
        "repository_id": resources["github_repository"],
        "resource_id": resources["file"],
        "session_id": session["id"],
        "skill_id": skill["id"],
        "vault_id": vault,
        "version": skill["latest_version_id"],
    }


def body_of(it: World, operation: Operation) -> dict[str, Any]:
    """What is sent: the least that is asked for."""
    if operation.uploads is not None:
        one = {"file": ("c.txt", b"c", "text/plain")}
        skill = skill_files("last" if "version" in operation.name else "newest", c=b"c")
        return {"files": one if operation.name == "files.upload" else skill}
    if operation.method != "POST":
        return {}
    known: Mapping[str, Any] = {
        "sessions.events.send": {"events": [message("Hello")]},
        "sessions.resources.update": {"authorization_token": "ghp_0123456789abcdef"},
        "vaults.credentials.create": {"auth": {**VARIABLE, "secret_name": "LAST"}},
    }
    shape = shape_of(operation)
    least = it.bodies.least(shape) if shape else {}
    sent = {name: value for name, value in least.items() if name not in operation.parameters}
    return {"json": known.get(operation.name, sent)}


def in_order(operations: list[Operation]) -> list[Operation]:
    """Reads first, then changes; what ends things last, and what is within them before them."""

    def step(operation: Operation) -> tuple[int, int]:
        ends = operation.method == "DELETE" or operation.name.endswith(".archive")
        kind = 2 if ends else 0 if operation.method == "GET" else 1
        return kind, -operation.path.count("/")

    return sorted(operations, key=step)


async def test_every_answer_has_every_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with listed_world(tmp_path, monkeypatch) as it:
        await it.roost.rest({"id": it.ids["session_id"]})
        busy, own = it.ids, await more(it)
        asked = [o for o in OFFICIAL if o.reply is not None and not o.name.startswith(WORK)]
        for operation in in_order(asked):
            it.ids = {**busy, **own}
            if "{thread_id}" in operation.path or operation.name.startswith("sessions.events"):
                it.ids = {**it.ids, "session_id": busy["session_id"]}
            if operation.name == "sessions.resources.update":
                it.ids = {**it.ids, "resource_id": own["repository_id"]}
            sent = body_of(it, operation)
            response = await it.roost.client.request(operation.method, it.path(operation), **sent)
            assert response.status_code == 200, f"{operation.name}: {response.text}"
            answer = response.json()
            shown = answer["data"] if "page" in operation.form or "has_more" in answer else [answer]
            assert shown, operation.name
            kinds = list[type_of(operation)]
            official(kinds, shown)
            lacks = list(missing(kinds, shown, operation.name))
            assert lacks == [], lacks
