"""Sessions of the real Claude Code under load from clients of every node, and what must hold afterwards."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
from tests.faults.cluster import check_order
from tests.journeys.chat import bash, script

from roost.builtin_model.script import Fault
from roost.stores.postgres import PostgresStore
from roost.testing.live import LiveServer
from roost.testing.postgres import PostgresServer
from roost.testing.scripted_model import ScriptedModel, SeenRequest
from roost.testing.stage import Stage

KEY = "roost_the_same_key_on_every_node_0123456789"
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
    "x-api-key": KEY,
}
SAID = re.compile(r"input (\d+)\.(\d+)\b")
ANSWERED = re.compile(r"answer (\d+)\.(\d+)\b")

# Which process wrote an entry, beside the generation that the session had then. One process per
# generation and no way back: then no two ever wrote to one session.
WITNESS = (
    "CREATE TABLE witness (session bigint, seq bigint, type text, generation bigint, writer text)",
    """
    CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO witness SELECT NEW.session, NEW.seq, NEW.type,
            (convert_from(s.rest, 'UTF8')::json ->> 'generation')::bigint,
            current_setting('application_name')
        FROM sessions s WHERE s.num = NEW.session;
        RETURN NULL;
    END $$
    """,
    "CREATE TRIGGER witness AFTER INSERT ON entries FOR EACH ROW EXECUTE FUNCTION witness()",
)
WRITERS = """
SELECT session, generation, array_agg(DISTINCT writer), min(seq), max(seq) FROM witness
WHERE type LIKE 'agent.%' OR type LIKE 'span.%' GROUP BY session, generation
ORDER BY session, generation
"""


class RememberingModel(ScriptedModel):
    """Keeps the last conversation that each session's agent has shown it."""

    def __init__(self) -> None:
        super().__init__(keep=1)
        self.conversations: dict[int, list[Any]] = {}
        self.asked: Counter[str] = Counter()

    def seen(self, request: SeenRequest) -> Fault | None:
        if request.path != "/v1/messages" or not request.body.get("tools"):
            return super().seen(request)
        found = SAID.findall(str(request.body.get("messages")))
        if found:
            session, number = found[-1]
            self.conversations[int(session)] = request.body["messages"]
            self.asked[f"{session}.{number}"] += 1
        return super().seen(request)


class Load:
    """Clients that talk to many sessions, each time at another node, and never give up."""

    def __init__(self, servers: Sequence[LiveServer], sessions: int, chance: random.Random):
        self._servers = servers
        self._chance = chance
        self._ending = threading.Event()
        self.counts: Counter[str] = Counter()
        self.sent: list[dict[int, str]] = [{} for _ in range(sessions)]
        self.ids = self._make(sessions)

    def _make(self, sessions: int) -> list[str]:
        agent = {"name": "coder", "model": "claude-opus-5-5"}
        agent |= {"tools": [{"type": "agent_toolset_20260401"}]}
        made = self.ask("POST", "/v1/agents", agent)
        config = {"type": "cloud", "networking": {"type": "limited"}}
        place = self.ask("POST", "/v1/environments", {"name": "place", "config": config})
        body = {"agent": made["id"], "environment_id": place["id"], "harness": "claude"}
        return [self.ask("POST", "/v1/sessions", body)["id"] for _ in range(sessions)]

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """At any node; at another one until it is answered."""
        while True:
            url = self._chance.choice(self._servers).url
            try:
                answer = httpx2.request(
                    method, f"{url}{path}", json=body, headers=HEADERS, timeout=15
                )
            except httpx2.HTTPError as error:
                self.counts[type(error).__name__] += 1
                time.sleep(0.2)
                continue
            if answer.status_code == 200:
                done: dict[str, Any] = answer.json()
                return done
            assert answer.status_code in (502, 503), answer.text
            self.counts["503"] += 1
            time.sleep(0.2)

    @contextmanager
    def running(self, clients: int) -> Iterator[None]:
        """While the context lasts; then every session is left to come to rest."""
        problems: list[BaseException] = []

        def work(first: int) -> None:
            try:
                self._talk(range(first, len(self.ids), clients))
            except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
                problems.append(error)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join()
        if problems:
            raise problems[0]

    def _talk(self, sessions: Sequence[int]) -> None:
        while not self._ending.is_set():
            for session in sessions:
                if not self._ending.is_set() and self.rests(session):
                    self.send(session)
            self._ending.wait(0.1)

    def rests(self, session: int) -> bool:
        return bool(self.ask("GET", f"/v1/sessions/{self.ids[session]}")["status"] == "idle")

    def send(self, session: int, *more: dict[str, Any]) -> None:
        """An input that is acknowledged, under its own key, when this returns."""
        number = len(self.sent[session])
        work = bash(f"echo {number} >> ran.txt")
        name = f"{session}.{number}"
        text = f"input {name} {script(work, {'text': f'answer {name}'})}"
        event = {
            "type": "user.message",
            "content": [{"type": "text", "text": text}],
            "client_id": f"key {name}",
        }
        done = self.ask("POST", f"/v1/sessions/{self.ids[session]}/events", {"events": [event]})
        self.sent[session][number] = done["data"][0]["id"]
        self.counts["acknowledged"] += 1

    def wait_until_all_rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for session in range(len(self.ids)):
            while not self.rests(session):
                assert time.monotonic() < deadline, f"{self.ids[session]} does not come to rest"
                time.sleep(0.2)


async def verify_logs(url: str, load: Load) -> Counter[str]:
    """Every acknowledged input is there once, taken up and answered; every log is in order."""
    seen: Counter[str] = Counter()
    async with PostgresStore.open(url) as store:
        stage = Stage(store)
        for session, session_id in enumerate(load.ids):
            log = await stage.all(session_id)
            check_order(log, (await stage.state(session_id)).head)
            inputs = [entry for entry in log if entry.type == "user.message"]
            queued = [entry.id for entry in inputs if entry.queued]
            taken = [entry.id for entry in inputs if not entry.queued]
            assert queued == list(load.sent[session].values()), "lost, doubled or out of order"
            assert taken == queued, "not taken up, or twice"
            seen.update(answers(session, log))
            seen["inputs"] += len(queued)
            seen["entries"] += len(log)
    return seen


def answers(session: int, log: Sequence[Any]) -> Counter[str]:
    """How each input was answered, between its own turn's beginning and its end."""
    seen: Counter[str] = Counter()
    number = -1
    spoken: list[str] = []
    for entry in log:
        if entry.type == "user.message" and not entry.queued:
            number, spoken = number + 1, []
        elif entry.type == "agent.message":
            spoken.append(entry.fields["content"][0]["text"])
        elif entry.type == "session.status_idle":
            assert entry.fields["stop_reason"]["type"] == "end_turn", entry.fields
            assert spoken, f"input {session}.{number} has no answer"
            own = [said for said in spoken if said.startswith(f"answer {session}.{number}")]
            others = [said for said in spoken if ANSWERED.match(said) and said not in own]
            assert not others, f"the answer to another input: {others}"
            seen["answered"] += bool(own)
            seen["past the script"] += not own
            seen["said again"] += max(0, len(own) - 1)
    return seen


async def verify_writers(server: PostgresServer, url: str) -> Counter[str]:
    """No two processes wrote under one generation, and none after a later one had begun."""
    counts: Counter[str] = Counter()
    last: dict[int, int] = {}
    for session, _, writers, first, end in await server.do(WRITERS, url):
        assert len(writers) == 1, f"two processes wrote in one generation: {writers}"
        assert first > last.get(session, 0), "an older generation wrote after a newer one"
        last[session] = end
        counts["generations"] += 1
    return counts


def verify_memory(load: Load, model: RememberingModel) -> None:
    """The conversation as the model saw it last: each input once, in order, each with an answer."""
    for session, sent in enumerate(load.sent):
        told = [
            (turn["role"], part["text"] if isinstance(part, dict) else part)
            for turn in model.conversations[session]
            for part in _parts(turn["content"])
        ]
        inputs = [found for role, text in told if role == "user" for found in SAID.findall(text)]
        expected = [(str(session), str(number)) for number in sent]
        assert inputs == expected, f"{inputs} instead of {expected}"
        answered = [m for role, text in told if role == "assistant" for m in ANSWERED.findall(text)]
        assert max(Counter(answered).values(), default=1) == 1, f"answered twice: {answered}"


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [content]
    return [part for part in content if part.get("type") == "text"]
