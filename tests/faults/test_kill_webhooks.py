"""A server that is killed between a commit and its delivery: what it tells of is told after it starts again."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.webhook_receiver import Receiver

from roost.api.access.auth import MANAGED_AGENTS
from roost.testing.live import LiveServer

KILLS = 20


def roost(server: LiveServer, *arguments: str) -> Any:
    command = [sys.executable, "-m", "roost", "webhooks", *arguments, "--json"]
    environ = os.environ | {"ROOST_DATA": str(server.data)}
    return json.loads(subprocess.check_output(command, env=environ, timeout=300))


def make_agent(server: LiveServer, name: str) -> str:
    """An agent, committed. :raises HTTPError: the server is gone"""
    headers = {"x-api-key": server.key, "anthropic-version": "2023-06-01"}
    answer = httpx2.post(
        f"{server.url}/v1/agents",
        json={"name": name, "model": "claude-x"},
        headers=headers | {"anthropic-beta": MANAGED_AGENTS},
        timeout=300,
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def test_what_was_committed_when_the_server_was_killed_is_told_when_it_is_back(tmp_path: Path):
    receiver = Receiver()
    with LiveServer(tmp_path / "data", ROOST_WEBHOOK_NETWORKS="127.0.0.0/8") as server:
        webhook = roost(server, "create", receiver.url, "--event", "agent.created")
        made = make_agent(server, "a")
        server.kill()
        with receiver.listening():
            server.start()
            wait_until(lambda: bool(receiver.seen))
        [[event], [listed]] = receiver.seen, roost(server, "ls")
        assert (event["type"], event["id"]) == ("agent.created", made)
        assert (listed["id"], listed["state"]) == (webhook["id"], "enabled")
        deliveries: list[Any] = []

        def delivered() -> bool:
            deliveries[:] = roost(server, "deliveries", webhook["id"])
            return bool(deliveries[0]["state"] != "pending")

        wait_until(delivered)
        assert [(each["state"], each["status"]) for each in deliveries] == [("delivered", 204)]
    receiver.server_close()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_of_what_is_committed_while_the_server_is_killed_again_and_again_all_is_told(
    tmp_path: Path,
):
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    chance = random.Random(seed)
    receiver, committed = Receiver(), list[str]()

    def write(server: LiveServer) -> None:
        while True:
            try:
                committed.append(make_agent(server, f"agent {len(committed)}"))
            except httpx2.HTTPError:
                return  # killed

    with (
        receiver.listening(),
        LiveServer(tmp_path / "data", ROOST_WEBHOOK_NETWORKS="127.0.0.0/8") as server,
    ):
        roost(server, "create", receiver.url, "--event", "agent.created")
        for _ in range(KILLS):
            writer = threading.Thread(target=write, args=(server,))
            before = len(committed)
            writer.start()
            wait_until(lambda before=before: len(committed) > before)
            time.sleep(chance.uniform(0, 0.4))
            server.kill()
            writer.join()
            server.start()
        wait_until(lambda: set(committed) <= {seen["id"] for seen in receiver.seen})
    receiver.server_close()
    # Told again or not, an event has one id, by which receivers know it.
    events = {(seen["id"], event) for seen, event in zip(receiver.seen, receiver.ids, strict=True)}
    assert len(events) == len({about for about, _ in events}) == len({event for _, event in events})
