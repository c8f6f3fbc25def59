"""Harnesses over HTTP: which there are, which one a session gets, and what is refused that one cannot do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict
from tests.api.api_server import ApiServer, api_server, error_of

from roost.core.sessions.harness_choice import HarnessChoice, KnownHarness
from roost.ports.harness_profile import Abilities, HarnessProfile
from roost.testing.fake_harness import ALL_ABILITIES

TOOLSET = {"type": "agent_toolset_20260401"}
ASKS = {"default_config": {"permission_policy": {"type": "always_ask"}}}
CUSTOM = {
    "type": "custom",
    "name": "lookup",
    "description": "Looks up.",
    "input_schema": {"type": "object"},
}
SERVER = {"type": "url", "name": "docs", "url": "https://docs.example.com/mcp"}
ALLOWED = {"default_config": {"permission_policy": {"type": "always_allow"}}}
MCP = {
    "mcp_servers": [SERVER],
    "tools": [{"type": "mcp_toolset", "mcp_server_name": "docs", **ALLOWED}],
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
NOTE = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hello"}}


def message(*blocks: Any) -> Any:
    return {"type": "user.message", "content": [*blocks, {"type": "text", "text": "Look."}]}


async def refused(roost: ApiServer, at: str, body: Any) -> Any:
    error = error_of(await roost.client.post(at, json=body), 400)
    assert error["details"]["error_code"] == "harness_cannot", error
    return error


async def made_with(roost: ApiServer, harness: str, **agent: Any) -> Any:
    """What a session is asked for, of an agent with these fields."""
    environment = await roost.environment(f"for {harness} {sorted(agent)}")
    made = await roost.agent(**agent)
    return {"agent": made["id"], "environment_id": environment["id"], "harness": harness}


async def test_every_harness_is_listed_with_what_it_can_do_and_why_it_is_not_there(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        known = roost.deps.services[HarnessChoice].known
        profile = HarnessProfile(abilities=ALL_ABILITIES, needs_sandbox=True, upstream="openai")
        assert isinstance(known, dict)
        known["gone"] = KnownHarness(
            name="gone", profile=profile, missing="the program is not installed", hint="Install it."
        )
        known["broken"] = KnownHarness(name="broken", profile=None, missing="it cannot be imported")
        async with await roost.user() as user:
            listed = (await user.get("/roost/v1/harnesses")).json()["data"]
        found = {each["name"]: each for each in listed}
        assert list(found) == ["scripted", "able", "plain", "gone", "broken"]
        assert found["able"] == {
            "type": "harness",
            "name": "able",
            "default": False,
            "available": True,
            "version": "fake",
            "unavailable": None,
            "needs_sandbox": False,
            "runs_tools": True,
            "upstream": "anthropic",
            "abilities": asdict(ALL_ABILITIES),
        }
        assert found["scripted"]["default"]
        assert found["plain"]["abilities"] == asdict(Abilities())
        assert (found["gone"]["available"], found["gone"]["version"]) == (False, None)
        assert found["gone"]["unavailable"] == {
            "message": "the program is not installed",
            "hint": "Install it.",
        }
        assert found["broken"]["abilities"] is None
        body = await made_with(roost, "gone")
        error = error_of(await roost.client.post("/v1/sessions", json=body), 400)
        assert (
            error["message"]
            == "harness: 'gone' is not available here: the program is not installed"
        )
        assert error["details"]["hint"] == "Install it. There is: able, plain, scripted."


@pytest.mark.parametrize(
    ("agent", "field", "why"),
    [
        ({"tools": [TOOLSET, CUSTOM]}, "agent.tools.1", "cannot call tools that a client"),
        ({"tools": [{**TOOLSET, **ASKS}]}, "agent.tools.0.permission_policy", "cannot ask"),
        (MCP, "agent.mcp_servers", "cannot use MCP servers"),
        ({"model": {"id": "claude-x", "effort": "low"}}, "agent.model.effort", "cannot be given"),
    ],
)
async def test_an_agent_that_its_harness_cannot_be_is_refused_by_name(
    tmp_path: Path, agent: Any, field: str, why: str
):
    async with api_server(tmp_path) as roost:
        body = await made_with(roost, "plain", **agent)
        error = await refused(roost, "/v1/sessions", body)
        assert error["message"].startswith(f"{field}: 'plain' agents {why}")
        assert "'able'" in error["details"]["hint"]
        await roost.post("/v1/sessions", {**body, "harness": "able"})


async def test_one_tool_that_asks_is_enough_and_one_that_is_off_is_not(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        asks = {"name": "bash", "permission_policy": {"type": "always_ask"}}
        body = await made_with(roost, "plain", tools=[{**TOOLSET, "configs": [asks]}])
        await refused(roost, "/v1/sessions", body)
        off = {**TOOLSET, "configs": [{**asks, "enabled": False}]}
        await roost.post("/v1/sessions", await made_with(roost, "plain", tools=[off], system="x"))


async def test_tools_that_cannot_be_switched_off_are_not_said_to_be(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        known = roost.deps.services[HarnessChoice].known
        profile = HarnessProfile(
            abilities=Abilities(), needs_sandbox=False, upstream="anthropic", fixed_tools=True
        )
        assert isinstance(known, dict)
        known["fixed"] = KnownHarness(name="fixed", profile=profile, version="1")
        off = {**TOOLSET, "configs": [{"name": "bash", "enabled": False}]}
        none = {**TOOLSET, "default_config": {"enabled": False}}
        body = await made_with(roost, "fixed", tools=[TOOLSET])
        await roost.post("/v1/sessions", body)
        for tools in ([off], [none], []):
            agent = await roost.agent(tools=tools)
            error = await refused(roost, "/v1/sessions", {**body, "agent": agent["id"]})
            assert error["message"].startswith("agent.tools: 'fixed' agents have all their tools")


async def test_skills_and_tasks_need_a_harness_that_has_them(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        skill = await roost.skill()
        named = {"type": "custom", "skill_id": skill["id"]}
        body = await made_with(roost, "plain", tools=[TOOLSET], skills=[named])
        assert "agent.skills: " in (await refused(roost, "/v1/sessions", body))["message"]
        task = await roost.post("/roost/v1/tasks", {"title": "Do it"})
        body = {**await made_with(roost, "plain"), "task_id": task["id"]}
        assert "task_id: " in (await refused(roost, "/v1/sessions", body))["message"]


async def test_tools_that_an_update_brings_are_checked_too(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.post("/v1/sessions", await made_with(roost, "plain"))
        at = f"/v1/sessions/{session['id']}"
        error = await refused(roost, at, {"agent": {"tools": [CUSTOM]}})
        assert error["message"].startswith("agent.tools.0: ")
        assert (await roost.get(at))["agent"]["tools"] == []


@pytest.mark.parametrize(("block", "why"), [(IMAGE, "see images"), (NOTE, "read documents")])
async def test_what_an_agent_cannot_look_at_is_refused_where_it_is_sent(
    tmp_path: Path, block: Any, why: str
):
    async with api_server(tmp_path) as roost:
        body = await made_with(roost, "plain")
        session = await roost.post("/v1/sessions", body)
        at = f"/v1/sessions/{session['id']}/events"
        error = await refused(roost, at, {"events": [message(block)]})
        assert error["message"] == f"events.0.content.0: 'plain' agents cannot {why} in messages"
        assert (await roost.get(at))["data"] == []
        first = {**body, "initial_events": [message(), message(block)]}
        error = await refused(roost, "/v1/sessions", first)
        assert error["message"].startswith("initial_events.1.content.0: ")
        await roost.post("/v1/sessions", {**first, "harness": "able"})


async def test_words_about_images_are_no_images(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.post("/v1/sessions", await made_with(roost, "plain"))
        await roost.say(session, '{"type": "image"} and a "document"')


async def test_a_session_whose_harness_cannot_go_back_is_not_forked_and_not_rewound(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.post("/v1/sessions", await made_with(roost, "plain"))
        await roost.say(session, "first")
        await roost.rest(session)
        at = f"/roost/v1/sessions/{session['id']}"
        assert "cannot be forked" in (await refused(roost, f"{at}/fork", {"at": 1}))["message"]
        assert "cannot be rewound" in (await refused(roost, f"{at}/rewind", {"to": 1}))["message"]


async def test_vaults_that_nothing_could_use_are_refused(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        vault = await roost.post("/v1/vaults", {"display_name": "mine"})
        body = {**await made_with(roost, "scripted"), "vault_ids": [vault["id"]]}
        error = await refused(roost, "/v1/sessions", body)
        assert error["message"].startswith("vault_ids.0: 'scripted' agents have no sandbox")
        await roost.post("/v1/sessions", {**body, "harness": "able"})


async def test_the_sessions_word_counts_before_its_agents_and_that_before_the_operators(
    tmp_path: Path,
):
    async with api_server(tmp_path) as roost:
        names = await roost.agent(metadata={"roost.harness": "able"})
        assert (await roost.session())["harness"] == "scripted"
        assert (await roost.session(agent=names["id"]))["harness"] == "able"
        assert (await roost.session(agent=names["id"], harness="plain"))["harness"] == "plain"
        noted = {"roost.harness": "plain"}
        assert (await roost.session(agent=names["id"], metadata=noted))["harness"] == "plain"
        lost = await roost.agent(metadata={"roost.harness": "lost"})
        body = {**await made_with(roost, "x"), "agent": lost["id"]}
        del body["harness"]
        error = error_of(await roost.client.post("/v1/sessions", json=body), 400)
        assert error["message"] == "agent.metadata.roost.harness: 'lost' is not available here"


async def test_a_key_of_ours_that_means_nothing_is_refused_in_an_agents_metadata(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        body = {"name": "x", "model": "claude-x", "metadata": {"roost.harnes": "able"}}
        error = error_of(await roost.client.post("/v1/agents", json=body), 400)
        assert error["message"] == "metadata.roost.harnes: unknown; `roost.` is reserved"
        agent = await roost.agent()
        at = f"/v1/agents/{agent['id']}"
        error_of(await roost.client.post(at, json={"metadata": {"roost.x": "y"}}), 400)


async def test_the_key_of_a_vault_is_for_one_engine(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        vault = await roost.post(
            "/v1/vaults",
            {"display_name": "m", "metadata": {"roost.role": "llm", "roost.engine": "able"}},
        )
        body = {**await made_with(roost, "able"), "vault_ids": [vault["id"]]}
        del body["harness"]
        assert (await roost.post("/v1/sessions", body))["harness"] == "able"
        plain = await roost.agent(metadata={"roost.harness": "plain"})
        other = {**body, "agent": plain["id"]}
        error = error_of(await roost.client.post("/v1/sessions", json=other), 400)
        said = "agent.metadata.roost.harness: 'plain' is not the engine of the LLM vault, 'able'"
        assert error["message"] == said
        assert (await roost.post("/v1/sessions", {**other, "harness": "able"}))["harness"] == "able"
