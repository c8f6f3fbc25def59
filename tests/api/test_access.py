"""Who may do what with a session, a file or a record: every operation, held to the tables of docs/trust.md.

The matrix is made from the table of operations: one that has a session in its path and no rule here fails.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.api.api_server import (
    TENANT,
    ApiServer,
    api_server,
    client_of,
    error_of,
    message,
    skill_files,
)
from tests.stores import Databases, Files

from roost.api.framework.routes import Operation
from roost.api.operations import OPERATIONS
from roost.ports.drafts import new_draft
from roost.ports.keys import Key

DOCS = Path(__file__).parents[2] / "docs" / "trust.md"

SESSION_RULES = {
    "sessions.retrieve": "see",
    "sessions.update": "tell",
    "sessions.delete": "end",
    "sessions.archive": "end",
    "sessions.events.send": "tell",
    "sessions.events.list": "see",
    "sessions.events.stream": "see",
    "sessions.threads.list": "see",
    "sessions.threads.retrieve": "see",
    "sessions.threads.events.list": "see",
    "sessions.threads.events.stream": "see",
    "sessions.resources.list": "see",
    "sessions.resources.retrieve": "see",
    "sessions.resources.add": "tell",
    "sessions.resources.update": "tell",
    "sessions.resources.delete": "tell",
    "roost.sessions.files.list": "tell",
    "roost.sessions.files.download": "tell",
    "roost.sessions.files.upload": "tell",
    "roost.sessions.files.delete": "tell",
    "roost.sessions.files.make_directory": "tell",
    "roost.sessions.tool_outputs.download": "tell",
    "roost.sessions.attachments.download": "see",
    "roost.sessions.turns": "see",
    "roost.sessions.fork": "tell",
    "roost.sessions.rewind": "tell",
    "roost.sessions.export": "tell",
}
"""What each operation does with the session in its path."""

BODIES: dict[str, Any] = {
    "sessions.update": {"title": "another"},
    "sessions.events.send": {"events": [message("hello")]},
    "sessions.resources.add": {"type": "file", "file_id": "file_none"},
    "sessions.resources.update": {"authorization_token": "token"},
    "roost.sessions.files.make_directory": {"path": "d"},
    "roost.sessions.rewind": {"to": 1},
}
QUERIES = {
    "roost.sessions.files.download": {"path": "a"},
    "roost.sessions.files.delete": {"path": "a"},
    "roost.sessions.tool_outputs.download": {"path": "a"},
}


def about_sessions() -> list[Operation]:
    return [each for each in OPERATIONS if each.served and "{session_id}" in each.path]


def one_of_each_act() -> list[Operation]:
    return list({SESSION_RULES[each.name]: each for each in about_sessions()}.values())


def test_every_operation_on_a_session_has_a_rule_and_the_docs_say_it():
    assert {each.name for each in about_sessions()} == SESSION_RULES.keys()
    text = DOCS.read_text()
    for act in ("see", "tell", "end"):
        [row] = re.findall(rf"^\| \*\*{act}\*\* \|(.*)$", text, re.MULTILINE)
        said = set(re.findall(r"`([a-z_.]+)`", row))
        assert said == {name for name, each in SESSION_RULES.items() if each == act}


@dataclass(frozen=True)
class Case:
    """A caller and a session. `shared`: what the caller may do in the named workspace it works in."""

    role: str
    sees: str
    ceiling: str
    own: bool
    trust: str
    shared: str | None

    def may(self, act: str) -> int:
        """The status that refuses it, 200 if nothing does: the rules, written down a second time."""
        admin = self.role == "admin"
        if self.shared is None:
            seen = admin or self.sees == "tenant" or self.own
        else:
            seen = admin or self.shared in ("read", "write")
        if not seen:
            return 404
        if act == "see" or (act == "end" and self.own):
            return 200
        if self.trust == "full" and self.ceiling != "full":
            return 403
        return 403 if not admin and self.shared == "read" else 200


SHARED = (None, "none", "read", "write")
LAST = {"sessions.archive": 1, "sessions.delete": 2}


def cases(shared: str | None) -> list[Case]:
    kinds = product(
        (("admin", "tenant"), ("user", "tenant"), ("user", "own")),
        ("sandboxed", "full"),
        (True, False),
        ("sandboxed", "full"),
    )
    return [Case(role, sees, *rest, shared) for (role, sees), *rest in kinds]


class Scene:
    """A server, and the sessions and keys of cases."""

    def __init__(self, roost: ApiServer, agent: str, environment: str) -> None:
        self.roost = roost
        self._refs = {"agent": agent, "environment_id": environment}
        self._workspaces = 0

    @asynccontextmanager
    async def caller(self, case: Case) -> AsyncGenerator[tuple[Key, httpx2.AsyncClient]]:
        fields: Any = {"role": case.role, "sees": case.sees, "trust_ceiling": case.ceiling}
        key, secret = await self.roost.keyring.create(tenant=TENANT, name="x", **fields)
        async with client_of(self.roost.app, secret) as client:
            yield key, client

    async def session(self, case: Case, key: Key) -> Any:
        fields: dict[str, Any] = {**self._refs, "trust_level": case.trust}
        if case.shared is not None:
            self._workspaces += 1
            settings = {"trust_levels": ["sandboxed", "full"]}
            body = {"name": f"w{self._workspaces}", "settings": settings}
            made = await self.roost.post("/roost/v1/workspaces", body)
            fields["workspace"] = made["id"]
            at = f"/roost/v1/workspaces/{made['id']}/permissions"
            await self.roost.post(at, {"key_id": key.id, "access": case.shared})
        session = await self.roost.session(**fields)
        if case.own:  # as if its key had had more trust, or more of the workspace, when it made it
            rows = self.roost.store.sessions
            found = await rows.get(TENANT, session["id"])
            await give(self.roost, found.id, key.principal)
        return session


async def give(roost: ApiServer, session_id: str, principal: str) -> None:
    from msgspec.structs import replace

    from roost.ports.sessions import Revised

    def given(now: Any) -> Revised:
        return Revised(replace(now.spec, created_by=principal), [new_draft("session.updated")])

    await roost.store.sessions.revise(TENANT, session_id, given)


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncGenerator[Scene]:
    async with api_server(
        tmp_path, trust_levels="sandboxed,vault,full", writes_per_minute=0, reads_per_minute=0
    ) as roost:
        agent, place = await roost.agent(), await roost.environment()
        yield Scene(roost, agent["id"], place["id"])


def request(operation: Operation, session: Any) -> dict[str, Any]:
    ids = {"thread_id": "sthr_none", "resource_id": "sesrsc_none", "file_id": "file_none"}
    asked: dict[str, Any] = {
        "method": operation.method,
        "url": operation.path.format(session_id=session["id"], **ids),
        "params": QUERIES.get(operation.name),
    }
    if operation.uploads is not None:
        asked["files"] = [("files[]", ("b", b"2"))]
    elif operation.method == "POST":
        asked["json"] = BODIES.get(operation.name, {})
    return asked


def refused(response: httpx2.Response, session: Any) -> int:
    """The status if it is about who asks, else 200: whatever else may be wrong with the request."""
    if response.status_code == 403:
        return 403
    absent = f"session {session['id']} was not found"
    if response.status_code == 404 and response.json()["error"]["message"] == absent:
        return 404
    return 200


@pytest.mark.parametrize("shared", SHARED)
async def test_every_operation_on_a_session_follows_the_one_rule(
    tmp_path: Path, shared: str | None, databases: Databases
):
    """What a store has to do with it are the listing, and who made what: there, one of each act is enough."""
    everything = isinstance(databases, Files)
    asked = about_sessions() if everything else one_of_each_act()
    async with scene(tmp_path) as here:
        for case in cases(shared):
            async with here.caller(case) as (key, client):
                session = await here.session(case, key)
                await check_listing(client, session, case)
                await check_operations(here.roost, client, session, case, asked)
                await here.roost.client.delete(f"/v1/sessions/{session['id']}")


async def check_listing(client: httpx2.AsyncClient, session: Any, case: Case) -> None:
    shown = [each["id"] for each in (await client.get("/v1/sessions")).json()["data"]]
    assert (session["id"] in shown) == (case.may("see") == 200), case


async def check_operations(
    roost: ApiServer,
    client: httpx2.AsyncClient,
    session: Any,
    case: Case,
    operations: Sequence[Operation],
) -> None:
    """Those that end it come last; streams would go on: they are asked for in vain."""
    for operation in sorted(operations, key=lambda each: LAST.get(each.name, 0)):
        asked = request(operation, session)
        if operation.form == "stream":
            asked["headers"] = {"last-event-id": "999999"}
        response = await client.request(**asked)
        expected = case.may(SESSION_RULES[operation.name])
        assert refused(response, session) == expected, (case, operation.name, response.text)
        if operation.name == "sessions.events.send" and expected == 200:
            await roost.rest(session)
        if operation.name in LAST and expected == 200:
            assert response.status_code == 200, response.text


async def test_a_session_of_a_deleted_workspace_is_its_makers(tmp_path: Path):
    async with scene(tmp_path) as here:
        case = Case("user", "own", "sandboxed", True, "sandboxed", "write")
        async with here.caller(case) as (key, mine), here.caller(case) as (_, other):
            session = await here.session(case, key)
            at = f"/roost/v1/workspaces/{session['workspace']}"
            await here.roost.client.delete(at, params={"force": True})
            assert [each["id"] for each in (await mine.get("/v1/sessions")).json()["data"]] == [
                session["id"]
            ]
            assert (await other.get("/v1/sessions")).json()["data"] == []
            error_of(await other.get(f"/v1/sessions/{session['id']}"), 404)


async def test_pages_of_a_users_sessions_have_no_gaps(tmp_path: Path):
    async with scene(tmp_path) as here:
        case = Case("user", "own", "sandboxed", True, "sandboxed", None)
        async with here.caller(case) as (key, client):
            made = []
            for own in (True, False, False, True, False, True):
                session = await here.session(case, key)
                if own:
                    made.insert(0, session["id"])
                else:
                    await give(here.roost, session["id"], "another")
            found, page = [], None
            while True:
                params = {"limit": 2} | ({"page": page} if page else {})
                answer = (await client.get("/v1/sessions", params=params)).json()
                found += [each["id"] for each in answer["data"]]
                if not (page := answer["next_page"]):
                    break
            assert found == made


# Keys


async def test_a_new_user_key_sees_its_own_and_one_from_before_sees_the_tenant(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await roost.post("/roost/v1/keys", {"name": "me"})
        assert made["sees"] == "own"
        assert (await roost.post("/roost/v1/keys", {"name": "all", "sees": "tenant"}))[
            "sees"
        ] == "tenant"
        assert (await roost.post("/roost/v1/keys", {"name": "a", "role": "admin"}))[
            "sees"
        ] == "tenant"
        changed = await roost.post(f"/roost/v1/keys/{made['id']}", {"sees": "tenant"})
        assert changed["sees"] == "tenant"
    fields: Any = {"name": "old", "role": "user", "hint": "", "trust_ceiling": "sandboxed"}
    from roost.stores.sql.keys import key_of
    from roost.stores.sql.rows import encode

    assert key_of(("key_1", TENANT, b"", 0, None, encode(fields))).sees == "tenant"


async def test_a_key_that_replaces_another_has_what_is_that_ones(tmp_path: Path):
    async with api_server(tmp_path, trust_levels="sandboxed,vault") as roost:
        body = {"name": "me", "trust_ceiling": "vault", "limits": {"max_sessions": 7}}
        old = await roost.post("/roost/v1/keys", body)
        refs = {"agent": (await roost.agent())["id"]}
        refs["environment_id"] = (await roost.environment())["id"]
        async with client_of(roost.app, old["secret"]) as client:
            session = (await client.post("/v1/sessions", json=refs)).json()
            assert session["created_by"] == old["id"]
            workspace = (await client.post("/roost/v1/workspaces", json={"name": "w"})).json()
            file = (await client.post("/v1/files", files={"file": ("a", b"1")})).json()
        await roost.client.delete(f"/roost/v1/keys/{old['id']}")
        new = await roost.post("/roost/v1/keys", {"replaces": old["id"]})
        newest = await roost.post("/roost/v1/keys", {"replaces": new["id"], "name": "again"})
        for key in (new, newest):
            assert (key["principal"], key["trust_ceiling"]) == (old["id"], "vault")
            assert key["limits"]["max_sessions"] == 7
            async with client_of(roost.app, key["secret"]) as client:
                for path in (
                    f"/v1/sessions/{session['id']}",
                    f"/roost/v1/workspaces/{workspace['id']}",
                    f"/v1/files/{file['id']}",
                ):
                    assert (await client.get(path)).status_code == 200
        wrong = {"replaces": old["id"], "tenant": "tenant_2"}
        assert (
            "tenant"
            in error_of(await roost.client.post("/roost/v1/keys", json=wrong), 400)["message"]
        )
        error_of(await roost.client.post("/roost/v1/keys", json={"replaces": "key_none"}), 404)
        error_of(await roost.client.post("/roost/v1/keys", json={}), 400)


async def test_a_repeated_request_does_not_show_another_keys_session(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        body = {"agent": (await roost.agent())["id"]}
        body["environment_id"] = (await roost.environment())["id"]
        async with await roost.user() as one, await roost.user() as other:
            headers = {"idempotency-key": "k"}
            first = await one.post("/v1/sessions", json=body, headers=headers)
            again = await one.post("/v1/sessions", json=body, headers=headers)
            assert again.json()["id"] == first.json()["id"]
            error_of(await other.post("/v1/sessions", json=body, headers=headers), 409)


# Files


async def test_files_are_their_uploaders_and_no_way_leads_to_anothers(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        refs = {"agent": (await roost.agent())["id"]}
        refs["environment_id"] = (await roost.environment())["id"]
        async with await roost.user() as one, await roost.user() as other:
            file = (await one.post("/v1/files", files={"file": ("a.txt", b"secret")})).json()
            at = f"/v1/files/{file['id']}"
            source = {"type": "file", "file_id": file["id"]}
            told = message("read")
            told["content"].append({"type": "document", "source": source})
            session = (await other.post("/v1/sessions", json=refs)).json()
            for answer in (
                await other.get(at),
                await other.get(f"{at}/content"),
                await other.delete(at),
                await other.post("/v1/sessions", json={**refs, "initial_events": [told]}),
                await other.post(f"/v1/sessions/{session['id']}/events", json={"events": [told]}),
            ):
                error_of(answer, 404)
            assert (await other.get("/v1/files")).json()["data"] == []
            assert (await other.get("/v1/files", params={"ids[]": file["id"]})).json()["data"] == []
            assert [each["id"] for each in (await one.get("/v1/files")).json()["data"]] == [
                file["id"]
            ]
            theirs = await one.post("/v1/sessions", json={**refs, "initial_events": [told]})
            scope = {"scope_id": theirs.json()["id"]}
            [copy] = (await one.get("/v1/files", params=scope)).json()["data"]
            assert (await other.get("/v1/files", params=scope)).json()["data"] == []
            error_of(await other.get(f"/v1/files/{copy['id']}"), 404)
            assert len((await roost.get("/v1/files"))["data"]) == 2
            assert (await one.delete(at)).status_code == 200


# Agents, environments, skills, tasks


async def made_by(client: httpx2.AsyncClient) -> dict[str, str]:
    agent = await client.post("/v1/agents", json={"name": "a", "model": "claude-x"})
    place = await client.post("/v1/environments", json={"name": "theirs"})
    skill = await client.post("/v1/skills", files=skill_files("greeting"))
    task = await client.post("/roost/v1/tasks", json={"title": "Do it"})
    names = "agent", "environment", "skill", "task"
    return {n: r.json()["id"] for n, r in zip(names, (agent, place, skill, task), strict=True)}


def changes(made: dict[str, str]) -> list[dict[str, Any]]:
    skill = f"/v1/skills/{made['skill']}"
    return [
        {"method": "POST", "url": f"/v1/agents/{made['agent']}", "json": {"version": 1}},
        {"method": "POST", "url": f"/v1/agents/{made['agent']}/archive", "json": {}},
        {"method": "POST", "url": f"/v1/environments/{made['environment']}", "json": {}},
        {"method": "POST", "url": f"/v1/environments/{made['environment']}/archive", "json": {}},
        {"method": "DELETE", "url": f"/v1/environments/{made['environment']}"},
        {"method": "POST", "url": f"{skill}/versions", "files": skill_files("greeting")},
        {"method": "DELETE", "url": f"{skill}/versions/latest"},
        {"method": "DELETE", "url": skill},
    ]


async def test_what_others_made_is_read_and_used_and_not_changed(tmp_path: Path):
    async with (
        api_server(tmp_path) as roost,
        await roost.user() as owner,
        await roost.user() as other,
    ):
        made = await made_by(owner)
        for path in ("agents", "environments", "skills"):
            got = await other.get(f"/v1/{path}/{made[path[:-1]]}")
            assert got.status_code == 200
            assert len((await other.get(f"/v1/{path}")).json()["data"]) == 1
        for change in changes(made):
            error = error_of(await other.request(**change), 403)
            assert error["details"]["error_code"] == "not_the_owner", change
        task = f"/roost/v1/tasks/{made['task']}"
        for answer in (
            await other.get(task),
            await other.post(task, json={"title": "x"}),
            await other.delete(task),
            await other.post(f"{task}/runs", json={}),
            await other.get(f"{task}/runs"),
        ):
            error_of(answer, 404)
        assert (await other.get("/roost/v1/tasks")).json()["data"] == []
        async with await roost.user(sees="tenant") as wide:
            assert (await wide.get(task)).status_code == 200
            error_of(await wide.post(task, json={"title": "x"}), 403)
            error_of(await wide.request(**changes(made)[0]), 403)
        for change in changes(made):
            assert (await owner.request(**change)).status_code == 200, change
        assert (await roost.client.delete(task)).status_code == 200


async def test_what_was_made_before_owners_were_noted_is_for_keys_that_see_the_tenant(
    tmp_path: Path,
):
    async with api_server(tmp_path) as roost:
        body = {"name": "old", "description": "", "config": {}, "metadata": {}, "scope": None}
        await roost.store.catalog.add("environment", TENANT, "env_old", body, unique_name=False)
        async with await roost.user() as own, await roost.user(sees="tenant") as wide:
            at = "/v1/environments/env_old/archive"
            error_of(await own.post(at, json={}), 403)
            assert (await wide.post(at, json={})).status_code == 200


# Whoever writes what a session is made from


async def test_a_session_has_no_more_trust_than_whoever_wrote_what_it_is_made_from(
    tmp_path: Path,
):
    async with api_server(tmp_path, trust_levels="sandboxed,full") as roost:
        ours = {"agent": (await roost.agent())["id"]}
        ours["environment_id"] = (await roost.environment())["id"]
        ours["task_id"] = (await roost.post("/roost/v1/tasks", {"title": "t"}))["id"]
        async with await roost.user() as low:
            theirs = await made_by(low)
        paths = {
            "agent": f"/v1/agents/{theirs['agent']}",
            "environment_id": f"/v1/environments/{theirs['environment']}",
            "task_id": f"/roost/v1/tasks/{theirs['task']}",
        }
        for field, path in paths.items():
            body = {**ours, field: path.rsplit("/", 1)[1]}
            await roost.post("/v1/sessions", body)
            trusted = {**body, "trust_level": "full"}
            error = error_of(await roost.client.post("/v1/sessions", json=trusted), 403)
            assert error["details"]["error_code"] == "author_not_trusted"
            assert error["message"].startswith(f"{field}: ")
            assert "save it again" in error["details"]["hint"]
            before = await roost.get(path)
            await roost.post(path, {"version": before["version"]} if field == "agent" else {})
            assert (await roost.post("/v1/sessions", trusted))["trust_level"] == "full"


async def test_an_owner_that_writes_again_takes_the_trust_away_again(tmp_path: Path):
    async with api_server(tmp_path, trust_levels="sandboxed,full") as roost:
        environment = (await roost.environment())["id"]
        async with await roost.user() as low:
            agent = (await low.post("/v1/agents", json={"name": "a", "model": "m"})).json()
            await roost.post(f"/v1/agents/{agent['id']}", {"version": 1})
            changed = {"version": 2, "system": "rm -rf /"}
            assert (await low.post(f"/v1/agents/{agent['id']}", json=changed)).status_code == 200
        body = {"environment_id": environment, "trust_level": "full"}
        asked = {**body, "agent": agent["id"]}
        error_of(await roost.client.post("/v1/sessions", json=asked), 403)
        reviewed = {"type": "agent", "id": agent["id"], "version": 2}
        await roost.post("/v1/sessions", {**body, "agent": reviewed})


async def test_no_token_for_a_socket_opens_a_session_that_is_not_to_be_seen(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        params = {"sessionId": session["id"]}
        async with await roost.user() as own, await roost.user(sees="tenant") as wide:
            error_of(await own.get("/auth/ws-token", params=params), 403)
            assert (await wide.get("/auth/ws-token", params=params)).status_code == 200
