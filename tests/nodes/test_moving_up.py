"""A server with a thousand sessions outgrows its file: stopped, moved to PostgreSQL, and it goes on."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from tests.faults.test_kill_server import Client, check
from tests.journeys.chat import Chat, bash, printed, said, script

from roost.testing.live import LiveServer
from roost.testing.postgres import PASSWORD, PostgresServer

SESSIONS = 1000
CLIENTS = 8
AT_WORK = 30
"""So many are at work when the server is killed."""
pytestmark = pytest.mark.xdist_group("nodes")


def send(client: Client, session_id: str, number: int, delay: float = 0) -> None:
    told = f"SCRIPT{json.dumps([{'text': f'answer {number}', 'delay': delay}])}"
    event = {
        "type": "user.message",
        "content": [{"type": "text", "text": told}],
        "client_id": f"message-{number}",
    }
    client.post(f"/v1/sessions/{session_id}/events", {"events": [event]})


def at_once(server: LiveServer, what: Callable[[Client, str], object], on: Iterable[str]) -> None:
    """Several clients, each of which does it with some."""
    todo = list(on)

    def some(first: int) -> None:
        with Client(server) as client:
            for session_id in todo[first::CLIENTS]:
                what(client, session_id)

    with ThreadPoolExecutor(CLIENTS) as threads:
        for done in [threads.submit(some, first) for first in range(CLIENTS)]:
            done.result()


def thousand_sessions(server: LiveServer) -> list[str]:
    """Each has a message. The server is killed while it still works on the last of them."""
    with Client(server) as client:
        agent = client.post("/v1/agents", {"name": "a", "model": "scripted"})
        environment = client.post("/v1/environments", {"name": "e"})
        body = {"agent": agent["id"], "environment_id": environment["id"]}
    made: list[str] = []

    def begin(client: Client, number: str) -> None:
        session_id = client.post("/v1/sessions", body)["id"]
        send(client, session_id, 0, delay=0 if int(number) < SESSIONS - AT_WORK else 2)
        made.append(session_id)

    at_once(server, begin, map(str, range(SESSIONS)))
    server.kill()
    return made


def migrate(path: Path, url: str, kill_at: re.Pattern[str] | None) -> tuple[int, str]:
    """The command, killed when it says something like this; its exit code, and what it said."""
    command = [sys.executable, "-m", "roost", "migrate", "--from", f"sqlite:///{path}", "--to", url]
    told = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            told.append(line)
            if kill_at is not None and kill_at.search(line):
                process.kill()
    return process.returncode, "".join(told)


def moved_with_kills(path: Path, url: str, points: list[str]) -> str:
    for point in points:
        code, told = migrate(path, url, re.compile(point))
        assert code < 0, f"it was over before {point!r}:\n{told}"
    code, told = migrate(path, url, None)
    assert code == 0, told
    assert PASSWORD not in told
    return told


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_a_thousand_sessions_are_moved_in_spite_of_kills_and_go_on(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    move_and_go_on(postgres, tmp_path, ["copying entries: [1-9]", "checking sessions"], sample=40)


def move_and_go_on(postgres: PostgresServer, data: Path, kills: list[str], sample: int) -> None:
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    url = anyio.run(postgres.new)
    with LiveServer(data) as server:
        sessions = thousand_sessions(server)
    told = moved_with_kills(data / "roost.db", url, kills)
    assert "going on with" in told
    assert (counts := re.search(r"checked: 1,000 sessions with ([0-9,]+) entries", told))
    assert int(counts[1].replace(",", "")) < 10 * SESSIONS, "no session was killed at work"
    print(told)
    with LiveServer(data, ROOST_DATABASE_URL=url) as server:
        chosen = set(random.Random(seed).sample(sessions, sample))
        at_once(server, lambda client, session_id: send(client, session_id, 1), chosen)
        wait_until_all_rest(server)
        at_once(server, lambda client, session_id: check(client, session_id, 2), chosen)
        assert server.stop() == 0


def wait_until_all_rest(server: LiveServer) -> None:
    """Also those that the old server was killed with, which have an answer to give."""
    deadline = time.monotonic() + 120
    at_work = {"statuses[]": ["running", "rescheduling"], "limit": 100}
    with Client(server) as client:
        while left := client.get("/v1/sessions", **at_work)["data"]:
            assert time.monotonic() < deadline, f"{len(left)} sessions do not come to rest"
            time.sleep(0.2)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_moved_and_killed_at_many_points_every_one_of_a_thousand_sessions_goes_on(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    kills = ["copying creations|copying entries", "copying entries: [2-9],", "copying keys"]
    kills += ["copying sessions", "copying versions", "checking entries", "checking versions"]
    move_and_go_on(postgres, tmp_path, kills, sample=SESSIONS)


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_the_real_agent_remembers_and_finds_its_files_after_the_move(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = anyio.run(postgres.new)
    with LiveServer(tmp_path) as server:
        chat = Chat(server)
        assert said(chat.turn(script(bash("echo mine > note.txt"), {"text": "made"}))) == ["made"]
        server.kill()
    moved_with_kills(tmp_path / "roost.db", url, ["copying entries"])
    with LiveServer(tmp_path, ROOST_DATABASE_URL=url) as server:
        chat.move_to(server)
        assert printed(chat.turn(script(bash("cat note.txt"), {"text": "there"}))) == ["mine"]
        assert "3 user messages" in said(chat.turn("How much do you remember?"))[0]
