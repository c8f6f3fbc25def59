"""`/roost/v1/workspaces`: made, found, changed, shared and deleted, by those who may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.api.api_server import ApiServer, api_server, error_of, message, messages

WORKSPACES = "/roost/v1/workspaces"


async def make(roost: ApiServer, name: str = "notes", **fields: Any) -> Any:
    return await roost.post(WORKSPACES, {"name": name, **fields})


async def key_of(roost: ApiServer, **fields: Any) -> tuple[str, Any]:
    """A new key of the tenant: its id, and a client that has it."""
    client = await roost.user(**fields)
    keys = (await roost.get("/roost/v1/keys"))["data"]
    return keys[-1]["id"], client


async def test_a_workspace_is_made_with_defaults_found_renamed_and_deleted(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await make(roost, description="for us")
        assert made["id"].startswith("wksp_")
        assert made["type"] == "workspace"
        assert made["description"] == "for us"
        assert made["settings"] == {
            "quota_bytes": None,
            "keep_snapshots": 100,
            "keep_days": None,
            "mount_scope": None,
            "trust_levels": ["sandboxed"],
            "writers": "allowed",
        }
        path = f"{WORKSPACES}/{made['id']}"
        assert await roost.get(path) == made
        assert await roost.get(f"{WORKSPACES}/notes") == made
        changed = await roost.post(
            path, {"name": "letters", "settings": {"writers": "serialised", "keep_days": 7}}
        )
        assert (changed["name"], changed["description"]) == ("letters", "for us")
        assert changed["settings"]["writers"] == "serialised"
        back = await roost.post(path, {"settings": {"keep_days": None}})
        assert back["settings"]["keep_days"] is None
        assert back["settings"]["writers"] == "serialised"
        error_of(await roost.client.get(f"{WORKSPACES}/notes"), 404)
        gone = (await roost.client.delete(f"{WORKSPACES}/letters")).json()
        assert gone == {"id": made["id"], "type": "workspace_deleted"}
        error_of(await roost.client.get(path), 404)
        error_of(await roost.client.delete(path), 404)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "name: Field required"),
        ({"name": ""}, "name: "),
        ({"name": "wksp_mine"}, "name: wksp_ begins an id, so a name cannot begin with it"),
        ({"name": " a"}, "name: printable"),
        ({"name": "a", "colour": "red"}, "colour"),
        ({"name": "a", "settings": {"quota_bytes": 0}}, "settings.quota_bytes"),
        ({"name": "a", "settings": {"trust_levels": []}}, "settings.trust_levels"),
        ({"name": "a", "settings": {"trust_levels": ["root"]}}, "settings.trust_levels"),
        ({"name": "a", "settings": {"writers": "queued"}}, "settings.writers"),
        ({"name": "a", "settings": {"keep_snapshots": 0}}, "settings.keep_snapshots"),
    ],
)
async def test_what_a_workspace_cannot_be_is_named(tmp_path: Path, body: Any, words: str):
    async with api_server(tmp_path) as roost:
        response = await roost.client.post(WORKSPACES, json=body)
        assert words in error_of(response, 400)["message"]


async def test_a_name_is_one_workspace_s_within_a_tenant(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        await make(roost)
        other = await make(roost, "other")
        error_of(await roost.client.post(WORKSPACES, json={"name": "notes"}), 409)
        renamed = roost.client.post(f"{WORKSPACES}/{other['id']}", json={"name": "notes"})
        error_of(await renamed, 409)
        stranger = await roost.user("tenant_2")
        theirs = await stranger.post(WORKSPACES, json={"name": "notes"})
        assert theirs.status_code == 200
        error_of(await stranger.get(f"{WORKSPACES}/{other['id']}"), 404)
        assert [w["id"] for w in (await stranger.get(WORKSPACES)).json()["data"]] == [
            theirs.json()["id"]
        ]


async def test_who_was_given_nothing_sees_nothing_and_the_rest_see_what_they_may_do(
    tmp_path: Path,
):
    async with api_server(tmp_path) as roost:
        key_id, user = await key_of(roost)
        made = await make(roost)
        path, share = f"{WORKSPACES}/{made['id']}", f"{WORKSPACES}/{made['id']}/permissions"
        error_of(await user.get(path), 404)
        error_of(await user.post(path, json={"name": "mine"}), 404)
        assert (await user.get(WORKSPACES)).json()["data"] == []
        for access, status in (("read", 403), ("write", 403), ("admin", 200)):
            await roost.post(share, {"key_id": key_id, "access": access})
            assert (await user.get(path)).status_code == 200
            assert len((await user.get(WORKSPACES)).json()["data"]) == 1
            changed = await user.post(path, json={"description": access})
            assert changed.status_code == status
        shown = (await user.get(path)).json()["permissions"]
        assert {"type": "key", "key_id": key_id, "access": "admin"} in shown
        await roost.post(share, {"key_id": key_id, "access": "none"})
        error_of(await user.get(path), 404)
        shared = await roost.post(share, {"everyone": True, "access": "read"})
        assert {"type": "everyone", "access": "read"} in shared["permissions"]
        assert (await user.get(path)).status_code == 200
        error_of(await user.delete(path), 403)


async def test_a_permission_is_for_a_key_of_the_tenant(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        share = f"{WORKSPACES}/{(await make(roost))['id']}/permissions"
        stranger, _ = await key_of(roost, tenant="tenant_2")
        for body in (
            {"key_id": stranger, "access": "read"},
            {"key_id": "apikey_none", "access": "read"},
            {"access": "read"},
            {"key_id": stranger, "everyone": True, "access": "read"},
        ):
            assert "key_id" in error_of(await roost.client.post(share, json=body), 400)["message"]
        body = {"everyone": True, "access": "all"}
        assert "access" in error_of(await roost.client.post(share, json=body), 400)["message"]


async def test_a_user_s_own_workspace_is_theirs_to_share(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        _, user = await key_of(roost)
        other_id, other = await key_of(roost)
        made = (await user.post(WORKSPACES, json={"name": "mine"})).json()
        share = f"{WORKSPACES}/{made['id']}/permissions"
        error_of(await other.get(share.removesuffix("/permissions")), 404)
        given = {"key_id": other_id, "access": "write"}
        assert (await user.post(share, json=given)).status_code == 200
        assert (await other.get(f"{WORKSPACES}/mine")).status_code == 200


async def test_pages_hold_only_what_the_caller_may_read(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        _, user = await key_of(roost)
        mine = []
        for number in range(7):
            await make(roost, f"theirs {number}")
            made = await user.post(WORKSPACES, json={"name": f"mine {number}"})
            mine.append(made.json()["id"])
        seen: list[str] = []
        params: dict[str, Any] = {"limit": 3}
        while True:
            page = (await user.get(WORKSPACES, params=params)).json()
            seen += [found["id"] for found in page["data"]]
            if page["next_page"] is None:
                break
            assert len(page["data"]) == 3
            params["page"] = page["next_page"]
        assert seen == mine[::-1]


async def test_a_session_picks_a_workspace_by_name_or_id_and_takes_its_mount_scope(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await make(roost, settings={"mount_scope": "workspace+vault"})
        by_name = await roost.session(workspace="notes")
        assert by_name["workspace"] == made["id"]
        assert by_name["mount_scope"] == "workspace+vault"
        by_id = await roost.session(workspace=made["id"], mount_scope="workspace")
        assert (by_id["workspace"], by_id["mount_scope"]) == (made["id"], "workspace")
        noted = await roost.session(metadata={"roost.workspace": "notes"})
        assert noted["workspace"] == made["id"]
        assert (await roost.session())["workspace"] is None
        page = await roost.get(f"{WORKSPACES}/{made['id']}/sessions", limit=2)
        assert [found["id"] for found in page["data"]] == [noted["id"], by_id["id"]]
        rest = await roost.get(f"{WORKSPACES}/{made['id']}/sessions", page=page["next_page"])
        assert [found["id"] for found in rest["data"]] == [by_name["id"]]


async def test_a_session_in_a_workspace_needs_the_right_to_write_there(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        key_id, user = await key_of(roost)
        made, session = await make(roost), await roost.session()
        share = f"{WORKSPACES}/{made['id']}/permissions"
        body = {
            "agent": session["agent"]["id"],
            "environment_id": session["environment_id"],
            "workspace": "notes",
        }
        error = error_of(await user.post("/v1/sessions", json=body), 400)
        assert error["message"] == "workspace: workspace 'notes' was not found"
        await roost.post(share, {"key_id": key_id, "access": "read"})
        error_of(await user.post("/v1/sessions", json=body), 403)
        theirs = await roost.session(workspace="notes")
        events = f"/v1/sessions/{theirs['id']}/events"
        error_of(await user.post(events, json=messages("write this")), 403)
        await roost.post(share, {"key_id": key_id, "access": "write"})
        assert (await user.post(events, json=messages("write this"))).status_code == 200
        assert (await user.post("/v1/sessions", json=body)).status_code == 200


async def test_a_workspace_lets_in_the_trust_levels_it_names(tmp_path: Path):
    async with api_server(tmp_path, trust_levels="sandboxed,vault,full") as roost:
        made = await make(roost)
        agent, place = await roost.agent(), await roost.environment()
        body = {"agent": agent["id"], "environment_id": place["id"], "workspace": "notes"}
        response = await roost.client.post("/v1/sessions", json={**body, "trust_level": "full"})
        error = error_of(response, 400)
        assert "does not let 'full' sessions in" in error["message"]
        assert "sandboxed" in error["details"]["hint"]
        path, wider = f"{WORKSPACES}/{made['id']}", {"settings": {"trust_levels": ["full"]}}
        _, low = await key_of(roost, trust_ceiling="vault")
        await roost.post(f"{path}/permissions", {"everyone": True, "access": "admin"})
        error_of(await low.post(path, json=wider), 403)
        await roost.post(path, wider)
        response = await roost.client.post("/v1/sessions", json={**body, "trust_level": "full"})
        assert response.status_code == 200
        error_of(await roost.client.post("/v1/sessions", json=body), 400)


async def test_a_used_workspace_is_deleted_only_by_force_and_its_sessions_say_so(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await make(roost)
        session = await roost.session(workspace="notes", initial_events=[message("hello")])
        path = f"{WORKSPACES}/{made['id']}"
        error = error_of(await roost.client.delete(path), 409)
        assert "force" in error["details"]["hint"]
        gone = await roost.client.delete(path, params={"force": "true"})
        assert gone.status_code == 200
        events = (await roost.get(f"/v1/sessions/{session['id']}/events"))["data"]
        [said] = [event for event in events if event["type"] == "session.error"]
        assert "'notes' was deleted" in said["error"]["message"]
        body = {"agent": session["agent"]["id"], "environment_id": session["environment_id"]}
        again = {**body, "workspace": made["id"]}
        error_of(await roost.client.post("/v1/sessions", json=again), 400)


async def test_archived_sessions_do_not_keep_a_workspace(tmp_path: Path):
    async with api_server(tmp_path) as roost:
        made = await make(roost)
        session = await roost.session(workspace="notes")
        error_of(await roost.client.delete(f"{WORKSPACES}/{made['id']}"), 409)
        await roost.post(f"/v1/sessions/{session['id']}/archive")
        assert (await roost.client.delete(f"{WORKSPACES}/{made['id']}")).status_code == 200
