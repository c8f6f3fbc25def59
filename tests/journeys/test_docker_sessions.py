"""More journeys of the real Claude Code in containers; and an engine that is stopped under one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import IMAGE, LiveEngine
from tests.journeys import test_claude_sessions as journeys
from tests.journeys import test_resources as resources
from tests.journeys.chat import Chat, bash, printed, said, script

from roost.testing.live import LiveServer

# The first of them has an engine to start, and all of them have agents.
pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("docker")]

# Whoever holds a session cannot tell where its agent lives.
test_a_killed_server = (
    journeys.test_a_server_killed_in_the_middle_of_a_tool_goes_on_and_runs_nothing_twice
)
test_an_approval = journeys.test_an_approval_outlives_a_killed_server_and_counts_once
test_a_refusal = journeys.test_what_the_sandbox_may_not_reach_is_refused_and_said_in_the_log


def errors(chat: Chat) -> list[Any]:
    return [event.error for event in chat.events() if event.type == "session.error"]


@pytest.fixture
def server(docker: LiveEngine, tmp_path: Path) -> Iterator[LiveServer]:
    socket = str(docker.socket)
    chosen = {"ROOST_SANDBOX": "docker", "ROOST_DOCKER_SOCKET": socket, "ROOST_DOCKER_IMAGE": IMAGE}
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="60", **chosen) as live:
        yield live


def test_files_are_shown_and_outputs_are_taken_in_containers(server: LiveServer) -> None:
    """This image has no git, which is said of a repository; the rest goes on."""
    chat = Chat(server)
    original = chat.client.beta.files.upload(file=("data.csv", b"1,2\n"))
    given = [
        {"type": "file", "file_id": original.id, "mount_path": "data.csv"},
        {"type": "github_repository", "url": "https://github.com/a/b"},
    ]
    chat.session = chat.client.beta.sessions.create(
        agent=chat.session.agent.id,
        environment_id=chat.session.environment_id,
        resources=given,
        extra_body={"harness": "claude"},
    )
    look = """
        cat /mnt/session/uploads/data.csv
        echo x 2>/dev/null >/mnt/session/uploads/data.csv || echo read-only
        printf out >/mnt/session/outputs/out.txt
    """
    (text,) = printed(chat.turn(script(bash(look), {"text": "done"})))
    assert text.split()[0] == "1,2"
    assert text.split()[-1] == "read-only"
    assert resources.outputs(chat, "out.txt") == {"out.txt": b"out"}
    (error,) = errors(chat)
    assert (error.type, "has no git" in error.message) == ("repository_clone_error", True)


def test_a_session_whose_engine_is_gone_waits_and_goes_on_by_itself(
    docker: LiveEngine, server: LiveServer
) -> None:
    chat = Chat(server)
    slow = "echo ran >>count.txt; python3 -c 'import time; time.sleep(30)'"
    chat.send(script(bash(slow), {"text": "finished"}))
    chat.wait_for("agent.tool_use")
    _wait(lambda: _ran(chat) == "ran\n" and "tool_use" in journeys.transcript_of(chat))
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
    assert _ran(chat) == "ran\n"


def _ran(chat: Chat) -> str:
    count = chat.home / "count.txt"
    return count.read_text() if count.exists() else ""


def _wait(for_it: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not for_it():
        assert time.monotonic() < deadline
        time.sleep(0.05)
