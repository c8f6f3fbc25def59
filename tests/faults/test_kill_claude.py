"""The agent, its sandbox or the whole server is killed while the real Claude Code works.

What may happen twice is talk: the CLI prints before it writes its transcript, so what it said just
before it was killed may be said again. What may not is work: no command runs twice.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest
from tests.journeys.chat import Chat, bash, said, script, serving

from roost.harnesses.claude.harness import INSIDE
from roost.harnesses.claude.ids import Ids
from roost.sandboxes import procfs
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

VICTIMS = ("agent", "sandbox", "server")
COMMANDS = 3
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}


class Worker:
    """A session that is given commands to run; each leaves a line of its own in a file."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self.chat = Chat(server)
        self.sent: list[str] = []
        self._mark = Ids(self.chat.session.id).conversation.encode()

    def give_work(self, rng: random.Random) -> None:
        number = len(self.sent)
        text = f"message {number}. {work_of(number, rng)}"
        self.chat.send(text)
        self.sent.append(f"message {number}")

    def processes(self) -> list[int]:
        """Everything on the machine that was started for this conversation."""
        return [
            seen.pid
            for seen in procfs.everything()
            if self._mark in b" ".join(procfs.command_line(seen.pid))
        ]

    def agents(self) -> list[int]:
        return [pid for pid in self.processes() if is_agent(pid)]

    def sandboxes(self) -> list[int]:
        own = set(procfs.children(self.server.pid))
        return [pid for pid in self.processes() if pid in own]

    @property
    def ran(self) -> list[str]:
        return (self.chat.home / "ran.txt").read_text().splitlines()


def work_of(number: int, rng: random.Random, longest: float = 0.4) -> str:
    steps = [
        bash(f"echo {number}.{command} >> ran.txt; sleep {rng.uniform(0, longest):.2f}")
        for command in range(COMMANDS)
    ]
    return script(*steps, {"text": f"answer {number}"})


def is_agent(pid: int) -> bool:
    return procfs.command_line(pid)[:1] == [INSIDE.encode()]


def kill(victim: str, worker: Worker) -> None:
    if victim == "server":
        worker.server.kill()
        worker.server.start()
        return
    for pid in some(worker.agents if victim == "agent" else worker.sandboxes):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def some(find: Callable[[], list[int]]) -> Iterable[int]:
    """What it finds, as soon as that is anything: between two processes there is none."""
    deadline = time.monotonic() + 60
    while not (pids := find()):
        assert time.monotonic() < deadline, "no agent is started"
        time.sleep(0.01)
    return pids


@pytest.mark.timeout(240)
def test_whatever_is_killed_every_message_is_answered_and_nothing_is_left_running(tmp_path: Path):
    kill_at_random(tmp_path, [*VICTIMS, "sandbox", "server"])


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victims", [VICTIMS, *((victim,) for victim in VICTIMS)], ids="-".join)
def test_killed_at_a_hundred_random_moments(tmp_path: Path, victims: Sequence[str]):
    kill_at_random(tmp_path, [victims[number % len(victims)] for number in range(100)])


@pytest.mark.timeout(240)
@pytest.mark.chaos
def test_a_server_killed_while_it_starts_the_agent_leaves_nothing_and_starts_it_again(
    tmp_path: Path,
):
    rng = seeded()
    model = ScriptedModel(keep=1)
    with (
        serving(model) as url,
        LiveServer(tmp_path / "data", ANTHROPIC_BASE_URL=url) as server,
    ):
        worker = Worker(server)
        worker.give_work(rng)
        for _ in range(3):
            before = set(some(worker.sandboxes))
            time.sleep(rng.uniform(0, 0.01))
            kill("server", worker)
            some(worker.sandboxes)
            assert not before & set(worker.processes())
        worker.chat.wait_until_idle()
        check_log(worker)
        check_work(worker)
        assert server.stop() == 0
        assert worker.processes() == []


@pytest.mark.timeout(240)
def test_a_server_killed_in_the_moment_of_a_message_answers_it_once(tmp_path: Path):
    kill_in_the_moment_of_messages(tmp_path, 2)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_server_killed_in_the_moments_of_sixty_messages_answers_each_once(tmp_path: Path):
    kill_in_the_moment_of_messages(tmp_path, 60)


def kill_in_the_moment_of_messages(data: Path, count: int) -> None:
    """Each time the agent is awake and ready: the message is accepted and taken up by one commit, or is not.
    Its sender cannot know, and sends it again.
    """
    rng = seeded()
    model = ScriptedModel(keep=1)
    with (
        serving(model) as url,
        LiveServer(data / "data", ANTHROPIC_BASE_URL=url) as server,
    ):
        worker = Worker(server)
        heard = 0
        for number in range(count):
            worker.chat.turn(f"message {2 * number}. {work_of(2 * number, rng, 0)}")
            text = f"message {2 * number + 1}. {work_of(2 * number + 1, rng, 0)}"
            with httpx2.Client(base_url=server.url, timeout=60) as client:
                client.get("/healthz")  # it is connected, so that the message is there at once
                killer = Thread(target=lambda: (time.sleep(rng.uniform(0, 0.01)), server.kill()))
                killer.start()
                with suppress(httpx2.TransportError):
                    heard += say_once(client, worker, text, f"key {number}").is_success
                killer.join()
                server.start()
                assert say_once(client, worker, text, f"key {number}").is_success
            worker.chat.wait_until_idle()
        worker.sent = [f"message {number}" for number in range(2 * count)]
        print(f"{heard} of {count} were told before the end")
        check_log(worker)
        check_work(worker)
        check_memory(worker, model)
        assert server.stop() == 0
        assert worker.processes() == []


def say_once(client: httpx2.Client, worker: Worker, text: str, key: str) -> httpx2.Response:
    event = {"type": "user.message", "content": [{"type": "text", "text": text}]}
    headers = {**HEADERS, **worker.chat.client.auth_headers, "idempotency-key": key}
    path = f"/v1/sessions/{worker.chat.session.id}/events"
    return client.post(path, json={"events": [event]}, headers=headers)


def seeded() -> random.Random:
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    return random.Random(seed)


def kill_at_random(data: Path, victims: list[str]) -> None:
    """Kill these, in any order, while two sessions work."""
    rng = seeded()
    rng.shuffle(victims)
    model = ScriptedModel(keep=1)
    with (
        serving(model) as url,
        LiveServer(data / "data", ANTHROPIC_BASE_URL=url) as server,
    ):
        workers = [Worker(server), Worker(server)]
        for victim in victims:
            worker = rng.choice(workers)
            worker.chat.wait_until_idle()
            worker.give_work(rng)
            time.sleep(rng.uniform(0, 2.5))
            kill(victim, worker)
        busy = [worker for worker in workers if worker.sent]
        for worker in busy:
            worker.chat.wait_until_idle()
        for worker in busy:
            check_log(worker)
            check_work(worker)
            check_memory(worker, model)
        assert server.stop() == 0
        assert [pid for worker in workers for pid in worker.processes()] == []


def check_log(worker: Worker) -> None:
    events = worker.chat.events()
    assert len({event.id for event in events}) == len(events)
    messages = [event for event in events if event.type == "user.message"]
    texts = [event.content[0].text for event in messages]
    assert [text.partition(". ")[0] for text in texts] == worker.sent
    assert all(event.processed_at for event in messages)
    begins = [events.index(message) for message in messages]
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(events)], strict=True)):
        check_turn(number, events[begin:end])


def check_turn(number: int, turn: list[Any]) -> None:
    """The script goes on by counting what the agent has said, and the CLI puts a filler of its own
    into a turn that was cut off: then the last step is past the script's end.
    """
    assert said(turn)[-1].startswith((f"answer {number}", "The script is over")), said(turn)
    rests = [event.stop_reason.type for event in turn if event.type == "session.status_idle"]
    assert rests == ["end_turn"], [event.to_dict() for event in turn]
    called: list[str] = []
    commands: list[str] = []
    for event in turn:
        if event.type == "agent.tool_use":
            commands.append(event.input["command"])
            assert commands[-1].startswith(f"echo {number}.")
            called.append(event.id)
        elif event.type == "agent.tool_result":
            called.remove(event.tool_use_id)
    assert not called, "a call without a result"
    # The CLI's transcript may lag behind by several calls: those are made again, and refused.
    firsts = list(dict.fromkeys(commands))
    assert firsts == sorted(firsts), "called in another order"


def check_work(worker: Worker) -> None:
    assert len(set(worker.ran)) == len(worker.ran), worker.ran
    assert worker.ran == sorted(worker.ran, key=lambda line: [*map(int, line.split("."))])
    assert len(worker.ran) >= len(worker.sent)  # a kill may cost a command, and not many
    assert len(worker.agents()) <= 1


def check_memory(worker: Worker, model: ScriptedModel) -> None:
    """The model sees all that was ever said, and after a kill also the CLI's own words about that."""
    worker.chat.send(f"How much do you remember? {script()}")
    worker.chat.wait_until_idle()
    answer = said(worker.chat.events())[-1]
    counted = re.search(r"I have seen (\d+) user messages", answer)
    assert counted is not None, answer
    assert int(counted[1]) > len(worker.sent)
    seen = str(model.requests[-1].body["messages"])
    places = [seen.find(f"message {number}. SCRIPT") for number in range(len(worker.sent))]
    assert -1 not in places
    assert places == sorted(places)
