"""Each field of the official requests has an effect, is refused by name, or is kept and shown; none is ignored."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import anthropic
import pytest
from tests.api.api_server import ApiServer, api_server, error_of, message, skill_files
from tests.api.official_fields import (
    HEADERS,
    SHAPES,
    Bodies,
    Place,
    Said,
    bodies,
    on_the_wire,
    only_word,
    places,
    shape_of,
    source_of_test,
    table,
    telling,
    to_be_told,
)
from tests.docs.reading import text

from roost.api.framework.routes import Operation
from roost.api.operations import OPERATIONS, OTHER_APIS
from roost.core.files.resources import Resources
from roost.core.records.models import Models
from roost.core.sandbox.budgets import Budgets
from roost.core.work.work_items import WorkItems
from roost.ports.models import ListedModel

OFFICIAL = [o for o in OPERATIONS if o.official and o.served and o not in OTHER_APIS]
LISTS = [o for o in OFFICIAL if shape_of(o) and "limit" in SHAPES[shape_of(o) or ""]["fields"]]
WHAT_TO_DO = (
    "is in none of the lists of tests/api/fields.toml. Say there which test shows what it does. If it does "
    "nothing yet: give it its effect, or refuse it (`FieldNotServed`), or keep and show it; what is refused or "
    "kept is listed in docs/fields.md, too"
)


# The table


def sent_by_the_sdk(operation: Operation) -> set[str]:
    """The fields that the official client's method of this operation takes."""
    owner: Any = anthropic.Anthropic(api_key="none").beta
    *way, name = operation.name.split(".")
    for part in way:
        owner = getattr(owner, part)
    kinds = inspect.signature(getattr(owner, name)).parameters
    usual = {"extra_headers", "extra_query", "extra_body", "timeout"}
    return {field for field in kinds if field not in usual and f"{{{field}}}" not in operation.path}


def every_field() -> Iterator[tuple[str, str]]:
    """Each field that a client can send: those of the methods of the official client, and those within them."""
    for operation in OFFICIAL:
        shape = shape_of(operation) or operation.name
        words = telling(shape) if shape in SHAPES else []
        for name in sorted(sent_by_the_sdk(operation) - set(words)):
            yield shape, name
    queries = [shape for o in OFFICIAL if (shape := shape_of(o)) is not None]
    for shape in {*places(), *queries}:
        for name in to_be_told(shape):
            yield shape, name


def path_parameters(shape: str) -> set[str]:
    return {name for o in OFFICIAL if shape_of(o) == shape for name in o.parameters}


def test_each_field_has_an_effect_is_refused_or_is_kept():
    told, common = table(), table()["*"].tests
    for shape, name in every_field():
        said = told.get(shape, Said())
        as_new = told[said.same_as].fields if said.same_as else []
        whole = "*" in said.refused
        known = {*said.fields, *as_new, *common, *path_parameters(shape)}
        assert whole or name in known, f"{shape}.{name} {WHAT_TO_DO}"


@pytest.mark.parametrize("shape", ["AgentListParams", "AgentCreateParams", "LimitedNetworkParams"])
def test_a_field_that_is_new_is_named(monkeypatch: pytest.MonkeyPatch, shape: str):
    monkeypatch.setitem(SHAPES[shape]["fields"], "colour", "str")
    with pytest.raises(AssertionError, match=rf"{shape}\.colour is in none of the lists"):
        test_each_field_has_an_effect_is_refused_or_is_kept()


def test_the_table_has_nothing_that_is_not_there():
    there: dict[str, set[str]] = {"*": {*table()["*"].tests}}
    for shape, name in every_field():
        there.setdefault(shape, {"*"}).add(name)
    for shape, said in table().items():
        assert set(said.fields) <= there.get(shape, set()), shape
        assert len(said.fields) == len(set(said.fields)), f"{shape}: one list for each field"


def test_the_tests_that_are_named_are_there_and_name_their_fields():
    for shape, said in table().items():
        for name, test in said.tests.items():
            source = source_of_test(test)
            assert source is not None, f"{shape}.{name}: there is no {test}"
            word = only_word(shape, name) if shape in SHAPES else None
            words = {word} if word else {name, on_the_wire(name)}
            shown = any(re.search(rf"(?<![\w-]){re.escape(each)}(?!\w)", source) for each in words)
            assert shown, f"{shape}.{name}: {test} does not name it"


# Requests with each field that is refused, or kept, or chooses a shape


@dataclass
class World:
    """A server with one object of each kind, and requests that name them."""

    roost: ApiServer
    ids: Mapping[str, str]
    bodies: Bodies

    def path(self, operation: Operation) -> str:
        ids = dict(self.ids)
        if operation.name.startswith("environments.work."):
            ids["environment_id"] = ids["self_hosted"]
        return re.sub(r"\{(\w+)\}", lambda found: ids[found[1]], operation.path)

    async def send(self, place: Place, shape: str, **fields: Any) -> Any:
        body = self.bodies.of(place, shape, **fields)
        return await self.roost.client.post(self.path(place.operation), json=body)


VARIABLE = {
    "type": "environment_variable",
    "secret_value": "v",
    "networking": {"type": "unrestricted"},
}
TOOLSET = {"type": "agent_toolset_20260401"}
OFF = {"type": "disabled"}


@asynccontextmanager
async def world(data: Path) -> AsyncGenerator[World, None]:
    names = (f"name-{n}" for n in range(1_000_000))
    async with api_server(data) as roost:
        agent, environment = await roost.agent(), await roost.environment()
        session = await roost.session(agent=agent["id"], harness="able")
        upload = await roost.post("/v1/files", files={"file": ("a.txt", b"a", "text/plain")})
        vault = await roost.post("/v1/vaults", {"display_name": "v"})
        auth = {**VARIABLE, "secret_name": "FIRST"}
        credential = await roost.post(f"/v1/vaults/{vault['id']}/credentials", {"auth": auth})
        samples: dict[str, Any] = {
            "agent": agent["id"],
            "AgentParams.id": agent["id"],
            "AgentWithOverridesParams.id": agent["id"],
            "EnvironmentCreateParams.name": lambda: next(names),
            "environment_id": environment["id"],
            "execution_identity": {"type": "service_account"},
            "file_id": upload["id"],
            "initial_events": [message("go")],
            "vaults.CredentialCreateParams.auth": lambda: {
                **VARIABLE,
                "secret_name": next(names).replace("-", "_"),
            },
            "with SessionCreateParams.agent": {"harness": "able"},
            "with SessionUpdateParams.agent": {},
            "with Multiagent20261001Params.subagents": {"workflows": OFF},
            "with Multiagent20261001Params.advisor": {"workflows": OFF},
        }
        deployment = await roost.post(
            "/v1/deployments",
            {
                "name": "d",
                "agent": agent["id"],
                "environment_id": environment["id"],
                "initial_events": [message("go")],
                "harness": "able",
            },
        )
        made = {
            "agent_id": agent,
            "environment_id": environment,
            "session_id": session,
            "vault_id": vault,
            "credential_id": credential,
            "deployment_id": deployment,
        }
        yield World(roost, {name: each["id"] for name, each in made.items()}, Bodies(samples))


def named_in(response: Any) -> str:
    """The field that a refusal names, without the places in lists."""
    path, _, words = error_of(response, 400)["message"].partition(": ")
    assert words, response.text
    return re.sub(r"\.\d+(?=\.|$)", "", path)


def walked(what: str) -> Iterator[tuple[str, str, Place]]:
    """The fields that the table calls refused or kept, wherever they can be sent."""
    for shape, said in table().items():
        for name in getattr(said, what):
            for place in places().get(shape, ()):
                yield shape, name, place


async def test_what_is_refused_is_refused_by_name(tmp_path: Path):
    async with world(tmp_path) as it:
        count = 0
        for shape, name, place in walked("refused"):
            fields = {} if name == "*" else {name: table()[shape].refused[name]}
            response = await it.send(place, shape, **fields)
            field = named_in(response)
            allowed = [place.path(), place.path("type")] if name == "*" else [place.path(name)]
            inner = name != "*" and field.startswith(f"{allowed[0]}.")
            assert field in allowed or inner, f"{shape}.{name}: {response.text}"
            count += 1
        assert count > 50


async def test_what_is_kept_is_shown_again(tmp_path: Path):
    async with world(tmp_path) as it:
        count = 0
        for shape, name, place in walked("kept"):
            value = only_word(shape, name) or it.bodies.sample(shape, name)
            response = await it.send(place, shape, **{name: value})
            assert response.status_code == 200, f"{shape}.{name}: {response.text}"
            answer, path = response.json(), it.path(place.operation)
            own = "" if path.endswith(answer["id"]) else f"/{answer['id']}"
            for shown in (answer, await it.roost.get(f"{path}{own}")):
                assert value in list(found(shown, place.path(name))), f"{shape}.{name}: {shown}"
            count += 1
        assert count > 20


def found(shown: Any, path: str) -> Iterator[Any]:
    """The values at a path, in any place of the lists on the way."""
    if isinstance(shown, list):
        for each in shown:
            yield from found(each, path)
    elif not path:
        yield shown
    elif isinstance(shown, dict):
        name, _, rest = path.partition(".")
        yield from found(shown.get(name), rest)


async def test_a_word_that_chooses_a_shape_is_one_of_those_that_are_known(tmp_path: Path):
    async with world(tmp_path) as it:
        for shape, each in places().items():
            for name in telling(shape):
                for place in each:
                    response = await it.send(place, shape, **{name: "no such word"})
                    assert named_in(response) == place.path(name), (
                        f"{shape}.{name}: {response.text}"
                    )


# Updates


async def new_bodies(it: World) -> dict[str, dict[str, Any]]:
    """For each object that can be changed: all that it can be changed to."""
    roost = it.roost
    skill, agent = await roost.skill(), await roost.agent()
    upload = {"type": "file", "file_id": it.bodies.sample("FileResourceParams", "file_id")}
    limited = {"type": "limited", "allowed_hosts": ["a.example"]}
    common = {"name": "other", "description": "d", "metadata": {"a": "b"}}
    return {
        "AgentCreateParams": {
            **common,
            "model": {"id": "m", "effort": {"type": "low"}, "speed": "fast"},
            "system": "Be brief.",
            "tools": [TOOLSET, {"type": "mcp_toolset", "mcp_server_name": "s"}],
            "mcp_servers": [{"type": "url", "name": "s", "url": "https://mcp.example/mcp"}],
            "skills": [{"type": "custom", "skill_id": skill["id"]}],
            "multiagent": {"type": "multiagent_20261001", "workflows": OFF},
            "execution_identity": {"type": "service_account"},
        },
        "EnvironmentCreateParams": {**common, "config": {"type": "cloud", "networking": limited}},
        "DeploymentCreateParams": {
            **common,
            "agent": agent["id"],
            "environment_id": (await roost.environment("second"))["id"],
            "initial_events": [message("Look.")],
            "schedule": {"type": "cron", "expression": "0 9 * * 1", "timezone": "UTC"},
            "resources": [upload],
            "vault_ids": [it.ids["vault_id"]],
            "budget": {"type": "limit", "max_list_cost": {"amount": "1", "currency": "USD"}},
        },
        "VaultCreateParams": {"display_name": "other", "metadata": {"a": "b"}},
        "vaults.CredentialCreateParams": {"display_name": "other", "metadata": {"a": "b"}},
    }


async def test_an_update_does_what_a_new_object_with_its_fields_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Budgets, "_check_price", lambda *given: None)
    monkeypatch.setattr(Resources, "check", lambda *given: None)
    async with world(tmp_path) as it:
        bodies_of = await new_bodies(it)
        by_shape = {shape_of(operation): operation for operation in bodies()}
        for shape, said in table().items():
            if said.same_as is None:
                continue
            body = bodies_of[said.same_as]
            others = {*said.fields, *HEADERS, *path_parameters(shape)}
            assert set(body) == set(SHAPES[shape]["fields"]) - others, shape
            path = it.path(by_shape[shape])
            before = await it.roost.get(path)
            after = await it.roost.post(path, body)
            assert {**await it.roost.get(path), "updated_at": 0} == {**after, "updated_at": 0}
            new = {**it.bodies.least(said.same_as), **body}
            if said.same_as == "DeploymentCreateParams":
                new["harness"] = "able"
            if "name" in body:
                new["name"] = "another"
            made = await it.roost.post(it.path(by_shape[said.same_as]), new)
            for name, sent in body.items():
                assert after[name] == (sent if name == "name" else made[name]), f"{shape}.{name}"
                same = name == "execution_identity"  # there is only one
                assert same or after[name] != before[name], f"{shape}.{name}"


# Lists


def three_models(monkeypatch: pytest.MonkeyPatch) -> None:
    three = [ListedModel(id=f"model-{n}") for n in range(3)]

    async def models(self: Models) -> list[ListedModel]:
        return three

    monkeypatch.setattr(Models, "all", models)


@asynccontextmanager
async def listed_world(data: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    """A world with at least three of what is listed, but for threads."""
    three_models(monkeypatch)
    monkeypatch.setattr(Resources, "check", lambda *given: None)
    async with world(data) as it:
        roost, ids = it.roost, dict(it.ids)
        skills = [await roost.skill(name) for name in ("one", "two", "three")]
        ids["skill_id"] = skills[0]["id"]
        for n in range(2):
            await roost.post(f"/v1/agents/{ids['agent_id']}", {"name": f"v{n}"})
            await roost.post(
                f"/v1/skills/{ids['skill_id']}/versions", files=skill_files("one", a=b"%d" % n)
            )
            await roost.post("/v1/files", files={"file": (f"{n}.txt", b"a", "text/plain")})
        place = await roost.environment("elsewhere", config={"type": "self_hosted"})
        ids["self_hosted"] = place["id"]
        for n in range(3):
            waiting = await roost.session(environment_id=place["id"])
            session = await roost.store.sessions.find(waiting["id"])
            await roost.deps.services[WorkItems].want(session)
            await roost.agent()
            await roost.environment(f"e{n}")
            await roost.post("/v1/vaults", {"display_name": f"v{n}"})
            auth = {**VARIABLE, "secret_name": f"V{n}"}
            await roost.post(f"/v1/vaults/{ids['vault_id']}/credentials", {"auth": auth})
            await roost.post("/v1/deployments", it.bodies.least("DeploymentCreateParams"))
            await roost.post(f"/v1/deployments/{ids['deployment_id']}/run")
            await roost.session()
            resource = {
                "type": "file",
                "file_id": it.bodies.sample("FileResourceParams", "file_id"),
            }
            at = f"/v1/sessions/{ids['session_id']}"
            await roost.post(f"{at}/resources", {**resource, "mount_path": f"/{n}.txt"})
        await roost.say({"id": ids["session_id"]}, "Hello", "again")
        [thread] = (await roost.get(f"/v1/sessions/{ids['session_id']}/threads"))["data"]
        ids["thread_id"] = thread["id"]
        yield World(roost, ids, it.bodies)


def keys(data: list[Any]) -> list[Any]:
    return [(each["id"], each.get("version")) for each in data]


async def test_every_list_has_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with listed_world(tmp_path, monkeypatch) as it:
        assert len(LISTS) > 12
        for operation in LISTS:
            path = it.path(operation)
            whole = keys((await it.roost.get(path))["data"])
            assert len(whole) >= (1 if operation.name == "sessions.threads.list" else 3), path
            shown: list[Any] = []
            params: dict[str, Any] = {"limit": 1}
            while params:
                answer = await it.roost.get(path, **params)
                assert len(answer["data"]) == 1, path
                shown += keys(answer["data"])
                params = next_page(answer)
            assert shown == whole, path
        two = await it.roost.get("/v1/models", before_id="model-2", limit=1)
        assert keys(two["data"]) == [("model-1", None)]


def next_page(answer: Any) -> dict[str, Any]:
    """What asks for the next page, in the form of the list: by a cursor, or by the last id."""
    if "has_more" in answer:
        return {"limit": 1, "after_id": answer["last_id"]} if answer["has_more"] else {}
    return {"limit": 1, "page": answer["next_page"]} if answer["next_page"] else {}


def lists_with(name: str) -> list[Operation]:
    return [o for o in LISTS if name in SHAPES[shape_of(o) or ""]["fields"]]


async def test_every_list_hides_what_is_archived_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with listed_world(tmp_path, monkeypatch) as it:
        for operation in lists_with("include_archived"):
            path = it.path(operation)
            before = keys((await it.roost.get(path))["data"])
            gone = next(key for key in before if key[0] not in it.ids.values())
            await it.roost.post(f"{path}/{gone[0]}/archive")
            left = keys((await it.roost.get(path))["data"])
            assert left == [key for key in before if key != gone], path
            shown = keys((await it.roost.get(path, include_archived="true"))["data"])
            assert shown == before, path


async def test_every_list_finds_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fits = {
        "created_at_gt": operator.gt,
        "created_at_gte": operator.ge,
        "created_at_lt": operator.lt,
        "created_at_lte": operator.le,
    }
    async with listed_world(tmp_path, monkeypatch) as it:
        await it.roost.rest({"id": it.ids["session_id"]})
        for name, fit in fits.items():
            for operation in lists_with(name):
                path = it.path(operation)
                whole = (await it.roost.get(path))["data"]
                at = when(whole[1])
                some = await it.roost.get(path, **{on_the_wire(name): at})
                wanted = [each for each in whole if fit(moment(when(each)), moment(at))]
                assert keys(some["data"]) == keys(wanted), (path, name)
                assert len(wanted) < len(whole) or name.endswith("e"), (path, name)


def when(item: Any) -> str:
    return str(item.get("created_at") or item["processed_at"])


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_models_are_found_by_their_lifecycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    three_models(monkeypatch)
    async with api_server(tmp_path) as roost:
        active = await roost.get("/v1/models", **{"lifecycle[]": ["active", "retired"]})
        assert len(active["data"]) == 3
        assert (await roost.get("/v1/models", lifecycle="retired"))["data"] == []


# The page


PAGE = "docs/fields.md"


def documented(heading: str) -> dict[str, set[str]]:
    """The fields of each resource, in a table of the page."""
    section = text(PAGE).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    return {cell[0].strip("`"): set(re.findall(r"`([^`]+)`", cell[1])) for cell in cells}


def listed(what: str) -> dict[str, set[str]]:
    """What the table of the tests has, as the page says it: `scope=account` where only that value is meant, and
    nothing of what is within another field of the list.
    """
    found: dict[str, set[str]] = {}
    for shape, name, place in walked(what):
        value = table()[shape].refused.get(name) if what == "refused" else None
        word = only_word(shape, telling(shape)[0]) if name == "*" else value
        field = place.path(telling(shape)[0] if name == "*" else name)
        shown = f"{field}={word}" if isinstance(word, str) else field
        found.setdefault(place.operation.name.partition(".")[0], set()).add(shown)
    return {
        resource: {field for field in fields if not any(is_within(field, each) for each in fields)}
        for resource, fields in found.items()
    }


def is_within(field: str, other: str) -> bool:
    return field.startswith((f"{other}.", f"{other}="))


@pytest.mark.parametrize(
    ("what", "heading"), [("refused", "Refused"), ("kept", "Kept and shown only")]
)
def test_the_page_lists_what_is_refused_and_what_is_kept(what: str, heading: str):
    assert documented(heading) == listed(what), f"{PAGE}, {heading}"
