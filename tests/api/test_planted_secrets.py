"""Secrets of every kind are planted in vaults, everything is asked for, and then all is searched for them.

What a sandbox can see is searched where its proxies are tested.
"""

from __future__ import annotations

import io
import re
import time
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import httpx2
import zstandard
from tests.stores import holds

from roost.api.access.auth import MANAGED_AGENTS
from roost.api.framework.routes import Operation
from roost.api.operations import OPERATIONS
from roost.testing.live import LiveServer

_LATER = {"DELETE": 2}  # what ends things comes last
_ENDING = re.compile(r"archive|revoke|drain|logout|rewind|delete")


class Planted:
    """Secrets that can be told from anything else, and what was answered since."""

    def __init__(self) -> None:
        self.secrets: list[str] = []
        self.answers: list[tuple[str, bytes]] = []

    def new(self) -> str:
        """One with characters that are written differently in URLs, JSON and base64."""
        self.secrets.append(f"plant-{token_hex(16)}+/=")
        return self.secrets[-1]

    def found_in(self, data: bytes) -> list[str]:
        return [each for each in self.secrets if any(form in data for form in forms(each))]


def forms(secret: str) -> list[bytes]:
    """How a secret may be written somewhere; of base64, what it is in the middle of something else, too."""
    raw = secret.encode()
    written = [raw, quote(secret).encode(), quote(secret, safe="").encode(), raw.hex().encode()]
    for before in (b"", b"x", b"xx"):
        coded = [b64encode(before + raw), urlsafe_b64encode(before + raw)]
        written += [each[4:-4] for each in coded]
    return written


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


class Walk:
    """A client that keeps every answer."""

    def __init__(self, client: httpx2.Client, plant: Planted) -> None:
        self._client = client
        self._plant = plant

    def ask(self, method: str, path: str, **more: Any) -> httpx2.Response:
        with self._client.stream(method, path, **more) as response:
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                content = next(response.iter_bytes(), b"")
            else:
                content = response.read()
        head = repr(response.headers.multi_items()).encode()
        self._plant.answers += [(f"{method} {path}", content), (f"{method} {path}", head)]
        return response

    def post(self, path: str, **body: Any) -> Any:
        answer = self.ask("POST", path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


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
    session = walk.post("/v1/sessions", **asked, vault_ids=[empty])["id"]
    said = [{"type": "user.message", "content": [{"type": "text", "text": "canary-said"}]}]
    walk.post(f"/v1/sessions/{session}/events", events=said)
    while walk.ask("GET", f"/v1/sessions/{session}").json()["status"] != "idle":
        time.sleep(0.05)
    return {**ids, "session_id": session, "agent_id": agent, "environment_id": place}


def order(operation: Operation) -> int:
    return 1 if _ENDING.search(operation.name) else _LATER.get(operation.method, 0)


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
            for secret in plant.secrets:
                assert not holds(data, secret.removesuffix("+/="))
            walk_all(walk, plant, ids)
        server.kill()  # the log of the database stays as it is
    files = search_files(plant, data)
    for asked, content in plant.answers:
        assert plant.found_in(content) == [], asked
    _check_the_search(plant, data, files)


def search_files(plant: Planted, data: Path) -> dict[Path, bytes]:
    """The database and its log, blobs, and what the server has written to its own log."""
    files = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for path, content in files.items():
        assert plant.found_in(content) == [], path
    return files


def walk_all(walk: Walk, plant: Planted, ids: dict[str, str]) -> None:
    """Every operation, with the ids of what is there."""
    for operation in sorted(OPERATIONS, key=order):
        path = operation.path.format_map(_Ids(ids))
        body = {} if operation.method == "GET" else {"json": {}}
        walk.ask(operation.method, path, **body)
        if operation.name == "roost.sessions.export":
            plant.answers.append(("export", _unpacked(plant.answers[-2][1])))


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


class _Ids(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "none"


def _unpacked(archive: bytes) -> bytes:
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(archive)).read()
