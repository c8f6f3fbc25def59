"""The server is killed around a message and the interrupt after it: the message was taken up before the
interrupt, and then its turn ended with that; or it was withdrawn, and no agent is ever told of it.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.faults.test_kill_server import Client
from tests.journeys.chat import serving
from tests.stores import Files

from roost.builtin_model.script import Fault
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel, SeenRequest

PATIENCE = 240.0  # seconds; on a machine with other work an agent takes long to come back
LOOKUP = {
    "type": "custom",
    "name": "lookup",
    "description": "Looks something up.",
    "input_schema": {"type": "object", "properties": {}},
}
_WORDS = re.compile(r"word-[a-z]+-\d+")
_ENTRIES = """
SELECT e.seq, e.id, e.type, e.queued, e.body FROM entries e JOIN sessions s ON s.num = e.session
WHERE s.id = ? ORDER BY e.seq
"""
Json = dict[str, Any]


class Model(ScriptedModel):
    """Notes which messages it was ever told of."""

    def __init__(self) -> None:
        super().__init__(keep=0)
        self.told: set[str] = set()

    def seen(self, request: SeenRequest) -> Fault | None:
        self.told |= set(_WORDS.findall(str(request.body.get("messages"))))
        return super().seen(request)


class Talker:
    """Somebody who sends one session a message and an interrupt, again and again, whatever is killed."""

    def __init__(self, server: LiveServer, parts: Json, name: str, gap: float = 0) -> None:
        self.server = server
        self.name = name
        self.gap = gap
        self.rounds = 0
        self.sent: dict[str, list[str]] = {"message": [], "interrupt": []}
        with Client(server) as client:
            self.id = client.post("/v1/sessions", parts)["id"]

    def word(self, number: int) -> str:
        return f"word-{self.name}-{number}"

    def work(self, number: int) -> list[Json]:
        """What an agent does that is told the message: it takes longer than any test."""
        return [{"text": f"{self.word(number)} " * 600, "chunk_delay": 0.1}]

    def prepare(self, client: Client) -> None:
        """Bring the session where it is to be interrupted."""

    def strike(self, client: Client) -> None:
        """The message, and the interrupt after it."""
        number, self.rounds = self.rounds, self.rounds + 1
        said = self.message(f"{self.word(number)}: SCRIPT{json.dumps(self.work(number))}")
        self.say(client, said)
        time.sleep(self.gap)
        self.say(client, self.interrupt())

    def settle(self, client: Client) -> None:
        """Until it rests; then it is there for what comes next, and for nothing else."""
        self.until(client, lambda: self.is_idle(client))
        done = f"done-{self.name}-{self.rounds}"
        self.say(client, self.message(f"Next. SCRIPT{json.dumps([{'text': done}])}"))
        self.until(client, lambda: self.is_idle(client) and done in self.answers(client))

    def message(self, text: str) -> Json:
        content = [{"type": "text", "text": text}]
        return self._kept("message", {"type": "user.message", "content": content})

    def interrupt(self) -> Json:
        return self._kept("interrupt", {"type": "user.interrupt"})

    def _kept(self, kind: str, event: Json) -> Json:
        name = f"{kind}-{len(self.sent[kind])}"
        self.sent[kind].append(name)
        return {**event, "client_id": name}

    def say(self, client: Client, *events: Json) -> None:
        client.post(f"/v1/sessions/{self.id}/events", {"events": list(events)})

    def answers(self, client: Client) -> list[str]:
        events = client.events(self.id)
        return [e["content"][0]["text"] for e in events if e["type"] == "agent.message"]

    def status(self, client: Client) -> str:
        return str(client.get(f"/v1/sessions/{self.id}")["status"])

    def is_idle(self, client: Client) -> bool:
        return self.status(client) == "idle"

    def until(self, client: Client, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, [e["type"] for e in client.events(self.id)][-20:]
            time.sleep(0.05)

    # What came of it

    def check(self, told: set[str]) -> tuple[int, int]:
        """How many messages were withdrawn, and how many taken up."""
        log = [Logged(*row) for row in Files().rows(self.server.data, _ENTRIES, self.id)]
        assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
        for kind, sent in self.sent.items():
            mine = [e for e in log if e.type == f"user.{kind}" and "client_id" in e.fields]
            assert list(dict.fromkeys(e.fields["client_id"] for e in mine)) == sent
            assert len({e.id for e in mine}) == len(sent)
            assert all(1 <= sum(e.id == other.id for other in mine) <= 2 for e in mine)
        self._check_rests(log)
        return self._check_fates(log, told)

    def _check_rests(self, log: list[Logged]) -> None:
        """From an interrupt that was carried out, nothing is done until a message is taken up."""
        at_rest = False
        for entry in log:
            if entry.type == "user.interrupt" and not entry.queued:
                at_rest = True
            elif entry.type == "user.message" and not entry.queued and not entry.withdrawn:
                at_rest = False
            doing = entry.type.startswith(("agent.", "span.model_request_start"))
            assert not (at_rest and doing), [e.type for e in log[entry.seq - 10 : entry.seq]]
        assert log[-1].type == "session.status_idle"

    def _check_fates(self, log: list[Logged], told: set[str]) -> tuple[int, int]:
        said = [id for e in log if e.type == "roost.withdrawn" for id in e.fields["event_ids"]]
        assert len(said) == len(set(said))
        withdrawn = [e for e in log if e.type == "user.message" and e.withdrawn]
        assert [e.id for e in withdrawn] == said
        assert not {word for e in withdrawn for word in e.words} & told
        struck = [e for e in log if e.type == "user.message" and e.words and not e.queued]
        taken = [e for e in struck if not e.withdrawn]
        stops = [e.seq for e in log if e.type == "user.interrupt"]
        assert len(struck) == self.rounds
        for entry in taken:
            accepted = next(e.seq for e in log if e.id == entry.id)
            stop = min(seq for seq in stops if seq > accepted)
            assert entry.seq < stop, "it was taken up although the interrupt had been accepted"
        return len(withdrawn), len(taken)


class Logged:
    """A row of the log."""

    def __init__(self, seq: int, id: str, type: str, queued: int, body: bytes) -> None:
        self.seq, self.id, self.type, self.queued = seq, id, type, bool(queued)
        self.fields = json.loads(body)
        self.withdrawn = "withdrawn_at" in self.fields
        self.words = set(_WORDS.findall(body.decode()))


class Together(Talker):
    """Both in one request, and once more behind it: nothing of the first may run."""

    def strike(self, client: Client) -> None:
        number, self.rounds = self.rounds, self.rounds + 1
        said = self.message(f"{self.word(number)}: SCRIPT{json.dumps(self.work(number))}")
        self.say(client, said, self.interrupt())


class Behind(Talker):
    """Behind a turn that runs."""

    def prepare(self, client: Client) -> None:
        self.say(client, self.message(f"Long. SCRIPT{json.dumps([self.long()])}"))
        self.until(client, lambda: self.is_there(client))

    def long(self) -> Json:
        return {"text": "long " * 600, "chunk_delay": 0.1}

    def is_there(self, client: Client) -> bool:
        *_, last = [e for e in client.events(self.id) if e["type"] == "user.message"]
        return bool(last["processed_at"]) and self.status(client) == "running"


class Asked(Behind):
    """Behind a call that waits for somebody."""

    def long(self) -> Json:
        return {"tool": "lookup", "input": {}}

    def is_there(self, client: Client) -> bool:
        return self.is_idle(client) and client.events(self.id)[-1]["stop_reason"]["type"] == (
            "requires_action"
        )


class Paused(Behind):
    """Behind a turn whose model asked for a pause."""

    def long(self) -> Json:
        return {"error": {"status": 429, "headers": {"retry-after": "3000"}}}

    def is_there(self, client: Client) -> bool:
        return self.status(client) == "rescheduling"


def seeded() -> random.Random:
    seed = int(os.environ.get("ROOST_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROOST_TEST_SEED={seed}")
    return random.Random(seed)


def parts_of(server: LiveServer, harness: str) -> Json:
    tools = [LOOKUP] if harness == "scripted" else [{"type": "agent_toolset_20260401"}]
    with Client(server) as client:
        agent = client.post("/v1/agents", {"name": "a", "model": "claude-opus-5-5", "tools": tools})
        place = client.post("/v1/environments", {"name": "e"})
    return {"agent": agent["id"], "environment_id": place["id"], "harness": harness}


def strike(talker: Talker, ready: threading.Barrier, struck: threading.Barrier) -> None:
    with Client(talker.server) as client:
        talker.prepare(client)
        ready.wait(PATIENCE)
        talker.strike(client)
        struck.wait(PATIENCE)
        talker.settle(client)


def kill_around(rng: random.Random, talkers: list[Talker], kills: int, longest: float) -> None:
    """So often: all of them strike, and the server is killed meanwhile."""
    [server] = {talker.server for talker in talkers}
    for _ in range(kills):
        ready, struck = (threading.Barrier(len(talkers) + 1) for _ in range(2))
        threads = [
            threading.Thread(target=strike, args=(talker, ready, struck)) for talker in talkers
        ]
        for thread in threads:
            thread.start()
        ready.wait(PATIENCE)
        time.sleep(rng.uniform(0, longest))
        server.kill()
        server.start()
        struck.wait(PATIENCE)
        for thread in threads:
            thread.join()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.chaos)])
def test_a_message_before_an_interrupt_is_stopped_or_withdrawn_whenever_the_server_is_killed(
    tmp_path: Path, kills: int
):
    rng, model = seeded(), Model()
    with (
        serving(model) as url,
        LiveServer(tmp_path / "data", ANTHROPIC_BASE_URL=url) as server,
    ):
        parts = parts_of(server, "scripted")
        talkers = [
            Talker(server, parts, "atonce"),
            Talker(server, parts, "soon", gap=0.3),
            Together(server, parts, "together"),
            Behind(server, parts, "behind"),
            Asked(server, parts, "asked"),
            Paused(server, parts, "paused"),
        ]
        kill_around(rng, talkers, kills, longest=0.5)
        fates = {talker.name: talker.check(model.told) for talker in talkers}
    print(f"withdrawn and taken up: {fates}")
    assert all(withdrawn + taken == kills for withdrawn, taken in fates.values())
    for name in ("together", "asked"):
        assert fates[name] == (kills, 0), "no turn can have begun with it"


class Coder(Talker):
    """An agent with a program and files; it leaves a line when it is told."""

    def work(self, number: int) -> list[Json]:
        run = f"echo {self.word(number)} >> ran.txt; sleep 300"
        return [{"tool": "Bash", "input": {"command": run}}, {"text": "never"}]

    @property
    def home(self) -> Path:
        return self.server.data / "vault" / ".workspaces" / self.id

    def sleeps(self) -> bool:
        """Whether nobody has it: its agent is gone."""
        question = "SELECT owner FROM sessions WHERE id = ?"
        [(owner,)] = Files().rows(self.server.data, question, self.id)
        return not owner

    def check(self, told: set[str]) -> tuple[int, int]:
        ran = self.home / "ran.txt"
        lines = ran.read_text().split() if ran.exists() else []
        assert len(lines) == len(set(lines)), "no command runs twice"
        assert set(lines) <= told
        return super().check(told)


class Asleep(Coder):
    """Its agent has to be started."""

    def prepare(self, client: Client) -> None:
        self.until(client, self.sleeps)


class Restoring(Asleep):
    """So that its files are restored first."""

    def prepare(self, client: Client) -> None:
        super().prepare(client)
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_real_agent_is_never_told_what_was_withdrawn_whenever_the_server_is_killed(
    tmp_path: Path,
):
    rng, model = seeded(), Model()
    kills = int(os.environ.get("ROOST_CHAOS_KILLS") or 30)
    with ExitStack() as stack:
        url = stack.enter_context(serving(model))
        server = LiveServer(tmp_path / "data", ANTHROPIC_BASE_URL=url, ROOST_SLEEP_AFTER="1")
        stack.enter_context(server)
        parts = parts_of(server, "claude")
        talkers: list[Talker] = [
            Coder(server, parts, "atonce"),
            Coder(server, parts, "soon", gap=0.3),
            Asleep(server, parts, "asleep", gap=0.3),
            Restoring(server, parts, "restoring", gap=0.3),
        ]
        kill_around(rng, talkers, kills, longest=1.5)
        fates = {talker.name: talker.check(model.told) for talker in talkers}
    print(f"withdrawn and taken up: {fates}")
    assert all(withdrawn + taken == kills for withdrawn, taken in fates.values())
