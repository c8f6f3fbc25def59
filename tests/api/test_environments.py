"""Environments over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import beta
from tests.api.api_server import api_server, error_of, official

from roost.domain import environment
from roost.errors import InvalidRequest, SandboxUnavailable
from roost.testing.bare_sandboxes import NoPackages

LIMITED = {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": ["*.example.com"]}}


async def test_an_environment_without_a_config_is_an_unrestricted_cloud_one(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await roost.environment(metadata={"a": "1"})
        official(beta.BetaEnvironment, made)
        assert made["scope"] == "organization"
        assert made["config"] == {
            "type": "cloud",
            "networking": {"type": "unrestricted"},
            "packages": {
                "type": "packages",
                **{manager: [] for manager in ("apt", "cargo", "gem", "go", "npm", "pip")},
            },
        }
        assert await roost.get(f"/v1/environments/{made['id']}") == made
        assert (await roost.get("/v1/environments"))["data"] == [made]


async def test_an_update_keeps_what_it_does_not_name(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        config = {
            **LIMITED,
            "networking": {**LIMITED["networking"], "allow_package_managers": True},
        }
        made = await roost.environment(config={**config, "packages": {"pip": []}})
        path = f"/v1/environments/{made['id']}"
        changed = await roost.post(
            path,
            {
                "description": "",
                "config": {
                    "type": "cloud",
                    "networking": {"type": "limited", "allow_mcp_servers": True},
                    "packages": {"npm": []},
                },
                "metadata": {"a": "1"},
            },
        )
        official(beta.BetaEnvironment, changed)
        assert changed["description"] == ""
        assert changed["config"]["networking"] == {
            "type": "limited",
            "allowed_hosts": ["*.example.com"],
            "allow_mcp_servers": True,
            "allow_package_managers": True,
        }
        assert changed["config"]["packages"] == made["config"]["packages"]
        renamed = await roost.post(path, {"name": "flat", "scope": "organization"})
        assert (renamed["name"], renamed["scope"]) == ("flat", "organization")
        assert renamed["config"] == changed["config"]
        open_again = {"type": "cloud", "networking": {"type": "unrestricted"}}
        opened = await roost.post(path, {"name": "home", "config": open_again})
        assert opened["config"]["networking"] == {"type": "unrestricted"}
        cleared = await roost.post(path, {"metadata": {"a": ""}, "name": None, "config": None})
        assert cleared["metadata"] == {}
        assert cleared["name"] == "home"


@pytest.mark.parametrize(
    ("fields", "message", "code"),
    [
        (
            {"config": {"type": "moon"}},
            "config.type: Input should be 'cloud' or 'self_hosted'",
            None,
        ),
        ({"scope": "account"}, "scope: only 'organization' is served", "field_not_served"),
        (
            {"config": {"type": "cloud", "packages": {"pip": ["rich"]}}},
            "config.packages.pip: packages are not installed",
            "field_not_served",
        ),
        (
            {"config": {**LIMITED, "packages": {"pip": ["rich"]}}},
            "config.packages.pip: packages need `allow_package_managers`",
            None,
        ),
        (
            {"config": {"type": "cloud", "packages": {"npm": ["a", "--b"]}}},
            "config.packages.npm.1: a package is named in one word",
            None,
        ),
        (
            {
                "config": {
                    "type": "cloud",
                    "networking": {"type": "limited", "allowed_hosts": ["a:80"]},
                }
            },
            "config.networking.allowed_hosts.0: give a host",
            None,
        ),
        ({"config": {"type": "self_hosted", "x": 1}}, "config.x: unknown field", None),
        ({"name": "home"}, "named 'home'", "conflict"),
    ],
)
async def test_what_is_wrong_with_an_environment_is_named(
    tmp_path: Path, fields: dict[str, Any], message: str, code: str | None
):
    async with api_server(tmp_path) as roost:
        await roost.environment()
        response = await roost.client.post("/v1/environments", json={"name": "b", **fields})
        error = error_of(response, 409 if code == "conflict" else 400)
        assert message in error["message"]


async def test_packages_that_nobody_can_look_for_now_are_refused_until_later_and_only_if_they_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def passes(*_: object) -> None:
        pass

    async def fails(*_: object) -> None:
        raise SandboxUnavailable("the engine does not answer")

    async with api_server(tmp_path) as roost:
        monkeypatch.setattr(NoPackages, "check", passes)
        wanted = {"type": "cloud", "packages": {"pip": ["rich"]}}
        made = await roost.environment(config=wanted)
        path = f"/v1/environments/{made['id']}"
        monkeypatch.setattr(NoPackages, "check", fails)
        same = await roost.post(path, {"name": "other", "config": wanted})
        assert (same["name"], same["config"]) == ("other", made["config"])
        for change in (
            {"config": {"type": "cloud", "packages": {"npm": ["a"]}}},
            {"metadata": {"roost.image": "node"}},
        ):
            response = await roost.client.post(path, json=change)
            assert "does not answer" in error_of(response, 503)["message"]
        response = await roost.client.post("/v1/environments", json={"name": "b", "config": wanted})
        assert "does not answer" in error_of(response, 503)["message"]


async def test_a_host_that_could_never_be_allowed_is_refused_with_a_hint(tmp_path: Path):
    odd = ("", "*", "a b", "a\n", "https://a", "a:80", "a.", "127.1", "*.10.0.0.1", "::1", "\u00e4")
    async with api_server(tmp_path) as roost:
        made = await roost.environment()
        for host in odd:
            networking = {"type": "limited", "allowed_hosts": ["a.example", host]}
            fields = {"name": "b", "config": {"type": "cloud", "networking": networking}}
            for path in ("/v1/environments", f"/v1/environments/{made['id']}"):
                error = error_of(await roost.client.post(path, json=fields), 400)
                assert "config.networking.allowed_hosts.1: give a host" in error["message"], host
                assert "`xn--`" in str(error), host


async def test_the_type_of_a_config_never_changes(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await roost.environment()
        response = await roost.client.post(
            f"/v1/environments/{made['id']}", json={"config": {"type": "self_hosted"}}
        )
        code = error_of(response, 400)["details"]["error_code"]
        assert code == "invalid_config_type_change"


async def test_an_archived_environment_is_neither_changed_nor_used(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await roost.environment()
        path = f"/v1/environments/{made['id']}"
        assert (await roost.post(f"{path}/archive"))["archived_at"]
        agent = await roost.agent()
        for response in (
            await roost.client.post(path, json={"name": "b"}),
            await roost.client.post(
                "/v1/sessions", json={"agent": agent["id"], "environment_id": made["id"]}
            ),
        ):
            assert error_of(response, 400)["details"]["error_code"] == "environment_archived"
        assert (await roost.environment())["name"] == made["name"]  # the name is free again


async def test_an_environment_is_deleted_once_no_session_uses_it(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        session = await roost.session()
        path = f"/v1/environments/{session['environment_id']}"
        response = await roost.client.delete(path)
        assert error_of(response, 409)["type"] == "conflict_error"
        assert response.headers["x-should-retry"] == "false"
        await roost.client.delete(f"/v1/sessions/{session['id']}")
        answer = (await roost.client.delete(path)).json()
        official(beta.BetaEnvironmentDeleteResponse, answer)
        error = error_of(await roost.client.get(path), 404)
        assert error["details"]["error_code"] == "environment_not_found"


async def test_the_official_client_knows_these_errors_by_name(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        transport = httpx2.ASGITransport(roost.app)
        async with anthropic.AsyncAnthropic(
            base_url="http://roost",
            api_key=roost.client.headers["x-api-key"],
            http_client=httpx2.AsyncClient(transport=transport),
            max_retries=0,
        ) as client:
            made = await client.beta.environments.create(name="home")
            with pytest.raises(beta.BetaInvalidConfigTypeChangeError):
                await client.beta.environments.update(made.id, config={"type": "self_hosted"})
            await client.beta.environments.archive(made.id)
            with pytest.raises(beta.BetaEnvironmentArchivedError):
                await client.beta.environments.update(made.id, name="other")
            with pytest.raises(anthropic.NotFoundError):
                await client.beta.environments.retrieve("env_none")


async def test_an_image_is_one_of_those_that_the_operator_has_named(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await roost.environment(metadata={"roost.image": "node"})
        assert made["metadata"] == {"roost.image": "node"}
        path, hosted = f"/v1/environments/{made['id']}", {"type": "self_hosted"}
        for where, fields, why in (
            (path, {"metadata": {"roost.image": "rust"}}, "image: Input should be 'node'"),
            ("/v1/environments", {"name": "b", "config": hosted}, "image: the sandboxes of a self"),
        ):
            metadata = {"roost.image": "node"} | fields.get("metadata", {})
            error = error_of(
                await roost.client.post(where, json=fields | {"metadata": metadata}), 400
            )
            assert f"metadata.roost.{why}" in error["message"]
        changed = await roost.client.post(path, json={"metadata": {"roost.image": ""}})
        assert changed.json()["metadata"] == {}


def test_a_server_without_images_says_so():
    params = {"name": "a", "metadata": {"roost.image": "node"}}
    with pytest.raises(InvalidRequest, match="has no images to choose from") as caught:
        environment.created(params, environment.EnvironmentChoices([]))
    assert "ROOST_DOCKER_IMAGES" in (caught.value.hint or "")
