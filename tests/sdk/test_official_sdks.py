"""The official SDKs, old and new, unchanged, against a live server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from tests.parts import need
from tests.stores import Databases
from tests.webhook_receiver import Receiver

from roost.testing.live import LiveServer

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TOOLS = ROOT / ".tools"
GET_PARTS = "scripts/install-test-parts"

PYTHONS = {
    "2.8.0": Path(sys.executable),
    "1.17.0": TOOLS / "py-1.17.0/bin/python",
    "0.121.0": TOOLS / "py-0.121.0/bin/python",
}
TYPESCRIPTS = ["1.8.0", "0.86.1"]


@pytest.fixture(scope="module")
def server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    data = tmp_path_factory.mktemp("roost")
    with LiveServer(data, ROOST_WEBHOOK_NETWORKS="127.0.0.0/8") as live:
        yield live


@pytest.mark.parametrize("version", PYTHONS)
def test_a_journey_with_the_python_sdk(server: LiveServer, version: str):
    python = PYTHONS[version]
    need(f"the Python SDK {version}", python.exists(), GET_PARTS)
    report = run([str(python), str(HERE / "journey.py"), server.url, server.key])
    check(report, version)
    assert report["files"] == {"listed": True, "content": "hello", "name": "0.txt"}


@pytest.mark.parametrize("version", TYPESCRIPTS)
def test_a_journey_with_the_typescript_sdk(server: LiveServer, version: str):
    folder = TOOLS / f"ts-{version}"
    need(f"the TypeScript SDK {version}", (folder / "node_modules").exists(), GET_PARTS)
    node = ROOT / ".venv/bin/node"
    check(run([str(node), str(HERE / "journey.mjs"), server.url, server.key, str(folder)]), version)


def run(command: list[str], given: str = "") -> dict[str, Any]:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def check(report: dict[str, Any], version: str) -> None:
    assert report["version"] == version
    assert report["created"] == "idle"
    for turn in (report["sent_first"], report["streamed_first"]):
        assert turn["stop_reason"] == "end_turn"
        assert turn["seen"].count("agent.message") == 1
        assert turn["seen"][-3:] == [
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
        ] or turn["seen"][-2:] == ["session.thread_status_idle", "session.status_idle"]
    # The answers name how many user messages the model has seen: the conversation goes on.
    assert "1 user message" in report["sent_first"]["text"]
    assert "2 user messages" in report["streamed_first"]["text"]
    assert report["interrupted"]["stop_reason"] == "end_turn"
    assert "user.interrupt" in report["interrupted"]["seen"]
    assert report["listed"].count("user.message") == 3
    assert report["ids"] == len(report["listed"])
    assert report["texts"][:2] == [report["sent_first"]["text"], report["streamed_first"]["text"]]
    assert report["newest"] == "session.status_idle"
    assert report["found"]
    assert report["idle"] == "idle"
    assert report["archived"] == "terminated"
    assert report["refused"]["status"] == 400
    assert report["refused"]["body"]["error"]["type"] == "invalid_request_error"
    assert report["refused"]["body"]["request_id"].startswith("req_")
    assert report["vaults"] == {
        "name": "ours",
        "conflict": 409,
        "other_type": 400,
        "types": ["mcp_oauth", "environment_variable", "static_bearer"],
        "validation": ["vault_credential_validation", "unknown", True],
        "one_archived": True,
        "one_deleted": "vault_credential_deleted",
        "archived": True,
        "with_it": True,
        "listed": True,
        "deleted": "vault_deleted",
        "gone": 404,
    }
    if report["deployments"] is None:  # this SDK does not have them
        assert version == "0.86.1"
        return
    assert report["deployments"] == {
        "status": "active",
        "upcoming": 5,
        "name": "weekly",
        "paused": "manual",
        "listed": True,
        "run": ["manual", None, True],
        "runs": True,
        "session": True,
        "unpaused": "active",
        "wrong": 400,
        "archived": True,
        "ended": [],
        "walked": [
            ["archive", "create", "list", "pause", "retrieve", "run", "unpause", "update"],
            ["list", "retrieve"],
        ],
        "left": [],
    }


def test_the_typescript_sdk_unwraps_what_is_sent_and_refuses_every_changed_byte(server: LiveServer):
    folder = TOOLS / "ts-1.8.0"  # the older one has no webhooks
    need("the TypeScript SDK 1.8.0", (folder / "node_modules").exists(), GET_PARTS)
    receiver, client = Receiver(), Anthropic(base_url=server.url, api_key=server.key)
    asked = {"url": receiver.url, "enabled_events": ["agent.created"]}
    with receiver.listening():
        webhook: Any = client.post("/roost/v1/webhooks", body=asked, cast_to=object)
        client.beta.agents.create(name="a", model="claude-opus-5-5")
        deadline = time.monotonic() + 300
        while not receiver.raw:
            assert time.monotonic() < deadline, "nothing was sent"
            time.sleep(0.05)
    receiver.server_close()
    client.delete(f"/roost/v1/webhooks/{webhook['id']}", cast_to=object)
    client.close()
    headers, body = receiver.raw[0]
    given = {"headers": headers, "body": body, "key": webhook["signing_secret"]}
    node = ROOT / ".venv/bin/node"
    report = run([str(node), str(HERE / "unwrap.mjs"), str(folder)], json.dumps(given))
    assert report == {"about": "agent.created", "changed": len(body), "accepted": []}
