"""The real Claude Code, started before the session that it will work for is made."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest
from tests.journeys.chat import Chat, bash, gauge, printed, said, script
from tests.stores import Databases

from roost.harnesses.claude.harness import INSIDE
from roost.sandboxes import procfs
from roost.testing.live import LiveServer

POOLED = "roost_prestarted_agents"


@pytest.fixture(scope="module")
def server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("pool") / "data", ROOST_PRESTART="1") as live:
        yield live


def wait_until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def homes(server: LiveServer) -> set[str]:
    places = server.data / "vault" / ".workspaces"
    return {home.name for home in places.iterdir()} if places.exists() else set()


def ahead(chat: Chat, before: set[str]) -> str:
    """The home of the agent that was started ahead for a session like this one."""
    wait_until(lambda: gauge(chat.server, POOLED) == 1)
    (ready,) = homes(chat.server) - before - {chat.session.id}
    return ready


def agents(server: LiveServer) -> set[int]:
    found = procfs.descendants([server.pid])
    return {seen.pid for seen in found if INSIDE.encode() in procfs.command_line(seen.pid)[:1]}


def test_a_session_like_the_one_before_gets_an_agent_that_is_already_there(server: LiveServer):
    before = homes(server)
    first = Chat(server)
    first.turn("Hello")
    ready = ahead(first, before)
    started = agents(server)

    second = first.another()
    assert second.session.id == ready
    answered = second.turn(script(bash("pwd; echo mine > note.txt"), {"text": "noted"}))
    assert (printed(answered), said(answered)) == (["/workspace"], ["noted"])
    assert (second.home / "note.txt").read_text() == "mine\n"
    assert started <= agents(server)
    assert "2 user messages" in said(second.turn("And before?"))[0]


def test_what_was_started_ahead_may_die_with_the_server(server: LiveServer):
    before = homes(server)
    first = Chat(server)
    first.turn("Hello")
    given = ahead(first, before)
    second = first.another()
    assert second.session.id == given
    left = ahead(first, before | {given})
    server.kill()
    server.start()
    assert left not in homes(server)
    assert "1 user message" in said(second.turn("Are you there?"))[0]
    assert "2 user messages" in said(first.turn("And before?"))[0]


def test_an_agent_that_died_while_it_waited_is_not_given_away(server: LiveServer):
    before = homes(server)
    first = Chat(server)
    first.turn("Hello")
    at_work = agents(server)
    ready = ahead(first, before)
    for pid in agents(server) - at_work:
        procfs.send(pid, signal.SIGKILL, still=lambda: True)
    second = first.another()
    assert "1 user message" in said(second.turn("Hello"))[0]
    if second.session.id != ready:  # else it was given away in the instant of its death
        wait_until(lambda: ready not in homes(server))
