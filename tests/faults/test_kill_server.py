"""The whole server is killed with SIGKILL while sessions work; nothing is lost, doubled or reordered."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from roost.testing.live import LiveServer

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
}
SESSIONS = 6


class Client:
    """A client that never gives up: repeats a request, with the same client id, until it is answered."""

    def __init__(self, server: LiveServer) -> None:
        self._http = httpx2.Client(
            base_url=server.url, headers={**HEADERS, "x-api-key": server.key}, timeout=300
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        while True:
            try:
                answer = self._http.post(path, json=body)
            except httpx2.HTTPError:
                time.sleep(0.05)
                continue
            if answer.status_code == 503:
                time.sleep(0.05)
                continue
            assert answer.status_code == 200, answer.text
            done: dict[str, Any] = answer.json()
            return done

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        while True:
            try:
                answer = self._http.get(path, params=params)
            except httpx2.HTTPError:
                time.sleep(0.05)
                continue
            assert answer.status_code == 200, answer.text
            done: dict[str, Any] = answer.json()
            return done

    def events(self, session_id: str) -> list[dict[str, Any]]:
        found, page = [], None
        while True:
            params = {"page": page} if page else {}
            answer = self.get(f"/v1/sessions/{session_id}/events", **params)
            found += answer["data"]
            page = answer["next_page"]
            if page is None:
                return found


def talk(server: LiveServer, session_id: str, messages: int, seed: int) -> None:
    rng = random.Random(seed)
    with Client(server) as client:
        for number in range(messages):
            send(client, session_id, number, rng)
            time.sleep(rng.uniform(0, 0.3))


def send(client: Client, session_id: str, number: int, rng: random.Random) -> None:
    step = {"text": f"answer {number}", "delay": rng.uniform(0, 0.1), "chunk_delay": 0.01}
    event = {
        "type": "user.message",
        "content": [{"type": "text", "text": f"SCRIPT{json.dumps([step])}"}],
        "client_id": f"message-{number}",
    }
    client.post(f"/v1/sessions/{session_id}/events", {"events": [event]})


@pytest.mark.parametrize(
    "kills", [3, pytest.param(40, marks=[pytest.mark.chaos, pytest.mark.timeout(900)])]
)
def test_a_server_killed_at_random_moments_answers_every_message_once(tmp_path: Path, kills: int):
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    rng = random.Random(seed)
    with LiveServer(tmp_path / "data") as server, Client(server) as client:
        agent = client.post("/v1/agents", {"name": "a", "model": "scripted"})
        environment = client.post("/v1/environments", {"name": "e"})
        body = {"agent": agent["id"], "environment_id": environment["id"]}
        sessions = [client.post("/v1/sessions", body)["id"] for _ in range(SESSIONS)]
        messages = 4 + kills
        talkers = [
            threading.Thread(target=talk, args=(server, session, messages, rng.randrange(2**32)))
            for session in sessions
        ]
        for talker in talkers:
            talker.start()
        for _ in range(kills):
            time.sleep(rng.uniform(0.1, 0.9))
            server.kill()
            server.start()
        for talker in talkers:
            talker.join()
        for session in sessions:
            check(client, session, messages)


def check(client: Client, session_id: str, messages: int) -> None:
    deadline = time.monotonic() + 60
    while client.get(f"/v1/sessions/{session_id}")["status"] != "idle":
        assert time.monotonic() < deadline, "the session does not come to rest"
        time.sleep(0.1)
    events = client.events(session_id)
    sent = [e["client_id"] for e in events if e["type"] == "user.message"]
    assert sent == [f"message-{number}" for number in range(messages)]
    assert all(e["processed_at"] for e in events)
    assert len({e["id"] for e in events}) == len(events)
    answers = [e["content"][0]["text"] for e in events if e["type"] == "agent.message"]
    # Messages that waited together are answered together, by the script of the last one: in order,
    # none twice, and the last message always has its answer.
    numbers = [int(answer.removeprefix("answer ")) for answer in answers]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == messages - 1
    assert [e["type"] for e in events][-1] == "session.status_idle"
