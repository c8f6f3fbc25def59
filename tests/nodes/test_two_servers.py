"""Two real servers on one PostgreSQL: any of them serves any client, and each goes on for the other."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from tests.gateway.talk import Api, Talk, address
from tests.sdk.test_official_sdks import check

from roost.testing.live import LiveServer
from roost.testing.postgres import PASSWORD, PostgresServer

KEY = "roost_the_same_key_on_every_node_0123456789"
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
    "x-api-key": KEY,
}
pytestmark = pytest.mark.xdist_group("nodes")
JOURNEY = Path(__file__).parent.parent / "sdk" / "journey.py"


@pytest.fixture(scope="module")
def nodes(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[LiveServer]]:
    """Started at the same time, on a database that is empty."""
    data = tmp_path_factory.mktemp("nodes")
    environ = {
        "ROOST_DATABASE_URL": anyio.run(postgres.new),
        "ROOST_BLOBS_URL": f"file://{data}/blobs",
        "ROOST_API_KEY": KEY,
        "ROOST_LEASE_SECONDS": "6",
    }
    servers = [LiveServer(data / name, ROOST_NODE_NAME=name, **environ) for name in ("a", "b")]
    with ExitStack() as stack:
        starting = [threading.Thread(target=server.start) for server in servers]
        for thread in starting:
            thread.start()
        for server, thread in zip(servers, starting, strict=True):
            thread.join()
            stack.push(server.__exit__)
        yield servers
    for server in servers:
        assert PASSWORD not in server.output


def client_of(server: LiveServer) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, headers=HEADERS, timeout=300)


def post(server: LiveServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with client_of(server) as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def get(server: LiveServer, path: str) -> dict[str, Any]:
    with client_of(server) as client:
        answer = client.get(path)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def new_session(server: LiveServer) -> str:
    agent = post(server, "/v1/agents", {"name": f"a {time.time_ns()}", "model": "scripted"})
    environment = post(server, "/v1/environments", {"name": f"e {time.time_ns()}"})
    body = {"agent": agent["id"], "environment_id": environment["id"]}
    return str(post(server, "/v1/sessions", body)["id"])


def say(server: LiveServer, session_id: str, **step: Any) -> None:
    text = f"SCRIPT{json.dumps([step])}"
    event = {"type": "user.message", "content": [{"type": "text", "text": text}]}
    post(server, f"/v1/sessions/{session_id}/events", {"events": [event]})


def eventually(look: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)
    return found


def said_of(server: LiveServer, session_id: str, what: str) -> bool:
    return any(session_id in line and what in line for line in server.output.splitlines())


def runs(server: LiveServer, session_id: str) -> bool:
    return said_of(server, session_id, "runner starts")


def taken(server: LiveServer, session_id: str) -> bool:
    events = get(server, f"/v1/sessions/{session_id}/events")["data"]
    return all(e["processed_at"] for e in events if e["type"] == "user.message")


def run_at(
    node: LiveServer, other: LiveServer, *, asked: LiveServer | None = None, **step: Any
) -> str:
    """A session whose turn one server runs; sent to the other one, unless said otherwise."""
    asked = asked or other
    for _ in range(20):
        session_id = new_session(asked)
        say(asked, session_id, **step)
        eventually(lambda id=session_id: runs(node, id) or runs(other, id))
        if runs(node, session_id):
            eventually(lambda id=session_id: taken(asked, id))  # or the next message would join it
            return session_id
    raise AssertionError("one node takes everything")


def follow(server: LiveServer, session_id: str, seen: list[dict[str, Any]]) -> None:
    """Until the session rests, with previews."""
    path = f"/v1/sessions/{session_id}/events/stream"
    params = {"event_deltas[]": "agent.message", "after": "0"}
    with client_of(server) as client, client.stream("GET", path, params=params) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                if seen[-1].get("type") == "session.status_idle":
                    return


@pytest.mark.chaos
def test_the_official_sdk_s_journey_and_one_that_changes_servers(nodes: list[LiveServer]) -> None:
    a, b = nodes
    command = [sys.executable, str(JOURNEY), b.url, KEY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    check(report, report["version"])
    session_id = new_session(a)
    for number in range(6):
        say((a, b)[number % 2], session_id, text=f"answer {number}")
        eventually(
            lambda n=number: get((b, a)[n % 2], f"/v1/sessions/{session_id}")["status"] == "idle"
        )
    events = get(a, f"/v1/sessions/{session_id}/events")["data"]
    said = [e["content"][0]["text"] for e in events if e["type"] == "agent.message"]
    assert said == [f"answer {number}" for number in range(6)]


def test_a_client_of_one_server_follows_what_the_other_runs(nodes: list[LiveServer]) -> None:
    a, b = nodes
    text = "word " * 40
    session_id = run_at(b, a, text=text, delay=1, chunk_delay=0.02)
    seen: list[dict[str, Any]] = []
    follow(a, session_id, seen)
    types = [event["type"] for event in seen]
    assert types[-1] == "session.status_idle"
    assert types.count("agent.message") == 1
    assert "event_delta" in types, "previews do not come from the other server"


def test_a_program_without_a_cursor_sees_each_turn_once_wherever_it_is_sent(
    nodes: list[LiveServer],
) -> None:
    """As behind a load balancer: each stream and each message at another server."""
    session_id = new_session(nodes[0])
    for number in range(4):
        watched, told = nodes[number % 2], nodes[(number + 1) % 2]
        path = f"/v1/sessions/{session_id}/events/stream"
        seen: list[dict[str, Any]] = []
        with client_of(watched) as client, client.stream("GET", path) as stream:
            lines = stream.iter_lines()
            next(lines)
            say(told, session_id, text=f"answer {number}")
            for line in lines:
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
                    if seen[-1]["type"] == "session.status_idle":
                        break
        said = [e["content"][0]["text"] for e in seen if e["type"] == "agent.message"]
        assert said == [f"answer {number}"]


def test_a_token_of_one_server_opens_a_socket_at_the_other(nodes: list[LiveServer]) -> None:
    a, b = nodes
    session_id = new_session(a)
    with Api(a, KEY) as api:
        token = api.token(session_id)
    with Talk(address(b, token=token, sessionId=session_id)) as talk:
        talk.say("start")
        talk.until("agent_status")
        say(a, session_id, text="heard at the other server")
        talk.until(lambda message: "heard at the other server" in json.dumps(message))


def test_a_key_is_counted_and_revoked_for_both_servers(nodes: list[LiveServer]) -> None:
    a, b = nodes
    limits = {"reads_per_minute": 4, "writes_per_minute": 0}
    key = post(a, "/roost/v1/keys", {"name": "limited", "limits": limits})
    with Api(a, key["secret"]) as here, Api(b, key["secret"]) as there:
        session_id = here.session()
        socket = there.open(session_id)  # its token and the socket are two of the four
        codes = [api.http.get("/v1/agents").status_code for api in (here, there, here, there)]
        assert codes == [200, 200, 429, 429]
        with client_of(a) as client:
            assert client.delete(f"/roost/v1/keys/{key['id']}").status_code == 200
        code, _ = socket.close_code()
        assert code == 4401, "what the key had opened at the other server"
        assert there.http.get("/auth/me").status_code == 401


def test_a_skill_that_one_server_was_sent_is_at_the_other(nodes: list[LiveServer]) -> None:
    a, b = nodes
    manifest = b"---\nname: greeting\ndescription: Greets.\n---\nSay hello.\n"
    with client_of(a) as client:
        sent = client.post("/v1/skills", files=[("files[]", ("greeting/SKILL.md", manifest))])
        assert sent.status_code == 200, sent.text
        skill = sent.json()
    path = f"/v1/skills/{skill['id']}/versions/latest/content"
    with client_of(b) as client:
        content = client.get(path)
    assert content.status_code == 200, content.text
    with zipfile.ZipFile(io.BytesIO(content.content)) as archive:
        assert archive.read("greeting/SKILL.md") == manifest


def test_the_sessions_of_a_killed_server_go_on_at_the_other(nodes: list[LiveServer]) -> None:
    a, b = nodes
    session_id = run_at(b, a, text="in the end", delay=3)
    killed = time.monotonic()
    b.kill()
    eventually(lambda: runs(a, session_id))
    print(f"taken over {time.monotonic() - killed:.2f} s after SIGKILL")
    eventually(lambda: get(a, f"/v1/sessions/{session_id}")["status"] == "idle")
    events = get(a, f"/v1/sessions/{session_id}/events")["data"]
    said = [e["content"][0]["text"] for e in events if e["type"] == "agent.message"]
    assert said == ["in the end"]
    b.start()


def state_of(server: LiveServer, name: str) -> str:
    """How a node is, as any server says."""
    living = [n for n in get(server, "/roost/v1/nodes")["data"] if n["state"] != "gone"]
    [node] = [node for node in living if node["name"] == name]
    return str(node["state"])


def answers(server: LiveServer, session_id: str) -> list[str]:
    """What was said, once the session rests."""
    eventually(lambda: get(server, f"/v1/sessions/{session_id}")["status"] == "idle")
    events = get(server, f"/v1/sessions/{session_id}/events")["data"]
    return [e["content"][0]["text"] for e in events if e["type"] == "agent.message"]


def test_a_draining_server_hands_its_sessions_over_and_may_even_die_of_it(
    nodes: list[LiveServer],
) -> None:
    a, b = nodes
    session_id = run_at(b, a, asked=b, text="first", delay=2)
    say(a, session_id, text="second")
    with Api(b, KEY) as api:
        token = api.token(session_id)
    with Talk(address(b, token=token, sessionId=session_id)) as talk:
        post(a, "/roost/v1/nodes/b/drain", {})
        code, _ = talk.close_code()
        assert code == 1012
    ready = httpx2.get(f"{b.url}/readyz")
    assert (ready.status_code, "draining" in ready.text) == (503, True)
    assert state_of(b, "b") == "draining"
    assert answers(b, session_id) == ["first", "second"]
    assert runs(a, session_id), "the second turn was not handed over"
    for _ in range(3):  # what comes in at the draining server is worked on by the other
        late = new_session(b)
        say(b, late, text="late")
        assert answers(b, late) == ["late"]
        assert not runs(b, late)
    post(b, "/roost/v1/nodes/b/resume", {})
    eventually(lambda: httpx2.get(f"{b.url}/readyz").status_code == 200)
    session_id = run_at(b, a, asked=b, text="in the end", delay=3)
    post(a, "/roost/v1/nodes/b/drain", {})
    b.kill()
    assert answers(a, session_id) == ["in the end"]
    b.start()
    assert state_of(a, "b") == "up", "the mark has outlived its server"


def test_a_server_that_was_stopped_is_refused_when_it_goes_on(nodes: list[LiveServer]) -> None:
    a, b = nodes
    session_id = run_at(b, a, text="in the end", delay=2)
    os.kill(b.pid, signal.SIGSTOP)
    try:
        eventually(lambda: runs(a, session_id))
        eventually(lambda: get(a, f"/v1/sessions/{session_id}")["status"] == "idle")
    finally:
        os.kill(b.pid, signal.SIGCONT)
    eventually(lambda: said_of(b, session_id, "runner leaves"))
    events = get(b, f"/v1/sessions/{session_id}/events")["data"]
    said = [e["content"][0]["text"] for e in events if e["type"] == "agent.message"]
    assert said == ["in the end"]
    assert len({e["id"] for e in events}) == len(events)
