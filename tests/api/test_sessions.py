"""Sessions over HTTP: created, updated, listed, ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from anthropic.types import beta
from anthropic.types.beta.sessions import BetaManagedAgentsSessionThread
from tests.api.api_server import HEADERS, api_server, error_of, message, official
from tests.api.test_agents import CUSTOM, TOOLSET

from roost.core.sessions.lifecycle import Lifecycle


async def test_a_session_shows_all_that_it_runs_with(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent(tools=[TOOLSET])
        session = await roost.session(agent=agent["id"], title="First", metadata={"a": "1"})
        official(beta.BetaManagedAgentsSession, session)
        assert session["status"] == "idle"
        assert session["agent"]["version"] == 1
        assert session["agent"]["tools"] == agent["tools"]
        assert session["vault_ids"] == session["resources"] == session["outcome_evaluations"] == []
        assert session["trust_level"] == "sandboxed"
        assert session["harness"] == "scripted"
        assert session["mount_scope"] == "workspace"
        assert session["workspace"] is None
        again = await roost.get(f"/v1/sessions/{session['id']}")
        assert again["stats"]["duration_seconds"] >= 0
        del again["stats"], session["stats"]
        assert again == session


async def test_initial_events_make_it_run_at_once(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session(initial_events=[message("Hello"), message("And more")])
        assert session["status"] == "running"
        events = (await roost.get(f"/v1/sessions/{session['id']}/events"))["data"]
        assert [e["type"] for e in events][:3] == [
            "user.message",
            "user.message",
            "session.status_running",
        ]


async def test_a_session_keeps_its_version_of_the_agent(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent()
        await roost.post(f"/v1/agents/{agent['id']}", {"name": "second"})
        pinned = {"type": "agent", "id": agent["id"], "version": 1}
        assert (await roost.session(agent=pinned))["agent"]["name"] == "helper"
        assert (await roost.session(agent=agent["id"]))["agent"]["name"] == "second"
        unknown = {**pinned, "version": 9}
        environment = (await roost.get("/v1/environments"))["data"][0]
        response = await roost.client.post(
            "/v1/sessions", json={"agent": unknown, "environment_id": environment["id"]}
        )
        assert "version 9" in error_of(response, 404)["message"]


async def test_overrides_replace_inherit_or_clear(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent(
            system="Old", tools=[TOOLSET, CUSTOM], model={"id": "m", "effort": "low"}
        )
        base = {"type": "agent_with_overrides", "id": agent["id"]}
        made = await roost.session(
            agent={**base, "system": None, "tools": [], "model": {"id": "n", "effort": "max"}}
        )
        official(beta.BetaManagedAgentsSession, made)
        assert made["agent"]["id"] == agent["id"]
        assert made["agent"]["system"] is None
        assert made["agent"]["tools"] == []
        assert made["agent"]["model"]["id"] == "n"
        assert made["agent"]["model"]["effort"] == {"type": "high"}  # an override's is ignored
        inherits = await roost.session(agent=base, harness="able")
        assert inherits["agent"]["tools"] == agent["tools"]
        assert (await roost.get(f"/v1/agents/{agent['id']}"))["version"] == 1
        await roost.post(f"/v1/agents/{agent['id']}", {"system": "New"})
        servers = [{"type": "url", "name": "s", "url": "https://mcp.example/mcp"}]
        own = {
            "version": 1,
            "mcp_servers": servers,
            "tools": [TOOLSET, {"type": "mcp_toolset", "mcp_server_name": "s"}],
            "skills": [{"type": "custom", "skill_id": (await roost.skill())["id"]}],
        }
        other = (await roost.session(agent={**base, **own}, harness="able"))["agent"]
        assert (other["version"], other["system"], other["mcp_servers"]) == (1, "Old", servers)
        assert [tool["type"] for tool in other["tools"]] == [TOOLSET["type"], "mcp_toolset"]
        assert [skill["skill_id"] for skill in other["skills"]] == [own["skills"][0]["skill_id"]]


@pytest.mark.parametrize(
    ("overrides", "message", "code"),
    [
        ({"model": None}, "agent.model:", "agent_model_required"),
        ({"tools": None}, "agent.skills: skills need the `read` tool", "invalid_request"),
        ({"mcp_servers": None}, "agent.tools.1.mcp_server_name:", "invalid_request"),
    ],
)
async def test_an_override_cannot_take_away_what_is_needed(
    tmp_path: Path, overrides: dict[str, Any], message: str, code: str
):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent(
            tools=[TOOLSET, {"type": "mcp_toolset", "mcp_server_name": "x"}],
            mcp_servers=[{"type": "url", "name": "x", "url": "https://x.example"}],
            skills=[{"type": "custom", "skill_id": (await roost.skill())["id"]}],
        )
        if "tools" in overrides:
            overrides = {**overrides, "mcp_servers": None}
        environment = await roost.environment()
        body = {
            "agent": {"type": "agent_with_overrides", "id": agent["id"], **overrides},
            "environment_id": environment["id"],
        }
        error = error_of(await roost.client.post("/v1/sessions", json=body), 400)
        assert message in error["message"]
        assert error["details"]["error_code"] == code


@pytest.mark.parametrize(
    ("fields", "message", "code"),
    [
        ({"resources": [{"type": "file", "file_id": "f"}]}, "resources: they are shown", None),
        (
            {"budget": {"type": "limit", "max_list_cost": {"amount": "1", "currency": "USD"}}},
            "budget:",
            "model_not_budgetable",
        ),
        ({"workspace": "shared"}, "workspace: workspace 'shared' was not found", None),
        ({"harness": "claude"}, "harness: 'claude' is not available here", None),
        ({"mount_scope": "all"}, "mount_scope: Input should be 'workspace' or", None),
        ({"metadata": {"roost.trust_level": "root"}}, "metadata.roost.trust_level: Input", None),
        ({"metadata": {"roost.colour": "red"}}, "metadata.roost.colour: unknown", None),
        (
            {"metadata": {"roost.harness": "scripted"}, "harness": "acp"},
            "harness: differs from metadata.roost.harness",
            None,
        ),
        (
            {
                "initial_events": [
                    {
                        "type": "user.define_outcome",
                        "description": "d",
                        "rubric": {"type": "text", "content": "c"},
                    }
                ]
            },
            "initial_events.0.type: user.define_outcome is refused: outcomes are not served",
            None,
        ),
        (
            {"initial_events": [message("x")] * 51},
            "initial_events: List should have at most 50",
            None,
        ),
        ({"initial_events": [{"type": "user.interrupt"}]}, "initial_events.0.type: Input", None),
        ({"agent": {"type": "agent"}}, "agent.id: Field required", None),
        ({"agent": 5}, "agent: Input should be a valid string", None),
    ],
)
async def test_what_is_wrong_or_not_served_is_named(
    tmp_path: Path, fields: dict[str, Any], message: str, code: str | None
):
    async with api_server(tmp_path) as roost:
        agent, environment = await roost.agent(), await roost.environment()
        body = {"agent": agent["id"], "environment_id": environment["id"], **fields}
        error = error_of(await roost.client.post("/v1/sessions", json=body), 400)
        assert message in error["message"]
        if code:
            assert error["details"]["error_code"] == code


async def test_options_may_come_as_metadata(tmp_path: Path):
    async with api_server(tmp_path, trust_levels="sandboxed,vault") as roost:
        session = await roost.session(
            metadata={"roost.trust_level": "vault", "roost.mount_scope": "workspace+vault"}
        )
        assert session["trust_level"] == "vault"
        assert session["mount_scope"] == "workspace+vault"
        assert session["metadata"]["roost.trust_level"] == "vault"
        path = f"/v1/sessions/{session['id']}"
        error = error_of(
            await roost.client.post(path, json={"metadata": {"roost.trust_level": "full"}}), 400
        )
        assert "fixed when the session was created" in error["message"]


async def test_an_update_says_in_the_log_what_changed(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session(title="Old", metadata={"a": "1"}, harness="able")
        path = f"/v1/sessions/{session['id']}"
        changed = await roost.post(path, {"title": "New", "metadata": {"b": "2"}})
        official(beta.BetaManagedAgentsSession, changed)
        assert changed["title"] == "New"
        assert changed["metadata"] == {"a": "1", "b": "2"}
        await roost.post(path, {"title": "New"})  # nothing changes, nothing is said
        servers = [{"type": "url", "name": "s", "url": "https://mcp.example/mcp"}]
        tools = [TOOLSET, {"type": "mcp_toolset", "mcp_server_name": "s"}]
        await roost.post(path, {"agent": {"tools": tools, "mcp_servers": servers}})
        await roost.post(path, {"metadata": {"a": None, "b": None}})
        events = (await roost.get(f"{path}/events", **{"types[]": "session.updated"}))["data"]
        for event in events:
            official(beta.BetaManagedAgentsSessionUpdatedEvent, event)
        said = [set(e) - {"type", "id", "processed_at", "seq"} for e in events]
        assert said == [{"title", "metadata"}, {"agent"}, set()]
        assert events[1]["agent"]["tools"][0]["type"] == "agent_toolset_20260401"
        assert (await roost.get(path))["agent"]["mcp_servers"] == servers


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vault_ids": []}, "vault_ids: cannot be changed"),
        (
            {"budget": {"type": "limit", "max_list_cost": {"amount": "1", "currency": "USD"}}},
            "A budget cannot be added",
        ),
        ({"agent": {"system": "x"}}, "agent.system: unknown field"),
        ({"environment_id": "env_1"}, "environment_id: unknown field"),
    ],
)
async def test_some_things_are_fixed_at_creation(
    tmp_path: Path, fields: dict[str, Any], message: str
):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        response = await roost.client.post(f"/v1/sessions/{session['id']}", json=fields)
        assert message in error_of(response, 400)["message"]


async def test_a_running_session_is_not_retooled_archived_or_deleted(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session(initial_events=[message("Hello")])
        path = f"/v1/sessions/{session['id']}"
        for response in (
            await roost.client.post(path, json={"agent": {"tools": []}}),
            await roost.client.post(f"{path}/archive"),
            await roost.client.delete(path),
        ):
            assert error_of(response, 400)["details"]["error_code"] == "session_running"
        assert (await roost.post(path, {"title": "Still fine"}))["title"] == "Still fine"


async def test_an_archived_session_is_read_only(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}"
        archived = await roost.post(f"{path}/archive")
        official(beta.BetaManagedAgentsSession, archived)
        assert archived["status"] == "terminated"
        assert (await roost.post(f"{path}/archive"))["archived_at"] == archived["archived_at"]
        assert (await roost.get(f"{path}/events"))["data"][-1][
            "type"
        ] == "session.status_terminated"
        for response in (
            await roost.client.post(path, json={"title": "x"}),
            await roost.client.post(f"{path}/events", json={"events": [message("x")]}),
        ):
            assert error_of(response, 400)["details"]["error_code"] == "session_closed"
        assert (await roost.get("/v1/sessions"))["data"] == []
        assert len((await roost.get("/v1/sessions", include_archived="true"))["data"]) == 1


async def test_a_deleted_session_is_gone(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/sessions/{session['id']}"
        official(beta.BetaManagedAgentsDeletedSession, (await roost.client.delete(path)).json())
        for response in (
            await roost.client.get(path),
            await roost.client.delete(path),
            await roost.client.get(f"{path}/events"),
            await roost.client.get(f"{path}/events/stream"),
            await roost.client.get(f"{path}/threads"),
        ):
            assert error_of(response, 404)["type"] == "not_found_error"


async def test_another_tenants_things_do_not_exist(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        other = await roost.user("tenant_2")
        for kind, thing in (
            ("sessions", session["id"]),
            ("agents", session["agent"]["id"]),
            ("environments", session["environment_id"]),
        ):
            path = f"/v1/{kind}/{thing}"
            for response in (
                await other.get(path),
                await other.post(path, json={}),
                await other.post(f"{path}/archive"),
            ):
                assert error_of(response, 404)["type"] == "not_found_error"
            assert (await other.get(f"/v1/{kind}")).json()["data"] == []
        path = f"/v1/sessions/{session['id']}"
        error_of(await other.delete(path), 404)
        error_of(await other.get(f"{path}/events/stream"), 404)
        error_of(await other.post(f"{path}/events", json={"events": [message("x")]}), 404)
        body = {"agent": session["agent"]["id"], "environment_id": session["environment_id"]}
        error_of(await other.post("/v1/sessions", json=body), 404)


async def test_pages_of_sessions_go_both_ways(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        first = await roost.session()
        again = {"agent": first["agent"]["id"], "environment_id": first["environment_id"]}
        made = [first["id"], *[(await roost.session(**again))["id"] for _ in range(4)]]

        async def page(**params: Any) -> tuple[list[str], Any, Any]:
            answer = await roost.get("/v1/sessions", limit=2, **params)
            return [s["id"] for s in answer["data"]], answer["prev_page"], answer["next_page"]

        one, before, after = await page()
        assert (one, before) == ([made[4], made[3]], None)
        two, before_two, after_two = await page(page=after)
        assert two == [made[2], made[1]]
        three, before_three, end = await page(page=after_two)
        assert (three, end) == ([made[0]], None)
        assert (await page(page=before_three))[0] == two
        back, start, onward = await page(page=before_two)
        assert (back, start) == (one, None)
        assert (await page(page=onward))[0] == two
        assert (await page(order="asc"))[0] == made[:2]


async def test_sessions_are_found_by_what_they_have(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent()
        await roost.post(f"/v1/agents/{agent['id']}", {"name": "v2"})
        idle = await roost.session()
        busy = await roost.session(agent=agent["id"], initial_events=[message("x")])

        async def ids(**params: Any) -> list[str]:
            return [s["id"] for s in (await roost.get("/v1/sessions", **params))["data"]]

        assert await ids(**{"statuses[]": "running"}) == [busy["id"]]
        assert await ids(statuses=["running", "idle"]) == [busy["id"], idle["id"]]
        assert await ids(agent_id=agent["id"]) == [busy["id"]]
        assert await ids(agent_id=agent["id"], agent_version=1) == []
        assert await ids(agent_version=1) == [
            busy["id"],
            idle["id"],
        ]  # means nothing without an agent
        assert await ids(deployment_id="depl_1") == []
        assert await ids(memory_store_id="memstore_1") == []  # none has one
        assert await ids(**{"created_at[gt]": busy["created_at"]}) == []
        assert await ids(**{"created_at[gte]": busy["created_at"]}) == [busy["id"]]
        assert await ids(**{"created_at[lt]": busy["created_at"]}) == [idle["id"]]
        assert await ids(**{"created_at[lte]": idle["created_at"]}) == [idle["id"]]


async def test_a_cursor_belongs_to_its_listing(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        first = await roost.session()
        await roost.session()
        cursor = (await roost.get("/v1/sessions", limit=1))["next_page"]
        for params in (
            {"page": "nonsense"},
            {"page": "e30"},
            {"page": "\u00e9"},
            {"page": cursor[:-2]},
            {"page": cursor, "order": "asc"},
            {"page": cursor, "created_at[lt]": first["created_at"]},
        ):
            error = error_of(await roost.client.get("/v1/sessions", params=params), 400)
            assert error["message"].startswith("page: ")
        response = await roost.client.get("/v1/agents", params={"page": cursor})
        assert "another list" in error_of(response, 400)["message"]
        other = await roost.user("tenant_2")
        error_of(await other.get("/v1/sessions", params={"page": cursor}), 400)


async def test_the_primary_thread_is_the_session_as_a_thread(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session(initial_events=[message("x")])
        path = f"/v1/sessions/{session['id']}/threads"
        [thread] = (await roost.get(path))["data"]
        official(BetaManagedAgentsSessionThread, thread)
        assert thread["status"] == "running"
        assert thread["parent_thread_id"] is None
        assert "multiagent" not in thread["agent"]
        one = await roost.get(f"{path}/{thread['id']}")
        assert one["id"] == thread["id"]
        assert (await roost.get(path, **{"statuses[]": "idle"}))["data"] == []
        events = (await roost.get(f"{path}/{thread['id']}/events"))["data"]
        assert events == (await roost.get(f"/v1/sessions/{session['id']}/events"))["data"]
        named = [e for e in events if "session_thread_id" in e]
        assert named[0]["session_thread_id"] == thread["id"]
        error_of(await roost.client.get(f"{path}/sthr_other"), 404)
        error_of(await roost.client.get(f"{path}/sthr_other/stream"), 404)
        refused = error_of(await roost.client.post(f"{path}/{thread['id']}/archive"), 404)
        assert refused["details"]["error_code"] == "not_served"


async def test_a_session_made_again_with_its_key_is_the_same_one(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        body = {"agent": session["agent"]["id"], "environment_id": session["environment_id"]}
        headers = {**HEADERS, "Idempotency-Key": "k1"}
        first = await roost.post("/v1/sessions", body, headers=headers)
        again = await roost.post("/v1/sessions", body, headers=headers)
        assert again["id"] == first["id"]
        await roost.client.post(f"/v1/agents/{body['agent']}/archive")
        after = await roost.post("/v1/sessions", body, headers=headers)
        assert after["id"] == first["id"]  # although nobody could make it now
        response = await roost.client.post(
            "/v1/sessions", json={**body, "title": "other"}, headers=headers
        )
        error = error_of(response, 409)
        assert error["details"]["error_code"] == "idempotency_key_reused"
        assert response.headers["x-should-retry"] == "false"


async def test_a_key_on_a_request_that_is_wrong_does_no_harm(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        schema = {"type": "object", "maximum": 10**30}
        agent = {
            "type": "agent_with_overrides",
            "id": session["agent"]["id"],
            "tools": [{**CUSTOM, "input_schema": schema}],
        }
        body = {"agent": agent, "environment_id": session["environment_id"]}
        headers = {**HEADERS, "Idempotency-Key": "k"}
        response = await roost.client.post("/v1/sessions", json=body, headers=headers)
        assert "agent.tools.0.input_schema" in error_of(response, 400)["message"]
        body["agent"] = session["agent"]["id"]
        assert (await roost.post("/v1/sessions", body, headers=headers))["id"]


async def test_an_archived_agent_takes_no_new_sessions(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        agent = session["agent"]["id"]
        await roost.post(f"/v1/agents/{agent}/archive")
        for reference in (agent, {"type": "agent", "id": agent, "version": 1}):
            body = {"agent": reference, "environment_id": session["environment_id"]}
            error = error_of(await roost.client.post("/v1/sessions", json=body), 400)
            assert error["message"] == f"agent: agent {agent} is archived"


async def test_a_large_bound_of_sessions_is_counted_seldom_and_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.sessions.lifecycle._COUNTED", 2)
    async with api_server(tmp_path, max_sessions=200) as roost:
        asked: list[int | None] = []
        sessions = roost.deps.services[Lifecycle]._sessions
        create = sessions.create

        async def noted(*args: Any, max_sessions: int | None = None, **more: Any) -> Any:
            asked.append(max_sessions)
            bound = None if max_sessions is None else 4
            return await create(*args, max_sessions=bound, **more)

        monkeypatch.setattr(sessions, "create", noted)
        session = await roost.session()
        body = {"agent": session["agent"]["id"], "environment_id": session["environment_id"]}
        for status in (200, 200, 200, 429, 429):
            assert (await roost.client.post("/v1/sessions", json=body)).status_code == status
        assert asked == [200, None, 200, None, 200, 200]


async def test_a_tenant_has_only_as_many_sessions_as_allowed(tmp_path: Path):
    async with api_server(tmp_path, max_sessions=1) as roost:
        session = await roost.session()
        body = {"agent": session["agent"]["id"], "environment_id": session["environment_id"]}
        response = await roost.client.post("/v1/sessions", json=body)
        assert error_of(response, 429)["details"]["error_code"] == "quota_exceeded"
        assert response.headers["x-should-retry"] == "false"
        assert "retry-after" not in response.headers
        await roost.post(f"/v1/sessions/{session['id']}/archive")
        assert (await roost.client.post("/v1/sessions", json=body)).status_code == 200
