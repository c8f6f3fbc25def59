"""Agents in a pool of Roost's own: the guest by hand, as a pool's users try it, and real Claude Code by `SessionProxy`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import httpx2
import pytest
from tests.journeys.chat import serving
from tests.pool.pool_server import OFFICIAL, PoolClient
from tests.pool.small_pool import PLANTED
from tests.pool.stocked import ENVIRON, PACKAGES, PYTHON, planted

import roost
from roost.client import SessionProxy
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

SECRET = "a secret that nobody can guess"
HOST = "127.0.0.2"  # a loopback address that no program takes for its own machine's
SOURCE = Path(roost.__file__).parent
Json = dict[str, Any]


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with serving(ScriptedModel(), HOST) as url:
        yield url


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, databases: None, model: str
) -> Iterator[LiveServer]:
    root = tmp_path_factory.mktemp("pool")
    environ = {
        "PYTHONPATH": str(planted(root / "site")),
        "ROOST_SANDBOX": "stocked",
        "ROOST_EGRESS_NETWORKS": f"{HOST}/32",
        "ROOST_EGRESS_PORTS": model.rpartition(":")[2],
    }
    with LiveServer(root / "data", **environ) as server:
        headers = {"x-api-key": server.key, **OFFICIAL}
        with httpx2.Client(base_url=server.url, headers=headers, verify=False) as http:
            networking = {"type": "limited", "allowed_hosts": [HOST]}
            config = {"type": "cloud", "networking": networking}
            made = http.post("/v1/environments", json={"name": "of agents", "config": config})
            assert made.status_code == 200, made.text
            body = {"name": "agents", "environment_id": made.json()["id"]}
            answer = http.post("/roost/v1/pools", json=body)
            assert answer.status_code == 200, answer.text
        yield server


@pytest.fixture
def pool(server: LiveServer) -> PoolClient:
    return PoolClient(server, server.key, "agents", f"by-hand-{uuid4().hex}")


def install(pool: PoolClient) -> None:
    """Put the guest where the pool's interpreter finds it."""
    files = {"roost": [SOURCE / "__init__.py"], "roost/guest": [*(SOURCE / "guest").glob("*.py")]}
    for folder, paths in files.items():
        for path in paths:
            sent = {"file": (path.name, path.read_bytes())}
            answer = pool.ask("POST", "files", params={"path": folder}, files=sent)
            assert answer.status_code == 200, answer.text


def shell(pool: PoolClient, command: str) -> str:
    told = pool.ask("POST", "executions", json={"shellCommand": command}).json()
    assert told["status"] == "0", told
    out: str = told["result"]["stdout"]
    return out


STORE = """
import json
from roost.guest.session_store import SessionStore, SessionState

store = SessionStore('/tmp/test.json')
state = SessionState(session_id='test-123', initialized=True)
store.save(state)
loaded = store.load()
print(json.dumps({'session_id': loaded.session_id, 'initialized': loaded.initialized}))
"""


def test_the_guest_is_tried_by_hand(pool: PoolClient, server: LiveServer) -> None:
    install(pool)
    imports = (
        "from roost.guest import run_init, run_chat, EventType; "
        "from roost.guest.session_store import SessionStore, SessionState; print('Imports OK')"
    )
    assert shell(pool, f'python3 -c "{imports}"') == "Imports OK\n"
    emits = (
        "from roost.guest.events import emit_event, EventType; "
        "emit_event(EventType.PROGRESS, step='test', message='Testing')"
    )
    assert shell(pool, f'python3 -c "{emits}"') == (
        '{"type": "progress", "step": "test", "message": "Testing"}\n'
    )
    assert shell(pool, f'python3 -c "{STORE}"') == (
        '{"session_id": "test-123", "initialized": true}\n'
    )
    begins = "from roost.guest import run_init; import asyncio; asyncio.run(run_init('omnia-data'))"
    libraries = ENVIRON.get("LD_LIBRARY_PATH", "")
    where = f"LD_LIBRARY_PATH={libraries} PYTHONPATH=/mnt/data:{PACKAGES}"
    out = shell(pool, f'{where} {PYTHON} -c "{begins}"')
    assert [json.loads(line)["type"] for line in out.splitlines()][-1] == "done"
    execute = (
        'from roost.guest.events import emit_event; emit_event("progress", step="test")',
        'from roost.guest import run_init; print("OK")',
    )
    bodies = (
        {"codeInputType": "inline", "executionType": "synchronous", "code": execute[0]},
        {"code": execute[1]},
    )
    told = [_curl(server, pool, {"properties": body}) for body in bodies]
    assert told == ['{"type": "progress", "step": "test"}\n', "OK\n"]


def _curl(server: LiveServer, pool: PoolClient, body: Json) -> str:
    """What an execution prints, asked for by curl where there is one."""
    url = f"{server.url}{pool.base}/code/execute?identifier={pool.identifier}"
    if shutil.which("curl") is None:
        answer: Json = pool.send("POST", url, json=body).json()
    else:
        given = [
            "-H",
            f"Authorization: Bearer {server.key}",
            "-H",
            "Content-Type: application/json",
        ]
        command = ["curl", "-s", "-X", "POST", url, *given, "-d", json.dumps(body)]
        answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert answer["properties"]["status"] == "Success", answer
    out: str = answer["properties"]["stdout"]
    return out


async def test_claude_code_remembers_three_turns(server: LiveServer, model: str) -> None:
    environ = {
        **ENVIRON,
        "ANTHROPIC_BASE_URL": model,
        "ANTHROPIC_API_KEY": "placeholder",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    endpoint = f"{server.url}/roost/v1/pools/agents"
    given: Json = {"secret": SECRET, "api_version": None, "environ": environ, "python": PYTHON}
    async with SessionProxy(endpoint, server.key, **given) as proxy:
        with anyio.fail_after(500):
            for turn in (1, 2, 3):
                told = [each async for each in proxy.stream_sdk_session_chat("chat", f"no {turn}")]
                text = "".join(each["content"] for each in told if each["type"] == "text")
                assert f"I have seen {turn} user message" in text, told
                assert text.endswith(f"says: no {turn}")
                assert (told[-1]["type"], told[-1]["turns"]) == ("done", turn)
            assert (await proxy.get_session_status("chat"))["turns"] == 3


async def test_a_killed_server_ends_the_turn_and_not_the_conversation(
    server: LiveServer, model: str
) -> None:
    environ = {"PYTHONPATH": "/mnt/data/planted"}
    endpoint = f"{server.url}/roost/v1/pools/agents"
    async with SessionProxy(endpoint, server.key, secret=SECRET, environ=environ) as proxy:
        pool = PoolClient(server, server.key, "agents", proxy.identifier("killed"))
        sdk = PLANTED / "claude_agent_sdk" / "__init__.py"
        sent = {"file": (sdk.name, sdk.read_bytes())}
        folder = "planted/claude_agent_sdk"
        assert pool.ask("POST", "files", params={"path": folder}, files=sent).status_code == 200
        told: list[Json] = []
        with anyio.fail_after(500):
            message = 'PLAY {"pieces": 99999, "pause": 0.01}'
            async for event in proxy.stream_sdk_session_chat("killed", message):
                told.append(event)
                if event["type"] == "text" and event["content"] == "0 ":
                    await anyio.to_thread.run_sync(server.kill)
                    await anyio.to_thread.run_sync(server.start)
            assert "was ended from outside" in told[-1]["error"]
            numbers = [int(event["content"]) for event in told if event["type"] == "text"]
            assert numbers == list(range(len(numbers)))
            after = [each async for each in proxy.stream_sdk_session_chat("killed", "again")]
        assert (after[-1]["type"], after[-1]["turns"]) == ("done", 1)
        assert "messages 2," in after[1]["content"]
