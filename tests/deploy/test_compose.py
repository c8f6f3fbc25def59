"""The compose file as a whole: three servers behind its balancer, real agents in bubblewrap in containers."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Generator
from itertools import chain
from types import SimpleNamespace
from typing import Any, cast

import anthropic
import httpx2
import pytest
from tests.deploy.stack import KEY, Stack, running, wait_until
from tests.faults.cluster import seeded
from tests.gateway.talk import Api
from tests.journeys.chat import Chat, bash, printed, said, script
from tests.nodes.real_agents import ANSWERED, SAID, Load

from roost.testing.live import LiveServer

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(3600),
    pytest.mark.xdist_group("docker"),
]
SERVERS = 3


@pytest.fixture(scope="module")
def stack() -> Generator[Stack, None, None]:
    with running() as made:
        yield made


def balancer(stack: Stack) -> LiveServer:
    """All that a client knows of a server."""
    return cast(LiveServer, SimpleNamespace(url=stack.url, key=KEY))


def the_one_at_work(stack: Stack) -> str:
    """The node that runs the one session which is at work."""
    found: list[str] = []

    def look() -> bool:
        found[:] = [node["name"] for node in stack.nodes() if node["sessions_at_work"]]
        return len(found) == 1

    wait_until(look, "one server at work")
    return found[0]


class Follower:
    """Reads a session until a turn has ended, like a client that never gives up."""

    def __init__(self, chat: Chat) -> None:
        self._session_id = chat.session.id
        self._client = anthropic.Anthropic(base_url=chat.server.url, api_key=KEY, max_retries=10)
        self._turns = sum(event.type == "session.status_idle" for event in chat.events()) + 1
        self.seen: dict[str, Any] = {}
        self.breaks = 0
        self.connected = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._is_done():
            try:
                self._once()
            except (anthropic.APIError, httpx2.HTTPError):
                self.breaks += 1
                time.sleep(0.1)

    def _once(self) -> None:
        """What was before, then what comes."""
        events = self._client.beta.sessions.events
        with events.stream(self._session_id) as stream:
            self.connected.set()
            for event in chain(events.list(self._session_id), stream):
                self.seen.setdefault(event.id, event)
                if self._is_done():
                    return
        self.breaks += 1

    def _is_done(self) -> bool:
        ended = sum(event.type == "session.status_idle" for event in self.seen.values())
        return ended >= self._turns

    def wait(self) -> list[Any]:
        """Everything it saw, once the turn has ended."""
        self._thread.join(240)
        assert self._is_done(), [event.type for event in self.seen.values()]
        return list(self.seen.values())


def test_a_turn_runs_in_bubblewrap_in_a_container_and_is_seen_at_every_server(stack: Stack) -> None:
    chat = Chat(balancer(stack), key=KEY)
    followers = [Follower(chat) for _ in range(2 * SERVERS)]
    for follower in followers:
        assert follower.connected.wait(60)
    names = [node["name"] for node in stack.nodes()]
    wait_until(
        lambda: all(stack.metric(name, "roost_open_streams") >= 1 for name in names),
        "followers at every server",
    )
    look = "hostname; id -u; ls /proc | grep -c '^[0-9]'; unshare -U true 2>&1 | grep -c unshare"
    chat.send(script(bash(look), {"text": "seen"}))
    seen = [follower.wait() for follower in followers]
    for events in seen:
        assert said(events) == ["seen"]
        host, uid, processes, refused = printed(events)[0].split()
        assert (host, uid, int(processes) < 12, refused) == ("sandbox", "1000", True, "1")
        ids = [event.id for event in events]
        assert ids == [event.id for event in seen[0]], "not the same in the same order"
    with Api(balancer(stack)) as api, api.talk(chat.session.id) as talk:
        talk.say("message", content="Hello through a socket.")
        assert talk.until("done", 120)


def test_when_a_server_dies_in_a_turn_the_answer_still_comes_once(stack: Stack) -> None:
    chat = Chat(balancer(stack), key=KEY)
    assert said(chat.turn(script(bash("echo mine > note.txt"), {"text": "made"}))) == ["made"]
    followers = [Follower(chat) for _ in range(2 * SERVERS)]
    work = bash("sleep 6; cat note.txt; echo ran >> ran.txt")
    chat.send(script(work, {"text": "there"}))
    chat.wait_for("agent.tool_use", 2)
    dying = the_one_at_work(stack)
    began = time.monotonic()
    stack.crash(dying)
    for follower in followers:
        assert said(follower.wait()) == ["made", "there"]
    took = time.monotonic() - began
    print(
        f"answered {took:.1f} s after the crash; streams that broke: {[f.breaks for f in followers]}"
    )
    assert sum(follower.breaks for follower in followers) >= 1, "nobody followed at the dead server"
    chat.wait_until_idle()
    assert said(chat.events()) == ["made", "there"]
    assert printed(chat.turn(script(bash("cat note.txt"), {"text": "kept"}))) == ["mine"]
    wait_until(lambda: stack.is_healthy(dying), "the engine has started it again")
    wait_until(lambda: len(stack.nodes()) == SERVERS, "three servers again")


def test_a_server_that_hangs_is_left_alone_and_its_turn_goes_on_elsewhere(stack: Stack) -> None:
    chat = Chat(balancer(stack), key=KEY)
    chat.send(script(bash("sleep 20"), {"text": "there"}))
    chat.wait_for("agent.tool_use")
    hung = the_one_at_work(stack)
    stack.pause(hung)
    began, waits = time.monotonic(), [0.0]
    try:
        done = False
        while not done:
            asked = time.monotonic()
            done = said(chat.events()) == ["there"]  # a request that is cut off is sent again
            waits.append(time.monotonic() - asked)
            assert asked - began < 120, "nobody has taken it over"
        print(f"answered {asked - began:.1f} s later; the slowest request took {max(waits):.1f} s")
        assert max(waits) < 40, "the balancer did not notice"
    finally:
        stack.pause(hung, again=True)
    wait_until(lambda: len(stack.nodes()) == SERVERS, "three servers again")
    wait_until(lambda: stack.is_healthy(hung), "it is well again")
    assert said(chat.events()) == ["there"]


def test_servers_are_replaced_one_after_the_other_and_nothing_is_lost(stack: Stack) -> None:
    load = Load([balancer(stack)], 6, seeded())
    with load.running(clients=3):
        for node in list(stack.replicas()):
            before = load.counts["acknowledged"]
            wait_until(lambda b=before: load.counts["acknowledged"] >= b + 6, "some work")
            began = time.monotonic()
            path = f"{stack.url}/roost/v1/nodes/{node}/drain"
            load.ask("POST", path.removeprefix(stack.url), {})
            wait_until(lambda n=node: is_empty(stack, n), f"{node} has handed everything over")
            drained = time.monotonic() - began
            stack.restart(node)
            print(
                f"{node}: drained in {drained:.1f} s, back after {time.monotonic() - began:.1f} s"
            )
    load.wait_until_all_rest(240)
    print(dict(load.counts))
    with Api(balancer(stack)) as api:
        for number, session_id in enumerate(load.ids):
            check_answers(number, api.events(session_id), len(load.sent[number]))


def is_empty(stack: Stack, name: str) -> bool:
    [node] = [node for node in stack.nodes() if node["name"] == name]
    return not node["sessions"]


def check_answers(session: int, events: list[dict[str, Any]], sent: int) -> None:
    """Each input is there once, and was answered once."""

    def found(type: str, pattern: Any) -> Counter[str]:
        texts = [event["content"][0]["text"] for event in events if event["type"] == type]
        return Counter(match[0] for text in texts for match in [pattern.match(text)] if match)

    inputs = {f"input {session}.{number}": 1 for number in range(sent)}
    assert found("user.message", SAID) == inputs
    spoken = {f"answer {session}.{number}": 1 for number in range(sent)}
    assert found("agent.message", ANSWERED) == spoken


def test_everything_is_there_after_down_and_up(stack: Stack) -> None:
    chat = Chat(balancer(stack), key=KEY)
    assert said(chat.turn(script(bash("echo mine > note.txt"), {"text": "made"}))) == ["made"]
    before = [event.id for event in chat.events()]
    large = os.urandom(40_000_000)  # more than many a balancer lets through by itself
    file = chat.client.beta.files.upload(file=("large.bin", large))
    stack.compose("down")
    assert stack.replicas() == {}
    stack.up()
    assert [event.id for event in chat.events()] == before
    assert chat.client.beta.files.download(file.id).read() == large
    assert printed(chat.turn(script(bash("cat note.txt"), {"text": "there"}))) == ["mine"]
    assert "3 user messages" in said(chat.turn("How much do you remember?"))[0]
