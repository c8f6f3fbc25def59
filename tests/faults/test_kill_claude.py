"""The agent, its sandbox or the whole server is killed while the real Claude Code works.

What may happen twice is talk: the CLI prints before it writes its transcript, so what it said just
before it was killed may be said again. What may not is work: no command runs twice.

Every session has a mark of its own, which is in all that is said to it and in each of its commands. No other
session's mark may be in its log, its files, or what its agent asks the model: a model's answer that reached the
wrong session (a kept connection with something left in it) is a command with the wrong mark.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import pytest
from tests.journeys.chat import Chat, bash, said, script, serving

from roost.builtin_model.script import Fault
from roost.core.sandbox.loopback import FORWARDER
from roost.harnesses.claude.harness import INSIDE
from roost.harnesses.stable_ids import StableIds
from roost.sandboxes import procfs
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel, SeenRequest

VICTIMS = ("agent", "sandbox", "server")
_MIXED = ("agent", "sandbox") * 4 + ("server",)  # a server comes back slowest, and ends all turns
COMMANDS = 3
CUTS = 3  # how often a message is cut off at most: one that always is comes to its end only when that stops
PATIENCE = 240.0  # seconds; on a machine with other work, eight agents take long to come back
_MARK = "mark-"
_MARKS = re.compile(rf"{_MARK}[0-9a-f]{{8}}")
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}


class Worker:
    """A session that is given commands to run; each leaves a line of its own in a file."""

    harness = "claude"
    program = INSIDE
    model = "claude-opus-5-5"
    counts_messages = True  # whether its model is shown each message as one

    def __init__(self, server: LiveServer, beside: Worker | None = None) -> None:
        self.server = server
        agent = {"model": self.model}
        self.chat = (
            beside.chat.another() if beside else Chat(server, harness=self.harness, agent=agent)
        )
        self.mark = f"{_MARK}{random.SystemRandom().randbytes(4).hex()}"
        self.sent: list[str] = []
        self.kills: list[int] = []  # for each message
        self._name = self.name_of(self.chat.session.id).encode()

    @staticmethod
    def settings(url: str, folder: Path) -> dict[str, str]:
        """How the server is told where the model is; files for that are written into this folder."""
        return {"ANTHROPIC_BASE_URL": url}

    def name_of(self, session_id: str) -> str:
        """What is in the command line of everything that was started for the session."""
        return StableIds(session_id).conversation

    def runs(self, command: str) -> dict[str, Any]:
        """The model's call that runs a command."""
        return bash(command)

    def give_work(self, rng: random.Random) -> None:
        number = len(self.sent)
        self.chat.send(self.message(number, rng))
        self.sent.append(f"message {number} of {self.mark}")
        self.kills.append(0)

    def is_spared(self) -> bool:
        """Whether it works on a message that was cut off often enough."""
        return bool(self.kills) and self.kills[-1] >= CUTS and not self.is_idle()

    def was_killed(self) -> None:
        if self.kills:
            self.kills[-1] += 1

    def message(self, number: int, rng: random.Random, longest: float = 0.4) -> str:
        steps = [
            self.runs(
                f"echo {self.mark}.{number}.{n} >> ran.txt; sleep {rng.uniform(0, longest):.2f}"
            )
            for n in range(COMMANDS)
        ]
        answer = {"text": f"answer {number} of {self.mark}"}
        return f"message {number} of {self.mark}. {script(*steps, answer)}"

    def is_idle(self) -> bool:
        return self.chat.status == "idle"

    def processes(self) -> list[int]:
        """Everything on the machine that was started for this conversation."""
        return [
            seen.pid
            for seen in procfs.everything()
            if self._name in b" ".join(procfs.command_line(seen.pid))
        ]

    def agents(self) -> list[int]:
        commands = {pid: procfs.command_line(pid) for pid in self.processes()}
        program, forwarder = self.program.encode(), FORWARDER.encode()
        return [
            pid
            for pid, command in commands.items()
            if command[:1] == [program] and forwarder not in command
        ]

    def sandboxes(self) -> list[int]:
        own = set(procfs.children(self.server.pid))
        return [pid for pid in self.processes() if pid in own]

    def check(self) -> None:
        """What holds with this harness besides."""

    @property
    def ran(self) -> list[str]:
        found = self.chat.home / "ran.txt"
        return found.read_text().splitlines() if found.exists() else []


class Model(ScriptedModel):
    """Looks whose marks are in what it is asked."""

    def __init__(self) -> None:
        super().__init__(keep=0)
        self.asked: dict[str, str] = {}  # the last conversation that was shown, by mark
        self.mixed: list[str] = []

    def seen(self, request: SeenRequest) -> Fault | None:
        shown = str(request.body.get("messages") or request.body.get("input"))
        marks = set(_MARKS.findall(shown))
        if len(marks) > 1:
            self.mixed.append(shown)
        # Without tools, a program asks for a title, or the like; Codex gives its tools among the messages.
        if request.body.get("tools") or request.body.get("input"):
            self.asked.update(dict.fromkeys(marks, shown))
        return super().seen(request)


def some(find: Callable[[], list[int]]) -> Iterable[int]:
    """What it finds, as soon as that is anything: between two processes there is none."""
    deadline = time.monotonic() + PATIENCE
    while not (pids := find()):
        assert time.monotonic() < deadline, "no agent is started"
        time.sleep(0.01)
    return pids


@pytest.mark.timeout(900)
def test_whatever_is_killed_every_message_is_answered_and_nothing_is_left_running(tmp_path: Path):
    kill_at_random(tmp_path, 6, 3)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_killed_at_a_thousand_random_moments_no_command_is_in_two_sessions_or_runs_twice(
    tmp_path: Path,
):
    """`ROOST_CHAOS_KILLS` says how many, `ROOST_TEST_SEED` when and whom."""
    kill_at_random(tmp_path, int(os.environ.get("ROOST_CHAOS_KILLS") or 1000), 8)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", VICTIMS)
def test_one_kind_of_victim_killed_a_hundred_times_neither_loses_nor_doubles_work(
    tmp_path: Path, victim: str
):
    kill_at_random(tmp_path, 100, 8, [victim])


@pytest.mark.timeout(900)
@pytest.mark.chaos
def test_a_server_killed_while_it_starts_the_agent_leaves_nothing_and_starts_it_again(
    tmp_path: Path,
):
    rng = seeded()
    model = Model()
    with (
        serving(model) as url,
        LiveServer(tmp_path / "data", ANTHROPIC_BASE_URL=url) as server,
    ):
        worker = Worker(server)
        worker.give_work(rng)
        for _ in range(3):
            before = set(some(worker.sandboxes))
            time.sleep(rng.uniform(0, 0.01))
            server.kill()
            server.start()
            some(worker.sandboxes)
            assert not before & set(worker.processes())
        finish(server, [worker], model)


@pytest.mark.timeout(900)
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
    model = Model()
    with (
        serving(model) as url,
        LiveServer(data / "data", ANTHROPIC_BASE_URL=url) as server,
    ):
        worker = Worker(server)
        heard = 0
        for number in range(count):
            worker.chat.turn(worker.message(2 * number, rng, 0))
            text = worker.message(2 * number + 1, rng, 0)
            with httpx2.Client(base_url=server.url, timeout=300) as client:
                client.get("/healthz")  # it is connected, so that the message is there at once
                killer = Thread(target=lambda: (time.sleep(rng.uniform(0, 0.01)), server.kill()))
                killer.start()
                with suppress(httpx2.TransportError):
                    heard += say_once(client, worker, text, f"key {number}").is_success
                killer.join()
                server.start()
                assert say_once(client, worker, text, f"key {number}").is_success
            worker.chat.wait_until_idle()
        worker.sent = [f"message {number} of {worker.mark}" for number in range(2 * count)]
        print(f"{heard} of {count} were told before the end")
        finish(server, [worker], model)


def say_once(client: httpx2.Client, worker: Worker, text: str, key: str) -> httpx2.Response:
    event = {"type": "user.message", "content": [{"type": "text", "text": text}]}
    headers = {**HEADERS, **worker.chat.client.auth_headers, "idempotency-key": key}
    path = f"/v1/sessions/{worker.chat.session.id}/events"
    return client.post(path, json={"events": [event]}, headers=headers)


def seeded() -> random.Random:
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    return random.Random(seed)


def kill_at_random(
    data: Path,
    wanted: int,
    most: int,
    victims: Sequence[str] = _MIXED,
    kind: type[Worker] = Worker,
) -> None:
    """Kill so many of these kinds, while two sessions to `most` of them work at the same time."""
    rng, model, began = seeded(), Model(), time.monotonic()
    kills: Counter[str] = Counter()
    with (
        serving(model) as url,
        LiveServer(data / "data", **kind.settings(url, data)) as server,
    ):
        workers = [first := kind(server), *(kind(server, first) for _ in range(most - 1))]
        with telling(server, workers):
            at_work = most
            while kills.total() < wanted:
                if kills.total() % 20 == 0:
                    at_work = rng.randint(2, most)
                for worker in workers[:at_work]:
                    if worker.is_idle():
                        worker.give_work(rng)
                time.sleep(rng.uniform(0, 0.5))
                kills.update(kill_one(rng, workers, at_work, rng.choice(victims)))
            finish(server, [worker for worker in workers if worker.sent], model)
    messages, seconds = sum(len(worker.sent) for worker in workers), time.monotonic() - began
    assert messages * (CUTS + 1) >= wanted, f"{messages} messages only, for {wanted} kills"
    print(f"{dict(kills)} kills, {messages} messages to {most} sessions, {seconds:.0f} s")


def kill_one(rng: random.Random, workers: Sequence[Worker], at_work: int, victim: str) -> list[str]:
    """What was killed: nothing, if there was nothing to kill in that moment."""
    if victim == "server":
        # One that is killed as soon as it is up comes to nothing: mostly, an agent is there by then.
        if rng.random() < 0.75 and not any(worker.agents() for worker in workers[:at_work]):
            return []
        if any(worker.is_spared() for worker in workers):
            return []
        workers[0].server.kill()
        workers[0].server.start()
        for worker in workers:
            worker.was_killed()
        return [victim]
    # A turn has four starts.
    left = [worker for worker in workers[:at_work] if worker.kills[-1] < CUTS]
    worker = rng.choice(left) if left else None
    pids = [] if worker is None else worker.agents() if victim == "agent" else worker.sandboxes()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if worker is None or not pids:
        return []
    worker.was_killed()
    return [victim]


def finish(server: LiveServer, workers: Sequence[Worker], model: Model) -> None:
    for worker in workers:
        worker.chat.wait_until_idle(PATIENCE)
    for worker in workers:
        check_log(worker)
        check_work(worker)
        check_memory(worker, model)
        worker.check()
    for worker in workers:
        check_marks(worker)
    assert model.mixed == [], "an agent was told of another session's work"
    assert server.stop() == 0
    assert [pid for worker in workers for pid in worker.processes()] == []


@contextmanager
def telling(server: LiveServer, workers: Sequence[Worker]) -> Iterator[None]:
    """If a check fails, all that is needed to see why is printed: the logs of sessions and server."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            print(f"--- the server's log, its last part\n{server.output[-30_000:]}")
        for worker in workers:
            print(f"--- session {worker.chat.session.id}, {worker.mark}: ran {worker.ran}")
            with suppress(Exception):  # the server may be gone
                for event in worker.chat.events():
                    print(str(event.to_dict())[:500])
        raise


def check_log(worker: Worker) -> None:
    events = worker.chat.events()
    assert len({event.id for event in events}) == len(events)
    messages = [event for event in events if event.type == "user.message"]
    texts = [event.content[0].text for event in messages]
    assert [text.partition(". ")[0] for text in texts] == worker.sent
    assert all(event.processed_at for event in messages)
    begins = [events.index(message) for message in messages]
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(events)], strict=True)):
        check_turn(worker.mark, number, events[begin:end])


def check_turn(mark: str, number: int, turn: list[Any]) -> None:
    """The script goes on by counting what the agent has said, and the CLI puts a filler of its own
    into a turn that was cut off: then the last step is past the script's end.
    """
    rests = [event.stop_reason.type for event in turn if event.type == "session.status_idle"]
    assert rests == ["end_turn"], [event.to_dict() for event in turn]
    answers = (f"answer {number} of {mark}", "The script is over")
    assert said(turn)[-1].startswith(answers), said(turn)
    called: list[str] = []
    commands: list[str] = []
    for event in turn:
        if event.type == "agent.tool_use":
            called.append(event.id)
            if not event.input:  # opencode notes a call before the model has said what it is
                continue
            commands.append(event.input["command"])
            assert commands[-1].startswith(f"echo {mark}.{number}."), commands[-1]
        elif event.type == "agent.tool_result":
            called.remove(event.tool_use_id)
    assert not called, "a call without a result"
    # The CLI's transcript may lag behind by several calls: those are made again, and refused.
    firsts = list(dict.fromkeys(commands))
    assert firsts == sorted(firsts), "called in another order"


def check_work(worker: Worker) -> None:
    assert len(set(worker.ran)) == len(worker.ran), worker.ran
    numbers = [[*map(int, line.removeprefix(f"{worker.mark}.").split("."))] for line in worker.ran]
    assert numbers == sorted(numbers), worker.ran
    for number, kills in enumerate(worker.kills):  # a kill may cost a command, and not many
        begun = [line for line in worker.ran if line.startswith(f"{worker.mark}.{number}.")]
        assert begun or kills > 1, f"nothing was done for message {number}"
    assert len(worker.agents()) <= 1


def check_marks(worker: Worker) -> None:
    """Nothing of another session is in its log, nor in any file that it or its agent has."""
    told = "\n".join(str(event.to_dict()) for event in worker.chat.events())
    assert set(_MARKS.findall(told)) == {worker.mark}, "another session's words are in the log"
    for path in worker.chat.home.rglob("*"):
        if path.is_file() and not path.is_symlink():
            marks = set(_MARKS.findall(path.read_text(errors="replace")))
            assert marks <= {worker.mark}, f"another session's words are in {path.name}"


def check_memory(worker: Worker, model: Model) -> None:
    """The model sees all that was ever said, and after a kill also the CLI's own words about that."""
    worker.chat.send(f"How much do you remember, {worker.mark}? {script()}")
    worker.chat.wait_until_idle(PATIENCE)
    answer = said(worker.chat.events())[-1]
    counted = re.search(r"I have seen (\d+) user messages", answer)
    assert counted is not None, answer
    assert int(counted[1]) > len(worker.sent) or not worker.counts_messages
    seen = model.asked[worker.mark]
    places = [seen.find(f"{text}. SCRIPT") for text in worker.sent]
    assert -1 not in places
    assert places == sorted(places)
