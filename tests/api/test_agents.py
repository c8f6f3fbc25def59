"""Agents over HTTP: resolved, versioned, archived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from anthropic.types import beta
from tests.api.api_server import api_server, error_of, official

TOOLSET = {"type": "agent_toolset_20260401"}
CUSTOM = {
    "type": "custom",
    "name": "weather",
    "description": "Tells the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


async def test_an_agent_comes_back_with_every_default_filled_in(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        skill = await roost.skill()
        agent = await roost.agent(
            tools=[TOOLSET, CUSTOM], skills=[{"type": "custom", "skill_id": skill["id"]}]
        )
        official(beta.BetaManagedAgentsAgent, agent)
        assert agent["version"] == 1
        assert agent["model"] == {
            "id": "claude-x",
            "effort": {"type": "high"},
            "speed": "standard",
            "inference_geo": None,
        }
        assert agent["tools"][0] == {
            "type": "agent_toolset_20260401",
            "default_config": {"enabled": True, "permission_policy": {"type": "always_allow"}},
            "configs": [],
        }
        pinned = {"type": "custom", "skill_id": skill["id"], "version": skill["latest_version_id"]}
        assert agent["skills"] == [pinned]
        assert agent["execution_identity"] == {"type": "service_account"}
        assert agent["multiagent"] is agent["description"] is agent["archived_at"] is None
        assert await roost.get(f"/v1/agents/{agent['id']}") == agent


async def test_a_tool_inherits_what_its_own_config_leaves_out(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent(
            tools=[
                {
                    **TOOLSET,
                    "default_config": {"permission_policy": {"type": "always_ask"}},
                    "configs": [
                        {"name": "bash", "enabled": False},
                        {
                            "name": "web_fetch",
                            "url_sources": {"user_input": "all"},
                            "permission_policy": {"type": "auto"},
                        },
                    ],
                },
                {"type": "mcp_toolset", "mcp_server_name": "files"},
            ],
            mcp_servers=[{"type": "url", "name": "files", "url": "https://mcp.example.com/sse"}],
        )
        official(beta.BetaManagedAgentsAgent, agent)
        bash, fetch = agent["tools"][0]["configs"]
        assert bash == {
            "name": "bash",
            "type": "bash",
            "enabled": False,
            "permission_policy": {"type": "always_ask"},
        }
        assert fetch["enabled"]
        assert fetch["permission_policy"] == {"type": "auto"}
        assert fetch["url_sources"] == {"user_input": {"type": "all"}}
        assert agent["tools"][1]["default_config"]["permission_policy"] == {"type": "always_ask"}


async def test_an_update_makes_a_version_only_if_something_changes(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent(system="Be kind.", metadata={"a": "1", "b": "2"})
        path = f"/v1/agents/{agent['id']}"
        changed = await roost.post(path, {"system": None, "metadata": {"a": None, "c": "3"}})
        assert changed["version"] == 2
        assert changed["system"] is None
        assert changed["metadata"] == {"b": "2", "c": "3"}
        assert changed["name"] == "helper"
        assert (await roost.post(path, {"name": "helper"}))["version"] == 2
        assert (await roost.post(path))["version"] == 2
        assert (await roost.get(path, version=1))["system"] == "Be kind."
        versions = await roost.get(f"{path}/versions", limit=1)
        assert [v["version"] for v in versions["data"]] == [2]
        rest = await roost.get(f"{path}/versions", page=versions["next_page"])
        assert [v["version"] for v in rest["data"]] == [1]
        assert rest["next_page"] is None


async def test_effort_stays_with_the_model_it_was_chosen_for(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent(model={"id": "claude-x", "effort": "low", "speed": "fast"})
        path = f"/v1/agents/{agent['id']}"
        same = await roost.post(path, {"model": {"id": "claude-x"}})
        assert same["model"]["effort"] == {"type": "low"}
        assert same["model"]["speed"] == "standard"
        other = await roost.post(path, {"model": "claude-y"})
        assert other["model"]["effort"] == {"type": "high"}
        own = await roost.post(path, {"model": {"id": "claude-y", "effort": {"type": "max"}}})
        assert own["model"]["effort"] == {"type": "max"}


async def test_a_stale_version_is_refused_and_not_worth_a_retry(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent()
        path = f"/v1/agents/{agent['id']}"
        await roost.post(path, {"name": "b", "version": 1})
        response = await roost.client.post(path, json={"name": "c", "version": 1})
        assert error_of(response, 409)["type"] == "conflict_error"
        assert response.headers["x-should-retry"] == "false"


async def test_an_archived_agent_is_hidden_and_cannot_be_changed(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent()
        path = f"/v1/agents/{agent['id']}"
        archived = await roost.post(f"{path}/archive")
        assert archived["archived_at"] is not None
        assert (await roost.post(f"{path}/archive"))["archived_at"] == archived["archived_at"]
        assert (await roost.get("/v1/agents"))["data"] == []
        assert len((await roost.get("/v1/agents", include_archived="true"))["data"]) == 1
        assert (
            "archived"
            in error_of(await roost.client.post(path, json={"name": "x"}), 400)["message"]
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "name: String should have at least 1 character"),
        ({"name": "x" * 257}, "name: String should have at most 256 characters"),
        ({"name": None}, "name: Input should be a valid string"),
        ({"model": {"effort": "low"}}, "model.id: Field required"),
        ({"model": {"id": "m", "effort": "extreme"}}, "model.effort: Input should be 'low',"),
        ({"system": "x" * 100_001}, "system: String should have at most 100000"),
        (
            {"metadata": {str(i): "" for i in range(17)}},
            "metadata: Dictionary should have at most 16",
        ),
        ({"metadata": {"k": 1}}, "metadata.k: Input should be a valid string"),
        ({"metadata": {"k" * 65: ""}}, "at most 64 characters"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k: String should have at most 512"),
        ({"colour": 1}, "colour: unknown field"),
        (
            {"multiagent": {"type": "coordinator", "agents": []}},
            "multiagent.type: sessions with several",
        ),
        ({"execution_identity": {"type": "aws_role", "role_arn": "arn"}}, "execution_identity:"),
        ({"tools": [TOOLSET] * 129}, "tools: List should have at most 128"),
        ({"tools": [TOOLSET, TOOLSET]}, "tools.1: 'agent_toolset_20260401' appears more than once"),
        ({"tools": [CUSTOM, CUSTOM]}, "tools.1: 'weather' appears more than once"),
        ({"tools": [{**CUSTOM, "name": "bash"}]}, "tools.0.name: 'bash' is the name of a built-in"),
        ({"tools": [{**CUSTOM, "name": "mcp__x"}]}, "tools.0.name: 'mcp__x' is the name"),
        ({"tools": [{**CUSTOM, "name": "a b"}]}, "tools.0.name: String should match pattern"),
        ({"tools": [{**CUSTOM, "description": ""}]}, "tools.0.description: String should have"),
        (
            {"tools": [{"type": "hammer"}]},
            "tools.0.type: Input should be 'agent_toolset_20260401',",
        ),
        ({"tools": [{**TOOLSET, "configs": [{"name": "sh"}]}]}, "tools.0.configs.0.name: Input"),
        (
            {"tools": [{**TOOLSET, "configs": [{"name": "bash"}, {"name": "bash"}]}]},
            "tools.0.configs.1.name: 'bash' appears more than once",
        ),
        (
            {
                "tools": [
                    {
                        **TOOLSET,
                        "configs": [
                            {
                                "name": "web_search",
                                "allowed_domains": ["a"],
                                "blocked_domains": ["b"],
                            }
                        ],
                    }
                ]
            },
            "tools.0.configs.0.blocked_domains: cannot be combined",
        ),
        (
            {
                "tools": [
                    {
                        **TOOLSET,
                        "configs": [{"name": "web_fetch", "url_sources": {"user_input": "none"}}],
                    }
                ]
            },
            "tools.0.configs.0.url_sources.user_input: only 'all' is served",
        ),
        (
            {
                "tools": [
                    {**TOOLSET, "configs": [{"name": "web_fetch", "blocked_domains": ["a", "b/c"]}]}
                ]
            },
            "tools.0.configs.0.blocked_domains.1: give a host",
        ),
        (
            {"mcp_servers": [{"type": "url", "name": "x", "url": "https://127.1/mcp"}]},
            "mcp_servers.0.url: the address has no host",
        ),
        (
            {"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]},
            "tools.0.mcp_server_name: no server in `mcp_servers` is named 'x'",
        ),
        (
            {"mcp_servers": [{"type": "url", "name": "x", "url": "https://a"}]},
            "mcp_servers.0: no `mcp_toolset` in `tools` uses 'x'",
        ),
        (
            {"skills": [{"type": "anthropic", "skill_id": "pdf"}]},
            "skills.0: 'pdf' is one of Anthropic's own skills",
        ),
        (
            {"skills": [{"type": "custom", "skill_id": "skill_1"}]},
            "skills.0.skill_id: skill skill_1 was not found",
        ),
    ],
)
async def test_what_is_wrong_with_an_agent_is_named(
    tmp_path: Path, fields: dict[str, Any], message: str
):
    async with api_server(tmp_path) as roost:
        body = {"name": "helper", "model": "m", **fields}
        error = error_of(await roost.client.post("/v1/agents", json=body), 400)
        assert error["type"] == "invalid_request_error"
        assert message in error["message"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string"}, "input_schema.type: Input should be 'object'"),
        ({"type": "object", "anyOf": []}, "input_schema.anyOf: not allowed at the top level"),
        ({"type": "object", "properties": {"a b": {}}}, "input_schema.properties: names are"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "`$ref` is not allowed"),
        ({"type": "object", "maximum": 10**30}, "does not fit into 64 bits"),
    ],
)
async def test_a_custom_tools_schema_keeps_to_the_rules(
    tmp_path: Path, schema: dict[str, Any], message: str
):
    async with api_server(tmp_path) as roost:
        body = {"name": "a", "model": "m", "tools": [{**CUSTOM, "input_schema": schema}]}
        error = error_of(await roost.client.post("/v1/agents", json=body), 400)
        assert message in error["message"]


async def test_a_schema_nested_without_end_is_refused(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        deep: Any = {}
        for _ in range(100):
            deep = {"properties": {"a": deep}}
        tool = {**CUSTOM, "input_schema": {"type": "object", **deep}}
        response = await roost.client.post(
            "/v1/agents", json={"name": "a", "model": "m", "tools": [tool]}
        )
        assert "levels deep" in error_of(response, 400)["message"]


async def test_metadata_stays_within_its_limit_across_updates(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        agent = await roost.agent(metadata={str(i): "x" for i in range(16)})
        path = f"/v1/agents/{agent['id']}"
        error = error_of(await roost.client.post(path, json={"metadata": {"more": "x"}}), 400)
        assert "metadata: at most 16 pairs" in error["message"]
        patched = await roost.post(path, {"metadata": {"more": "x", "0": None}})
        assert len(patched["metadata"]) == 16


async def test_agents_are_listed_newest_first_in_pages(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = [(await roost.agent(name=f"a{i}"))["id"] for i in range(5)]
        seen: list[str] = []
        page: dict[str, str] = {}
        while True:
            answer = await roost.get("/v1/agents", limit=2, **page)
            assert set(answer) == {"data", "next_page"}
            seen += [agent["id"] for agent in answer["data"]]
            if answer["next_page"] is None:
                break
            page = {"page": answer["next_page"]}
        assert seen == made[::-1]


async def test_an_agent_larger_than_every_session_should_carry_is_refused(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        tool = {"type": "custom", "name": "t", "description": "d" * 1_000_000}
        body = {"name": "a", "model": "m", "tools": [{**tool, "input_schema": {"type": "object"}}]}
        answer = await roost.client.post("/v1/agents", json=body)
        assert answer.status_code == 400
        assert "1,000,000 bytes" in answer.json()["error"]["message"]


DISABLED = {"type": "disabled"}
ENABLED = {"type": "enabled"}


@pytest.mark.parametrize(
    ("multiagent", "status"),
    [
        ({"subagents": DISABLED, "workflows": DISABLED, "advisor": DISABLED}, 200),
        ({"subagents": DISABLED, "workflows": DISABLED}, 200),
        ({"subagents": DISABLED}, 400),
        ({}, 400),
        ({"subagents": DISABLED, "workflows": {"type": "enabled"}}, 400),
        ({"workflows": DISABLED, "advisor": {"type": "enabled", "model": "m"}}, 400),
        ({"workflows": DISABLED, "subagents": {**ENABLED, "inline_agents": DISABLED}}, 400),
        ({"workflows": DISABLED, "subagents": {**ENABLED, "predefined_agents": ["agent_1"]}}, 400),
    ],
)
async def test_a_multiagent_of_disabled_members_is_one_agent(
    tmp_path: Path, multiagent: dict[str, Any], status: int
):
    async with api_server(tmp_path) as roost:
        given = {"type": "multiagent_20261001", **multiagent}
        body = {"name": "a", "model": "m", "multiagent": given}
        response = await roost.client.post("/v1/agents", json=body)
        assert response.status_code == status, response.text
        if status == 200:
            assert response.json()["multiagent"] is None
        else:
            assert response.json()["error"]["details"]["error_code"] == "field_not_served"


@pytest.mark.parametrize("subagents", [{}, {"subagents": ENABLED}])
async def test_an_agent_may_start_subagents_which_it_defines_itself(
    tmp_path: Path, subagents: dict[str, Any]
):
    """They are enabled unless they are disabled; workflows would be, too."""
    async with api_server(tmp_path) as roost:
        given = {"type": "multiagent_20261001", "workflows": DISABLED, **subagents}
        agent = await roost.agent(multiagent=given)
        official(beta.BetaManagedAgentsAgent, agent)
        assert agent["multiagent"] == {
            "type": "multiagent_20261001",
            "subagents": {**ENABLED, "inline_agents": ENABLED, "predefined_agents": []},
            "workflows": DISABLED,
            "advisor": DISABLED,
        }
        session = await roost.session(agent=agent["id"], harness="able")
        official(beta.BetaManagedAgentsSession, session)
        assert session["agent"]["multiagent"] == agent["multiagent"]
        place = {"agent": agent["id"], "environment_id": session["environment_id"]}
        refused = await roost.client.post("/v1/sessions", json={**place, "harness": "plain"})
        error = error_of(refused, 400)
        assert error["details"]["error_code"] == "harness_cannot"
        assert error["message"].startswith("agent.multiagent.subagents: ")
        path, kept = f"/v1/agents/{agent['id']}", {**given, "subagents": ENABLED}
        del kept["workflows"]  # what an update does not name stays
        same = await roost.post(path, {"version": 1, "multiagent": kept})
        assert same["multiagent"] == agent["multiagent"]
        off = {"type": "multiagent_20261001", "subagents": DISABLED}
        alone = await roost.post(path, {"version": same["version"], "multiagent": off})
        assert alone["multiagent"] is None
