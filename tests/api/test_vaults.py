"""Vaults and their credentials over HTTP: what is taken, what is shown, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.beta import BetaManagedAgentsDeletedVault, BetaManagedAgentsVault
from anthropic.types.beta.vaults import (
    BetaManagedAgentsCredential,
    BetaManagedAgentsDeletedCredential,
)
from msgspec.structs import replace
from tests.api.api_server import MASTER_KEY, TENANT, ApiServer, api_server, error_of, official
from tests.api.test_forks import talked_to

from roost.core.vaults import secrets
from roost.core.vaults.secrets import VaultSecrets, opened_parts
from roost.domain.vault import CredentialSecrets, key_of
from roost.errors import CannotUnseal, NotFound
from roost.stores.seal import MasterKeys

BEARER = {"type": "static_bearer", "mcp_server_url": "https://mcp.example/mcp", "token": "tok-1"}
VARIABLE = {
    "type": "environment_variable",
    "secret_name": "API_TOKEN",
    "secret_value": "value-1",
    "networking": {"type": "limited", "allowed_hosts": ["api.example", "*.api.example"]},
}
OAUTH = {
    "type": "mcp_oauth",
    "mcp_server_url": "https://oauth.example/mcp/",
    "access_token": "access-1",
    "expires_at": "2099-01-31T12:00:00+01:00",
    "refresh": {
        "client_id": "client",
        "refresh_token": "refresh-1",
        "token_endpoint": "https://auth.example/token",
        "token_endpoint_auth": {"type": "client_secret_basic", "client_secret": "client-secret-1"},
        "resource": "https://oauth.example/",
        "scope": "read write",
    },
}
SECRETS = ("tok-1", "value-1", "access-1", "refresh-1", "client-secret-1")
SEAL = MasterKeys([MASTER_KEY])


async def vault(roost: ApiServer, **fields: Any) -> str:
    made = await roost.post("/v1/vaults", {"display_name": "v", **fields})
    return f"/v1/vaults/{made['id']}"


async def added(roost: ApiServer, at: str, auth: Any, **fields: Any) -> Any:
    return await roost.post(f"{at}/credentials", {"auth": auth, **fields})


async def kept(roost: ApiServer, credential: Any) -> CredentialSecrets:
    """What is sealed of a credential."""
    return opened_parts(SEAL, await roost.store.credentials.find(credential["id"]))


async def test_a_vault_is_made_changed_listed_archived_and_deleted(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await roost.post("/v1/vaults", {"display_name": "é", "metadata": {"a": "1"}})
        assert official(BetaManagedAgentsVault, made).display_name == "é"
        assert made["id"].startswith("vlt_")
        at = f"/v1/vaults/{made['id']}"
        changed = await roost.post(at, {"display_name": "new", "metadata": {"a": None, "b": "2"}})
        assert (changed["display_name"], changed["metadata"]) == ("new", {"b": "2"})
        assert (await roost.post(at, {"display_name": None}))["display_name"] == "new"
        assert await roost.get(at) == changed
        other = await vault(roost)
        page = await roost.get("/v1/vaults", limit=1)
        assert [f"/v1/vaults/{each['id']}" for each in page["data"]] == [other]
        page = await roost.get("/v1/vaults", limit=1, page=page["next_page"])
        assert (page["data"], page["next_page"]) == ([changed], None)
        archived = await roost.post(f"{at}/archive")
        assert official(BetaManagedAgentsVault, archived).archived_at is not None
        assert await roost.post(f"{at}/archive") == archived
        assert len((await roost.get("/v1/vaults"))["data"]) == 1
        assert len((await roost.get("/v1/vaults", include_archived=True))["data"]) == 2
        error_of(await roost.client.post(at, json={"display_name": "x"}), 400)
        error_of(await roost.client.post(f"{at}/credentials", json={"auth": BEARER}), 400)
        deleted = (await roost.client.delete(at)).json()
        assert official(BetaManagedAgentsDeletedVault, deleted).id == made["id"]
        error_of(await roost.client.get(at), 404)
        error_of(await roost.client.delete(at), 404)


@pytest.mark.parametrize("auth", [BEARER, VARIABLE, OAUTH], ids=lambda auth: auth["type"])
async def test_a_credential_is_shown_without_its_secrets(tmp_path: Path, auth: Any):
    async with api_server(tmp_path) as roost:
        at = await vault(roost)
        made = await added(roost, at, auth, display_name="mine", metadata={"a": "b"})
        one = f"{at}/credentials/{made['id']}"
        official(BetaManagedAgentsCredential, made)
        assert made["id"].startswith("vcrd_")
        assert (made["display_name"], made["metadata"]) == ("mine", {"a": "b"})
        assert await roost.get(one) == made
        assert (await roost.get(f"{at}/credentials"))["data"] == [made]
        patched = await roost.post(one, {"display_name": None, "metadata": {"a": None}})
        assert (patched["display_name"], patched["metadata"]) == (None, {})
        archived = await roost.post(f"{one}/archive")
        official(BetaManagedAgentsCredential, archived)
        assert await roost.post(f"{one}/archive") == archived
        assert (await roost.get(f"{at}/credentials"))["data"] == []
        listed = await roost.get(f"{at}/credentials", include_archived=True)
        assert listed["data"] == [archived]
        error_of(await roost.client.post(one, json={"display_name": "x"}), 400)
        assert not any(secret in json.dumps([made, patched, archived]) for secret in SECRETS)
        deleted = (await roost.client.delete(one)).json()
        official(BetaManagedAgentsDeletedCredential, deleted)
        error_of(await roost.client.get(one), 404)


async def test_each_type_has_its_fields(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        at = await vault(roost)
        oauth = (await added(roost, at, OAUTH))["auth"]
        assert oauth["expires_at"] == "2099-01-31T11:00:00Z"
        assert oauth["mcp_server_url"] == OAUTH["mcp_server_url"]
        shown = {**OAUTH["refresh"], "token_endpoint_auth": {"type": "client_secret_basic"}}
        del shown["refresh_token"]
        assert oauth["refresh"] == shown
        variable = (await added(roost, at, VARIABLE))["auth"]
        assert variable["injection_location"] == {"header": True, "body": True}
        assert variable["networking"] == VARIABLE["networking"]
        wide = {**VARIABLE, "secret_name": "B", "networking": {"type": "unrestricted"}}
        wide["injection_location"] = {"header": True}
        made = (await added(roost, at, wide))["auth"]
        assert made["networking"] == {"type": "unrestricted"}
        assert made["injection_location"] == {"header": True, "body": False}


async def test_a_part_of_the_secrets_is_replaced_and_the_rest_stays(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        at = await vault(roost)
        made = await added(roost, at, OAUTH)
        one = f"{at}/credentials/{made['id']}"
        before = await roost.store.credentials.find(made["id"])
        patch = {"type": "mcp_oauth", "access_token": "access-2", "refresh": {"scope": ""}}
        changed = await roost.post(one, {"auth": patch})
        assert changed["auth"]["refresh"]["scope"] is None
        assert changed["auth"]["expires_at"] == made["auth"]["expires_at"]
        assert await kept(roost, made) == CredentialSecrets(
            value="access-2", refresh_token="refresh-1", client_secret="client-secret-1"
        )
        # The type of the endpoint's authentication stays, whatever the patch calls it.
        how = {"type": "client_secret_post", "client_secret": "client-secret-2"}
        refresh = {"refresh_token": "refresh-2", "token_endpoint_auth": how}
        changed = await roost.post(one, {"auth": {"type": "mcp_oauth", "refresh": refresh}})
        how = changed["auth"]["refresh"]["token_endpoint_auth"]
        assert how == {"type": "client_secret_basic"}
        assert await kept(roost, made) == CredentialSecrets(
            value="access-2", refresh_token="refresh-2", client_secret="client-secret-2"
        )
        after = await roost.store.credentials.find(made["id"])
        assert after.version == before.version + 2
        assert await roost.post(one, {"auth": {"type": "mcp_oauth"}}) == changed
        assert await roost.store.credentials.find(made["id"]) == after

        one = f"{at}/credentials/{(await added(roost, at, VARIABLE))['id']}"
        patch = {"type": "environment_variable", "injection_location": {"body": False}}
        changed = await roost.post(one, {"auth": patch})
        assert changed["auth"]["injection_location"] == {"header": True, "body": False}
        patch = {"type": "environment_variable", "networking": {"type": "unrestricted"}}
        changed = await roost.post(one, {"auth": {**patch, "secret_value": "value-2"}})
        assert changed["auth"]["networking"] == {"type": "unrestricted"}
        assert (await kept(roost, changed)).value == "value-2"


BAD: list[tuple[Any, str]] = [
    ({**BEARER, "token": ""}, "auth.token: give 1 to"),
    ({**BEARER, "token": "a b"}, "auth.token: a token has no spaces"),
    ({**BEARER, "token": "x" * 32769}, "auth.token: give 1 to 32768 bytes"),
    ({**BEARER, "mcp_server_url": "mcp.example"}, "auth.mcp_server_url: the address must"),
    ({**BEARER, "mcp_server_url": "https://a.example/#x"}, "auth.mcp_server_url:"),
    ({**BEARER, "mcp_server_url": "https://" + "a" * 2050}, "auth.mcp_server_url:"),
    ({**BEARER, "mcp_server_url": "http://a.example/"}, "auth.mcp_server_url: a key is sent over"),
    (
        {**OAUTH, "mcp_server_url": "http://93.184.215.14"},
        "auth.mcp_server_url: a key is sent over",
    ),
    (
        {**OAUTH, "refresh": {**OAUTH["refresh"], "token_endpoint": "http://a.example/token"}},
        "auth.refresh.token_endpoint: a key is sent over https only",
    ),
    ({"type": "static_bearer", "token": "x"}, "auth.mcp_server_url: Field required"),
    ({**BEARER, "secret": "x"}, "auth.secret: unknown field"),
    ({**BEARER, "type": "basic"}, "auth.type: Input should be"),
    ({**VARIABLE, "secret_name": "1A"}, "auth.secret_name:"),
    ({**VARIABLE, "secret_name": "A=B"}, "auth.secret_name:"),
    ({**VARIABLE, "secret_value": ""}, "auth.secret_value: give 1 to"),
    ({**VARIABLE, "networking": None}, "auth.networking:"),
    ({**VARIABLE, "injection_location": None}, "auth.injection_location:"),
    ({**VARIABLE, "injection_location": {}}, "auth.injection_location: at least one"),
    (
        {**VARIABLE, "networking": {"type": "limited", "allowed_hosts": ["a.example"] * 17}},
        "auth.networking.allowed_hosts: at most 16",
    ),
    (
        {**VARIABLE, "networking": {"type": "limited", "allowed_hosts": ["https://a"]}},
        "auth.networking.allowed_hosts.0: give a host",
    ),
    ({**OAUTH, "expires_at": "2020-01-01T00:00:00Z"}, "auth.expires_at: must be in the future"),
    ({**OAUTH, "expires_at": "2099-01-01T00:00:00"}, "auth.expires_at: the time zone"),
    ({**OAUTH, "expires_at": "soon"}, "auth.expires_at: not a moment"),
    ({**OAUTH, "expires_at": "9999-12-31T23:59:59-14:00"}, "auth.expires_at: not a moment"),
    (
        {**OAUTH, "refresh": {**OAUTH["refresh"], "token_endpoint": "ftp://x"}},
        "auth.refresh.token_endpoint: the address",
    ),
    (
        {**OAUTH, "refresh": {**OAUTH["refresh"], "token_endpoint_auth": {"type": "none2"}}},
        "auth.refresh.token_endpoint_auth.type: Input should be",
    ),
]


async def test_what_is_wrong_with_a_new_credential_is_named_without_its_secret(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        at = await vault(roost)
        for auth, message in BAD:
            response = await roost.client.post(f"{at}/credentials", json={"auth": auth})
            assert error_of(response, 400)["message"].startswith(message), response.text
            assert not any(secret in response.text for secret in SECRETS)
        assert (await roost.get(f"{at}/credentials"))["data"] == []


PATCHES: list[tuple[Any, Any, str]] = [
    (BEARER, {"type": "mcp_oauth"}, "auth.type: the credential's type is 'static_bearer'"),
    (BEARER, {"mcp_server_url": "https://x.example"}, "auth.mcp_server_url: cannot be changed"),
    (BEARER, {"token": ""}, "auth.token: give 1 to"),
    (VARIABLE, {"secret_name": "OTHER"}, "auth.secret_name: cannot be changed"),
    (VARIABLE, {"injection_location": {"header": False, "body": False}}, "auth.injection_locat"),
    (OAUTH, {"mcp_server_url": "https://x.example"}, "auth.mcp_server_url: cannot be changed"),
    (OAUTH, {"refresh": {"client_id": "x"}}, "auth.refresh.client_id: cannot be changed"),
    (OAUTH, {"refresh": {"token_endpoint": "https://x"}}, "auth.refresh.token_endpoint: cannot"),
    (OAUTH, {"expires_at": "2020-01-01T00:00:00Z"}, "auth.expires_at: must be in the future"),
    ({**OAUTH, "refresh": None}, {"refresh": {"refresh_token": "x"}}, "auth.refresh: the cred"),
    (
        {**OAUTH, "refresh": {**OAUTH["refresh"], "token_endpoint_auth": {"type": "none"}}},
        {"refresh": {"token_endpoint_auth": {"type": "client_secret_post", "client_secret": "x"}}},
        "auth.refresh.token_endpoint_auth: the credential was made without",
    ),
]


async def test_what_is_fixed_cannot_be_changed(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        for auth, patch, message in PATCHES:
            at = await vault(roost)
            one = f"{at}/credentials/{(await added(roost, at, auth))['id']}"
            body = {"auth": {"type": auth["type"], **patch}}
            before = await roost.get(one)
            response = await roost.client.post(one, json=body)
            assert error_of(response, 400)["message"].startswith(message), response.text
            assert await roost.get(one) == before


async def test_two_credentials_in_use_have_not_the_same_server_or_name(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        at = await vault(roost)
        first = await added(roost, at, BEARER)
        await added(roost, at, VARIABLE)
        same = [
            {**BEARER, "mcp_server_url": "HTTPS://MCP.example:443/mcp/"},
            {**OAUTH, "mcp_server_url": "https://mcp.example/mcp"},
            {**VARIABLE, "secret_value": "other"},
        ]
        for auth in same:
            response = await roost.client.post(f"{at}/credentials", json={"auth": auth})
            error_of(response, 409)
            assert response.headers["x-should-retry"] == "false"
        for url in (
            "https://mcp.example/other",
            "https://mcp.example:8443/mcp",
            "https://mcp.internal/mcp",
            "http://mcp.internal/mcp",
        ):
            await added(roost, at, {**BEARER, "mcp_server_url": url})
        await roost.post(f"{at}/credentials/{first['id']}/archive")
        await added(roost, at, same[0])
        await added(roost, await vault(roost), BEARER)


async def test_a_vault_has_twenty_credentials_and_pages_of_them(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        at = await vault(roost)
        made = [
            (await added(roost, at, {**VARIABLE, "secret_name": f"A{n}"}))["id"] for n in range(20)
        ]
        response = await roost.client.post(f"{at}/credentials", json={"auth": BEARER})
        assert "at most 20 credentials" in error_of(response, 400)["message"]
        found, page = [], None
        while True:
            params = {"limit": 9} | ({"page": page} if page else {})
            answer = await roost.get(f"{at}/credentials", **params)
            found += [each["id"] for each in answer["data"]]
            if not (page := answer["next_page"]):
                break
        assert found == made[::-1]
        first = await roost.get(f"{at}/credentials", limit=1)
        other = f"{await vault(roost)}/credentials"
        params = {"page": first["next_page"]}
        error_of(await roost.client.get(other, params=params), 400)


async def test_an_archived_vault_leaves_no_secret(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        at = await vault(roost)
        made = [await added(roost, at, auth) for auth in (BEARER, VARIABLE, OAUTH)]
        archived = await roost.post(f"{at}/archive")
        for each in made:
            now = await roost.get(f"{at}/credentials/{each['id']}")
            assert now["archived_at"] == archived["archived_at"]
            assert (await roost.store.credentials.find(each["id"])).sealed is None


# Metadata that the server itself reads


async def test_a_vault_for_models_has_a_token_without_an_address(tmp_path: Path):
    token = {"type": "static_bearer", "token": "sk-1"}
    async with api_server(tmp_path) as roost:
        for role in ("roost.role", "sandbox0.managed_agents.role"):
            at = await vault(roost, metadata={role: "llm"})
            made = await added(roost, at, token)
            official(BetaManagedAgentsCredential, made)
            assert made["auth"] == {"type": "static_bearer", "mcp_server_url": ""}
            error_of(await roost.client.post(f"{at}/credentials", json={"auth": token}), 409)
        for metadata in ({"roost.role": "other"}, {"roost.unknown": "x"}):
            body = {"display_name": "v", "metadata": metadata}
            error_of(await roost.client.post("/v1/vaults", json=body), 400)


async def test_a_key_of_a_model_is_not_sent_to_another_address(tmp_path: Path):
    """Who may change the vault could otherwise have the key sent to a server of his own, and read it."""
    base, theirs = "roost.base_url", "sandbox0.managed_agents.llm_base_url"
    here, there = "https://a.example/", "https://b.example/"
    async with api_server(tmp_path) as roost:
        at = await vault(roost, metadata={"roost.role": "llm", base: here})
        key = await added(roost, at, {"type": "static_bearer", "token": "sk-1"})
        moves: list[dict[str, Any]] = [{base: there}, {base: None}, {base: None, theirs: there}]
        for metadata in moves:
            response = await roost.client.post(at, json={"metadata": metadata})
            message = error_of(response, 400)["message"]
            assert "base_url: cannot be changed while the vault has a key" in message
        assert (await roost.get(at))["metadata"][base] == here
        for same in ({"roost.key_header": "bearer"}, {base: None, theirs: here}):
            await roost.post(at, {"metadata": same})
        await roost.post(f"{at}/credentials/{key['id']}/archive")
        moved = await roost.post(at, {"metadata": {theirs: there}})
        assert moved["metadata"][theirs] == there


# Who may


async def test_a_vault_is_its_makers_and_for_keys_that_see_the_tenant(tmp_path: Path):
    async with (
        api_server(tmp_path) as roost,
        await roost.user() as owner,
        await roost.user() as other,
        await roost.user(sees="tenant") as wide,
        await roost.user("tenant_2", role="admin") as stranger,
    ):
        made = (await owner.post("/v1/vaults", json={"display_name": "v"})).json()
        at = f"/v1/vaults/{made['id']}"
        one = (await owner.post(f"{at}/credentials", json={"auth": BEARER})).json()["id"]
        reading = [("GET", at, None), ("GET", f"{at}/credentials", None)]
        reading.append(("GET", f"{at}/credentials/{one}", None))
        writing = [
            ("POST", at, {"display_name": "w"}),
            ("POST", f"{at}/credentials", {"auth": VARIABLE}),
            ("POST", f"{at}/credentials/{one}", {"display_name": "w"}),
            ("POST", f"{at}/credentials/{one}/archive", {}),
            ("DELETE", f"{at}/credentials/{one}", None),
            ("POST", f"{at}/archive", {}),
            ("DELETE", at, None),
        ]
        for method, url, body in (*reading, *writing):
            for client in (other, stranger):
                error_of(await client.request(method, url, json=body), 404)
        assert (await other.get("/v1/vaults")).json()["data"] == []
        assert (await stranger.get("/v1/vaults")).json()["data"] == []
        for method, url, body in reading:
            assert (await wide.request(method, url, json=body)).status_code == 200
        assert len((await wide.get("/v1/vaults")).json()["data"]) == 1
        for method, url, body in writing:
            error = error_of(await wide.request(method, url, json=body), 403)
            assert error["details"]["error_code"] == "not_the_owner"
        for method, url, body in writing:
            answer = await owner.request(method, url, json=body)
            assert answer.status_code == 200, (url, answer.text)


# Sessions with vaults


async def test_a_session_keeps_its_vaults_in_their_order(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        vaults = [(await vault(roost)).rpartition("/")[2] for _ in range(2)]
        await added(roost, f"/v1/vaults/{vaults[0]}", BEARER)
        session = await roost.session(vault_ids=vaults, harness="able")
        assert session["vault_ids"] == vaults
        assert (await roost.get(f"/v1/sessions/{session['id']}"))["vault_ids"] == vaults
        at = f"/v1/sessions/{session['id']}"
        error = error_of(await roost.client.post(at, json={"vault_ids": []}), 400)
        assert "vault_ids: cannot be changed" in error["message"]
        await roost.client.delete(f"/v1/vaults/{vaults[0]}")
        assert (await roost.get(at))["vault_ids"] == vaults


async def test_a_run_of_a_task_has_the_vaults_that_it_is_given(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        mine = (await vault(roost)).rpartition("/")[2]
        parts = {
            "agent": (await roost.agent())["id"],
            "environment_id": (await roost.environment())["id"],
        }
        task = await roost.post("/roost/v1/tasks", {"title": "With secrets", **parts})
        runs = f"/roost/v1/tasks/{task['id']}/runs"
        asked = {"harness": "able", "vault_ids": ["vlt_none"]}
        error_of(await roost.client.post(runs, json=asked), 404)
        assert (await roost.get(runs))["data"] == []
        run = await roost.post(runs, asked | {"vault_ids": [mine]})
        assert (await roost.get(f"/v1/sessions/{run['session_id']}"))["vault_ids"] == [mine]


async def test_a_session_is_refused_that_names_a_vault_it_cannot_have(tmp_path: Path):
    async with api_server(tmp_path) as roost, await roost.user() as other:
        body = {"agent": (await roost.agent())["id"]}
        body["environment_id"] = (await roost.environment())["id"]
        gone, mine = await vault(roost), await vault(roost)
        await roost.post(f"{gone}/archive")

        async def refused(client: Any, vaults: list[str], status: int) -> str:
            ids = [each.rpartition("/")[2] for each in vaults]
            answer = await client.post("/v1/sessions", json={**body, "vault_ids": ids})
            return str(error_of(answer, status)["message"])

        assert "archived" in await refused(roost.client, [mine, gone], 400)
        assert "was not found" in await refused(roost.client, ["vlt_none"], 404)
        assert "was not found" in await refused(other, [mine], 404)
        assert "vault_ids" in await refused(roost.client, ["vlt_none"] * 51, 400)
        assert (await roost.get("/v1/sessions"))["data"] == []


async def test_a_vault_of_a_key_with_less_trust_is_not_for_a_session_with_more(tmp_path: Path):
    async with api_server(tmp_path, trust_levels="sandboxed,full") as roost:
        async with await roost.user() as low:
            made = (await low.post("/v1/vaults", json={"display_name": "v"})).json()
        body = {"agent": (await roost.agent())["id"], "vault_ids": [made["id"]], "harness": "able"}
        body["environment_id"] = (await roost.environment())["id"]
        await roost.post("/v1/sessions", body)
        full = {**body, "trust_level": "full"}
        error = error_of(await roost.client.post("/v1/sessions", json=full), 403)
        assert error["details"]["error_code"] == "author_not_trusted"
        assert error["message"].startswith("vault_ids.0: ")


async def test_a_fork_has_those_vaults_that_its_maker_may_see(tmp_path: Path):
    async with api_server(tmp_path) as roost, await roost.user() as other:
        made = await roost.post("/roost/v1/workspaces", {"name": "shared"})
        who = (await other.get("/auth/me")).json()
        share = {"key_id": who["key_id"], "access": "write"}
        await roost.post(f"/roost/v1/workspaces/{made['id']}/permissions", share)
        vaults = [(await vault(roost)).rpartition("/")[2] for _ in range(2)]
        session = await talked_to(roost, vault_ids=vaults, workspace=made["id"], harness="able")
        at = f"/roost/v1/sessions/{session['id']}/fork"
        assert (await roost.post(at, {"at": 1, "files": "keep"}))["vault_ids"] == vaults
        fork = (await other.post(at, json={"at": 1, "files": "keep"})).json()
        assert fork["vault_ids"] == []
        events = (await other.get(f"/v1/sessions/{fork['id']}/events")).json()["data"]
        assert events[-1]["vaults_left_out"] == 2


async def test_an_import_has_no_vaults_and_says_so(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        vaults = [(await vault(roost)).rpartition("/")[2]]
        session = await talked_to(roost, vault_ids=vaults, harness="able")
        archive = await roost.client.get(f"/roost/v1/sessions/{session['id']}/export")
        assert vaults[0].encode() not in archive.content
        sent = {"files": {"archive": archive.content}}
        taken = await roost.post("/roost/v1/sessions/import", None, **sent)
        assert taken["vault_ids"] == []
        events = (await roost.get(f"/v1/sessions/{taken['id']}/events"))["data"]
        assert events[-1]["vaults_left_out"] == 1


# What a session gets of them


async def test_the_first_vault_with_a_fitting_credential_counts(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        for_models = {"roost.role": "llm", "roost.engine": "able"}
        first, second = await vault(roost), await vault(roost, metadata=for_models)
        one = await added(roost, first, BEARER)
        variable = await added(roost, first, VARIABLE)
        other = {**BEARER, "token": "tok-2"}
        for auth in (other, VARIABLE, {**VARIABLE, "secret_name": "B"}):
            await added(roost, second, auth)
        model = await added(roost, second, {"type": "static_bearer", "token": "sk"})
        made = await roost.session(vault_ids=[first.rpartition("/")[2], second.rpartition("/")[2]])
        session = await roost.store.sessions.get(TENANT, made["id"])
        door = VaultSecrets(roost.store.credentials, SEAL, b"")
        found = await door.mcp(session, "https://MCP.example/mcp/")
        assert found is not None and found.id == one["id"]
        assert await door.mcp(session, "https://mcp.example/") is None
        api_token, b = await door.variables(session)
        assert (api_token.id, key_of(b.auth)) == (variable["id"], "variable B")
        key = await door.model(session)
        assert key is not None and key.id == model["id"]
        await roost.post(f"{first}/archive")
        found = await door.mcp(session, BEARER["mcp_server_url"])
        assert found is not None and (await door.opened(found.id)).value == "tok-2"


async def test_a_secret_that_is_replaced_or_archived_is_out_of_use_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    moment = [100.0]
    monkeypatch.setattr(secrets.time, "monotonic", lambda: moment[0])
    async with api_server(tmp_path) as roost:
        at = await vault(roost)
        made = await added(roost, at, BEARER)
        door = VaultSecrets(roost.store.credentials, SEAL, b"")
        first = await door.opened(made["id"])
        assert (first.value, first.version) == ("tok-1", 1)
        assert "tok-1" not in repr(first)
        one = f"{at}/credentials/{made['id']}"
        await roost.post(one, {"auth": {"type": "static_bearer", "token": "tok-2"}})
        assert await door.opened(made["id"]) == first
        assert (await door.opened(made["id"], version=2)).value == "tok-2"
        moment[0] += secrets.KEPT_SECONDS
        await roost.post(f"{one}/archive")
        with pytest.raises(NotFound):
            await door.opened(made["id"])
        with pytest.raises(NotFound):
            await door.opened("vcrd_none")


async def test_a_sealed_secret_does_not_open_as_anothers(tmp_path: Path):
    """Whoever can write to the database puts one credential's sealed text into another's row in vain."""
    async with api_server(tmp_path) as roost:
        at = await vault(roost)
        mine = await added(roost, at, BEARER)
        theirs = await added(roost, at, VARIABLE)
        sealed = (await roost.store.credentials.find(theirs["id"])).sealed
        row = await roost.store.credentials.find(mine["id"])
        await roost.store.credentials.change(row, lambda c, now: replace(c, sealed=sealed))
        door = VaultSecrets(roost.store.credentials, SEAL, b"")
        with pytest.raises(CannotUnseal, match=mine["id"]):
            await door.opened(mine["id"])
        assert (await door.opened(theirs["id"])).value == "value-1"


async def test_a_token_that_cannot_be_tried_is_of_unknown_worth_and_others_are_refused(
    tmp_path: Path,
):
    async with api_server(tmp_path) as roost:
        at = await vault(roost)
        inside = {**OAUTH, "mcp_server_url": "http://127.0.0.1:9/mcp"}
        oauth, bearer = await added(roost, at, inside), await added(roost, at, BEARER)
        found = await roost.post(f"{at}/credentials/{oauth['id']}/mcp_oauth_validate", {})
        assert (found["status"], found["refresh"]) == ("unknown", None)
        assert found["mcp_probe"] == {"method": "initialize", "http_response": None}
        tried = await roost.client.post(f"{at}/credentials/{bearer['id']}/mcp_oauth_validate")
        assert "mcp_oauth" in error_of(tried, 400)["message"]
