"""A server that is killed between a commit and its delivery: what it tells of is told after it starts again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
from tests.webhook_receiver import Receiver

from roost.api.access.auth import MANAGED_AGENTS
from roost.testing.live import LiveServer


def roost(server: LiveServer, *arguments: str) -> Any:
    command = [sys.executable, "-m", "roost", "webhooks", *arguments, "--json"]
    environ = os.environ | {"ROOST_DATA": str(server.data)}
    return json.loads(subprocess.check_output(command, env=environ, timeout=300))


def test_what_was_committed_when_the_server_was_killed_is_told_when_it_is_back(tmp_path: Path):
    receiver = Receiver()
    with LiveServer(tmp_path / "data", ROOST_WEBHOOK_NETWORKS="127.0.0.0/8") as server:
        webhook = roost(server, "create", receiver.url, "--event", "agent.created")
        headers = {"x-api-key": server.key, "anthropic-version": "2023-06-01"}
        made = httpx2.post(
            f"{server.url}/v1/agents",
            json={"name": "a", "model": "claude-x"},
            headers=headers | {"anthropic-beta": MANAGED_AGENTS},
        ).json()
        server.kill()
        with receiver.listening():
            server.start()
            deadline = time.monotonic() + 300
            while not receiver.seen and time.monotonic() < deadline:
                time.sleep(0.05)
        [[event], [listed]] = receiver.seen, roost(server, "ls")
        assert (event["type"], event["id"]) == ("agent.created", made["id"])
        assert (listed["id"], listed["state"]) == (webhook["id"], "enabled")
        while (found := roost(server, "deliveries", webhook["id"]))[0]["state"] == "pending":
            assert time.monotonic() < deadline
        assert [(each["state"], each["status"]) for each in found] == [("delivered", 204)]
    receiver.server_close()
