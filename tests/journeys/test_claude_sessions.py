"""The real Claude Code, in a real sandbox, through the real server, with the official SDK."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx2
import pytest
from tests.journeys.chat import Chat, bash, printed, said, script, warm_agents

from roost.testing.live import LiveServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="60") as live:
        yield live


def transcript_of(chat: Chat) -> str:
    files = (chat.home / ".claude/projects/-workspace").glob("*.jsonl")
    return "".join(file.read_text() for file in files)


@pytest.mark.both_stores
def test_a_server_killed_in_the_middle_of_a_tool_goes_on_and_runs_nothing_twice(server: LiveServer):
    chat = Chat(server)
    slow = "echo ran >> count.txt; python3 -c 'import time; time.sleep(3)'"
    chat.send(script(bash(slow), {"text": "finished"}))
    chat.wait_for("agent.tool_use")
    # The CLI runs a call a moment before it writes it down; killed between, it forgets the call.
    deadline = time.monotonic() + 60
    while not ((chat.home / "count.txt").exists() and "tool_use" in transcript_of(chat)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.kill()
    server.start()
    chat.wait_until_idle()
    assert (chat.home / "count.txt").read_text() == "ran\n"
    events = chat.events()
    assert [e.type for e in events].count("user.message") == 1
    assert said(events) == ["finished"]
    assert len({e.id for e in events}) == len(events)
    # The model has seen the first message, that the turn was cut off, and this one.
    assert "3 user messages" in said(chat.turn("Do you remember?"))[0]


SECRET = "sk-very-secret-model-key-0123456789"


@pytest.fixture
def model() -> Iterator[str]:
    """A model that answers only to the operator's key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "roost.testing.scripted_model", "--port", str(port)]
    with subprocess.Popen([*command, "--require-key", SECRET]) as process:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                httpx2.get(f"{url}/v1/models")
                break
            except httpx2.HTTPError:
                time.sleep(0.05)
        yield url
        process.terminate()


def test_no_secret_and_no_neighbour_is_in_the_sandbox(tmp_path: Path, model: str):
    keys = {"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": model}
    with LiveServer(tmp_path / "data", ROOST_SANDBOX_DISK="2049", **keys) as server:
        first, second = Chat(server), Chat(server)
        first.turn(script(bash("echo my neighbour must not read this > own.txt"), {"text": "ok"}))
        look = (
            f"cat {first.home}/own.txt; ls {server.data} /root; cat {server.data}/keys/admin.key; "
            "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; env; ls -a /home; "
            f"curl -sS -m 3 {server.url}/healthz; curl -sS -m 3 {model}/v1/models; "
            "grep -rs 'sk-[v]ery' /home /workspace /tmp /run /etc; echo blocks=$(ulimit -f)"
        )
        (output,) = printed(second.turn(script(bash(look), {"text": "looked"})))
        everything = str([event.to_dict() for event in second.events()]) + server.output
        assert "ANTHROPIC_API_KEY=placeholder" in output
        assert f"blocks={2049 * 1024}" in output
        assert "must not read" not in output
        assert '"status"' not in output
        assert server.key not in output
        assert SECRET not in output
        assert SECRET not in everything


def test_what_the_sandbox_may_not_reach_is_refused_and_said_in_the_log(server: LiveServer):
    chat = Chat(server, networking={"type": "limited", "allowed_hosts": ["example.invalid"]})
    url = "http://somewhere.invalid/"
    asked = '{"model": "claude-dear-1", "max_tokens": 1, "messages": []}'
    model = (
        f"curl -sS --unix-socket /run/roost/model.sock http://localhost/v1/messages -d '{asked}'"
    )
    tries = bash(f"curl -sS -m 5 {url}; {model} -H 'content-type: application/json'")
    events = chat.turn(script(tries, {"text": "tried"}))
    errors = [event.error.message for event in events if event.type == "session.error"]
    assert errors[0] == "the sandbox may not reach somewhere.invalid:80: host_not_allowed"
    assert errors[1].endswith(": model_not_allowed")
    assert "this session may not use 'claude-dear-1'" in printed(events)[0]
    assert said(events) == ["tried"]


@pytest.mark.both_stores
def test_an_idle_agent_sleeps_and_the_next_message_wakes_it(tmp_path: Path):
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="1") as server:
        chat = Chat(server)
        chat.turn("Hello")
        deadline = time.monotonic() + 60
        while warm_agents(server):  # on a slow machine it sleeps by now
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "2 user messages" in said(chat.turn("Are you awake?"))[0]


def test_no_more_agents_stay_awake_than_the_operator_allows(tmp_path: Path):
    with LiveServer(tmp_path / "data", ROOST_MAX_LIVE="1") as server:
        chats = [Chat(server), Chat(server)]
        for chat in chats:
            chat.turn("Hello")
        deadline = time.monotonic() + 60
        while warm_agents(server) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "2 user messages" in said(chats[0].turn("And you?"))[0]


@pytest.mark.both_stores
def test_an_approval_outlives_a_killed_server_and_counts_once(server: LiveServer):
    chat = Chat(server)
    tools = [
        {
            "type": "agent_toolset_20260401",
            "default_config": {"permission_policy": {"type": "always_ask"}},
        }
    ]
    chat.client.beta.sessions.update(chat.session.id, agent={"tools": tools})
    asked = chat.turn(script(bash("echo yes >> allowed.txt"), {"text": "done"}))
    assert asked[-1].stop_reason.type == "requires_action"
    (event_id,) = asked[-1].stop_reason.event_ids
    server.kill()
    server.start()
    answer = {"type": "user.tool_confirmation", "tool_use_id": event_id, "result": "allow"}
    chat.client.beta.sessions.events.send(chat.session.id, events=[answer])
    with pytest.raises(anthropic.BadRequestError, match="is not waiting"):
        chat.client.beta.sessions.events.send(chat.session.id, events=[answer])
    chat.wait_until_idle()
    assert (chat.home / "allowed.txt").read_text() == "yes\n"
    assert said(chat.events()) == ["done"]
