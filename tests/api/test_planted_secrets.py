"""Secrets of every kind are planted in vaults, everything is asked for, and then all is searched for them.

What a sandbox can see is searched in a journey with a real agent.
"""

from __future__ import annotations

import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx2
from tests.planted import Planted, Walk, search_database, search_files, walk_all
from tests.stores import holds

from roost.api.access.auth import MANAGED_AGENTS
from roost.testing.live import LiveServer


def auths(plant: Planted) -> list[dict[str, Any]]:
    how = {"type": "client_secret_basic", "client_secret": plant.new()}
    refresh = {
        "client_id": "c",
        "refresh_token": plant.new(),
        "token_endpoint": "https://a.example",
    }
    limited = {"type": "limited", "allowed_hosts": ["api.example"]}
    return [
        {"type": "static_bearer", "mcp_server_url": "https://a.example", "token": plant.new()},
        {
            "type": "mcp_oauth",
            "mcp_server_url": "https://b.example",
            "access_token": plant.new(),
            "refresh": {**refresh, "token_endpoint_auth": how},
        },
        {
            "type": "environment_variable",
            "secret_name": "TOKEN",
            "secret_value": plant.new(),
            "networking": limited,
        },
    ]


def spoiled(auth: dict[str, Any]) -> list[dict[str, Any]]:
    """With something wrong in it that has to be complained about."""
    return [
        {**auth, "type": "other"},
        {**auth, "unknown": 1},
        {k: v for k, v in auth.items() if k not in ("mcp_server_url", "networking")},
        {k: [v] if isinstance(v, str) and k != "type" else v for k, v in auth.items()},
        {k: f"{v} \n" if v == auth.get("token") else v for k, v in auth.items()},
    ]


def planted(walk: Walk, plant: Planted) -> dict[str, str]:
    """Vaults with all there is, changed and archived; what is wrong; and a session that has one of them."""
    ids: dict[str, str] = {}
    for n in range(2):
        vault = walk.post("/v1/vaults", display_name=f"canary-{n}")["id"]
        at = f"/v1/vaults/{vault}/credentials"
        for auth in auths(plant):
            made = walk.post(at, auth=auth)["id"]
            for wrong in spoiled(auth):
                assert walk.ask("POST", at, json={"auth": wrong}).status_code in (400, 409)
                walk.ask("POST", f"{at}/{made}", json={"auth": wrong})
            ids |= {"vault_id": vault, "credential_id": made}
            walk.ask("POST", at, content=f'{{"auth": "{plant.new()}'.encode())
            assert walk.ask("POST", at, json={"auth": auth}).status_code == 409
            field = {"static_bearer": "token", "mcp_oauth": "access_token"}
            patch = {field.get(auth["type"], "secret_value"): plant.new(), "type": auth["type"]}
            walk.post(f"{at}/{made}", auth=patch)
            if n == 0:
                walk.post(f"{at}/{made}/archive")
    agent = walk.post("/v1/agents", name="a", model="claude-x")["id"]
    place = walk.post("/v1/environments", name="e")["id"]
    empty = walk.post("/v1/vaults", display_name="canary-2")["id"]
    asked = {"agent": agent, "environment_id": place}
    walk.ask("POST", "/v1/sessions", json={**asked, "vault_ids": [ids["vault_id"]]})
    session = walk.post("/v1/sessions", **asked, vault_ids=[empty], harness="claude")["id"]
    said = [{"type": "user.message", "content": [{"type": "text", "text": "canary-said"}]}]
    walk.post(f"/v1/sessions/{session}/events", events=said)
    while walk.ask("GET", f"/v1/sessions/{session}").json()["status"] != "idle":
        time.sleep(0.05)
    return {**ids, "session_id": session, "agent_id": agent, "environment_id": place}


def test_no_planted_secret_is_anywhere(tmp_path: Path):
    plant, data = Planted(), tmp_path / "data"
    with LiveServer(data, ROOST_LOG_LEVEL="debug") as server:
        headers = {"x-api-key": server.key, "anthropic-beta": MANAGED_AGENTS}
        headers["anthropic-version"] = "2023-06-01"
        with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
            walk = Walk(client, plant)
            ids = planted(walk, plant)
            assert len(plant.secrets) == 22
            search_files(plant, data)  # before the walk, which deletes what it can
            search_database(data)
            walk_all(walk, plant, ids)
        server.kill()  # the log of the database stays as it is
    files = search_files(plant, data)
    for asked, content in plant.answers:
        assert plant.found_in(content) == [], asked
    _check_the_search(plant, data, files)


def _check_the_search(plant: Planted, data: Path, files: dict[Path, bytes]) -> None:
    """That it finds what is there: in the database, in the answers, and in the export."""
    stored = [path for path, content in files.items() if b"canary-2" in content]
    assert stored or holds(data, "canary-2")
    assert any(b"canary-1" in content for _, content in plant.answers)
    assert any(b"canary-said" in content for asked, content in plant.answers if asked == "export")
    assert any(asked == "GET /metrics" for asked, _ in plant.answers)
    assert (data / "server.log") in files
    secret = plant.secrets[0]
    inside = b64encode(f'{{"auth":"Bearer {secret}"}}'.encode())
    assert plant.found_in(inside) == [secret]
