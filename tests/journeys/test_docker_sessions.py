"""The journeys of the real Claude Code again, in containers of a real engine; and an engine that goes away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.engines import IMAGE, LiveEngine
from tests.journeys import test_claude_sessions as journeys
from tests.journeys.chat import Chat, bash, said, script, warm_agents

from roost.sandboxes.docker.engine import Engine
from roost.testing.live import LiveServer

pytestmark = pytest.mark.xdist_group("docker")

# Whoever holds a session cannot tell where its agent lives.
test_a_killed_server = (
    journeys.test_a_server_killed_in_the_middle_of_a_tool_goes_on_and_runs_nothing_twice
)
test_an_approval = journeys.test_an_approval_outlives_a_killed_server_and_counts_once
test_a_refusal = journeys.test_what_the_sandbox_may_not_reach_is_refused_and_said_in_the_log


def in_docker(engine: LiveEngine, data: Path, **environ: str) -> LiveServer:
    socket = str(engine.socket)
    chosen = {"ROOST_SANDBOX": "docker", "ROOST_DOCKER_SOCKET": socket, "ROOST_DOCKER_IMAGE": IMAGE}
    return LiveServer(data, **chosen, **environ)


def containers(engine: LiveEngine, chat: Chat) -> int:
    return len(anyio.run(Engine(engine.socket).sandboxes, chat.session.id))


def errors(chat: Chat) -> list[Any]:
    return [event.error for event in chat.events() if event.type == "session.error"]


@pytest.fixture
def server(docker: LiveEngine, tmp_path: Path) -> Iterator[LiveServer]:
    with in_docker(docker, tmp_path / "data", ROOST_SLEEP_AFTER="60") as live:
        yield live


def test_an_agent_that_sleeps_has_no_container_and_the_next_message_wakes_it(
    docker: LiveEngine, tmp_path: Path
) -> None:
    with in_docker(docker, tmp_path / "data", ROOST_SLEEP_AFTER="1") as server:
        chat = Chat(server)
        chat.turn("Hello")
        assert containers(docker, chat) == 1
        _wait(lambda: not warm_agents(server) and not containers(docker, chat))
        assert "2 user messages" in said(chat.turn("Are you awake?"))[0]


def test_a_session_whose_engine_is_gone_waits_and_goes_on_by_itself(
    docker: LiveEngine, server: LiveServer
) -> None:
    chat = Chat(server)
    slow = "echo ran >>count.txt; python3 -c 'import time; time.sleep(30)'"
    chat.send(script(bash(slow), {"text": "finished"}))
    chat.wait_for("agent.tool_use")
    _wait(lambda: (chat.home / "count.txt").exists() and "tool_use" in journeys.transcript_of(chat))
    docker.stop()
    try:
        chat.send("Are you there?")
        _wait(lambda: any("Start the Docker engine" in error.message for error in errors(chat)))
        assert f"no engine at {docker.socket}" in errors(chat)[-1].message
        assert {error.retry_status.type for error in errors(chat)} == {"retrying"}
        assert chat.client.beta.sessions.retrieve(chat.session.id).status == "rescheduling"
    finally:
        docker.start()
    chat.wait_until_idle()
    first, second = said(chat.events())
    assert first == "finished"
    assert "3 user messages" in second  # one of them says that the turn was cut off
    assert (chat.home / "count.txt").read_text() == "ran\n"


def _wait(for_it: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not for_it():
        assert time.monotonic() < deadline
        time.sleep(0.05)
