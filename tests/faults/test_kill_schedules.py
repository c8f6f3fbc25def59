"""The server is killed with SIGKILL while it makes up for missed times: each of them has one session."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2

from roost.testing.live import LiveServer

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
}
DEPLOYMENTS = 3
TIMES = 5
KILLS = 4
HOUR = 3_600_000_000
SCHEDULE = {"type": "cron", "expression": "0 * * * *", "timezone": "UTC"}
GO = {"type": "user.message", "content": [{"type": "text", "text": "go"}]}


class Api:
    def __init__(self, server: LiveServer) -> None:
        self._url = server.url
        self._more: Any = {"headers": {**HEADERS, "x-api-key": server.key}, "timeout": 300}

    def post(self, path: str, body: Any) -> Any:
        answer = httpx2.post(self._url + path, json=body, **self._more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def get(self, path: str, **params: Any) -> list[Any]:
        given = {"limit": 100, **params}
        answer = httpx2.get(self._url + path, params=given, **self._more)
        assert answer.status_code == 200, answer.text
        found: list[Any] = answer.json()["data"]
        return found

    def runs(self, deployment_id: str, **params: Any) -> list[Any]:
        return self.get(f"/roost/v1/deployments/{deployment_id}/runs", **params)


def changed(server: LiveServer, *statements: str) -> None:
    """Change the database of a server that is down."""
    with closing(sqlite3.connect(server.data / "roost.db")) as database, database:
        for statement in statements:
            database.execute(statement)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def test_killed_while_it_catches_up_each_time_has_one_session(tmp_path: Path):
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    chance = random.Random(seed)
    with LiveServer(tmp_path, ROOST_SCHEDULE_JITTER="0") as server:
        api = Api(server)
        agent = api.post("/v1/agents", {"name": "a", "model": "claude-opus-5-5"})
        environment = api.post("/v1/environments", {"name": "e"})
        params = {"name": "d", "agent": agent["id"], "environment_id": environment["id"]}
        params |= {"initial_events": [GO], "schedule": SCHEDULE, "missed_runs": {"policy": "all"}}
        made = [api.post("/v1/deployments", params)["id"] for _ in range(DEPLOYMENTS)]
        server.kill()
        # As if nobody had been there for some hours.
        changed(server, f"UPDATE records SET due_at = due_at - {TIMES * HOUR} WHERE due_at > 0")
        for _ in range(KILLS):
            server.start()
            time.sleep(chance.uniform(0, 0.4))
            server.kill()
            # As if the minute had passed that one who has taken a run may take.
            changed(server, "UPDATE runs SET look_at = 1 WHERE look_at > 0")
        server.start()
        wait_until(lambda: all(len(api.runs(each)) >= TIMES for each in made))
        wait_until(lambda: not any(api.runs(each, state="open") for each in made))
        for each in made:
            runs = api.runs(each)
            assert {run["state"] for run in runs} == {"started"}
            times = [run["trigger_context"]["scheduled_at"] for run in runs]
            assert len(set(times)) == len(times)
            assert len(times) in (TIMES, TIMES + 1)  # an hour may have begun meanwhile
            sessions = api.get("/v1/sessions", deployment_id=each)
            assert {run["session_id"] for run in runs} == {session["id"] for session in sessions}
        every = [s for s in api.get("/v1/sessions") if s["deployment_id"] is not None]
        assert len(every) == sum(len(api.runs(each)) for each in made)
