"""The contract of a harness behind a server: subclass, name the harness, inherit the tests.

    class TestClaudeSessions(HarnessSessions):
        harness = "claude"

Each test is a client of a real server (`roost serve`, with a real sandbox), which talks to the scripted model. It
proves what takes more than a harness: sleeping and waking, going on where the files are restored, forks, rewinds,
budgets, skills. What the harness does not declare (`GET /roost/v1/harnesses`) is skipped.
`roost.testing.harness_contract` proves what takes a harness alone.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import anthropic
import httpx2
import pytest

from roost.testing.harness_contract import proves, skip_what_is_not_declared
from roost.testing.in_memory_runner import script
from roost.testing.live import LiveServer
from roost.testing.same_conversation import as_told, parts_for
from roost.testing.scripted_model import ScriptedModel, in_a_thread

_PATIENCE = 120.0  # seconds until something that has to happen counts as not happening
_PRICE = {"input": 5, "output": 25, "cache_read": 0.5, "cache_write": 6.25}
_TOOLS: Sequence[dict[str, Any]] = [
    {
        "type": "custom",
        "name": "lookup",
        "description": "Looks something up.",
        "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
    {"type": "agent_toolset_20260401"},
]
_SKILL = """---
name: greeting
description: The-greeting-of-the-house.
---
Say good day.
"""


def _limit(cents: int) -> Any:
    return {"type": "limit", "max_list_cost": {"amount": str(cents), "currency": "USD"}}


class AgentSession:
    """A session on the server under test, as a program sees it."""

    def __init__(self, server: LiveServer, client: anthropic.Anthropic, session: Any) -> None:
        self.server = server
        self.client = client
        self.id: str = session.id

    def send(self, text: str) -> None:
        """Say something, and wait for nothing but the server's word that it is safe."""
        content = [{"type": "text", "text": text}]
        message: Any = {"type": "user.message", "content": content}
        self.client.beta.sessions.events.send(self.id, events=[message])

    def turn(self, *steps: dict[str, Any], say: str = "please") -> list[Any]:
        """Let the scripted model play these steps; gives the events until the session is idle again."""
        before = len(self.events())
        self.send(script(*steps, say=say))
        self.wait_until_idle(more_than=before)
        return self.events()[before:]

    def events(self) -> list[Any]:
        """All events, oldest first."""
        return list(self.client.beta.sessions.events.list(self.id))

    def said(self) -> list[str]:
        """The agent's messages."""
        return [text_of(event) for event in self.events() if event.type == "agent.message"]

    def wait_until_idle(self, *, more_than: int = 0) -> None:
        """Wait until the session waits for input, with more events than before."""
        until(lambda: self._status() == "idle" and len(self.events()) > more_than)

    def wait_until_asleep(self) -> None:
        """Wait until no agent runs on the server."""
        until(lambda: gauge(self.server, "roost_warm_agents") == 0)

    def asked(self, what: str, body: dict[str, Any]) -> Any:
        """Ask one of the server's own paths below the session."""
        url = f"{self.server.url}/roost/v1/sessions/{self.id}/{what}"
        headers = {"x-api-key": self.server.key}
        response = httpx2.post(url, json=body, headers=headers, timeout=_PATIENCE)
        assert response.status_code == 200, response.text
        return response.json()

    @property
    def home(self) -> Path:
        """The session's directory on this machine."""
        return self.server.data / "vault" / ".workspaces" / self.id

    def _status(self) -> str:
        return str(self.client.beta.sessions.retrieve(self.id).status)


class SessionClient:
    """`roost.testing.same_conversation.Client`: plays a conversation through the official SDK."""

    def __init__(
        self, session: AgentSession, runs: Callable[[str], dict[str, Any]], *, custom_tools: bool
    ) -> None:
        self.custom_tools = custom_tools
        self._session = session
        self._api = session.client.beta.sessions
        self.runs = runs

    def send(self, *events: dict[str, Any]) -> None:
        """Send events, and wait until the session is idle again."""
        before = len(self._session.events())
        sent: Any = events
        self._api.events.send(self._session.id, events=sent)
        self._session.wait_until_idle(more_than=before)

    def interrupt(self, text: str, *, begun: str | None) -> None:
        """Say something and interrupt it: once the agent has begun to answer, or once its tool has made this file."""
        if begun is not None:
            self._session.send(text)
            until((self._session.home / begun).exists)
            self.send({"type": "user.interrupt"})
            return
        with self._api.events.stream(self._session.id, event_deltas=["agent.message"]) as stream:
            self._session.send(text)
            for event in stream:
                if event.type == "event_delta":
                    self.send({"type": "user.interrupt"})
                    return

    def update(self, **agent: Any) -> None:
        """Change the session's agent."""
        changed: Any = agent
        self._api.update(self._session.id, agent=changed)

    def call(self) -> str:
        """The id of the newest call."""
        calls = ("agent.tool_use", "agent.custom_tool_use")
        return str([each.id for each in self._session.events() if each.type in calls][-1])


class HarnessSessions:
    """What clients rely on, whichever agent their session has."""

    harness: ClassVar[str]
    """The name of the harness."""

    environ: ClassVar[Mapping[str, str]] = {}
    """Settings of the server, beyond those of the kit; `ROOST_SANDBOX`, for one."""

    model_id: ClassVar[str] = "claude-opus-5-5"
    """The model of the agents. The scripted model takes any name."""

    @classmethod
    def settings(cls, folder: Path) -> Mapping[str, str]:
        """Settings of the server that name files, which are written into this folder."""
        return {}

    def runs(self, command: str) -> dict[str, Any]:
        """A step of a script in which the agent runs this command of a shell."""
        return {"tool": "Bash", "input": {"command": command}}

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> Iterator[ScriptedModel]:
        """The scripted model, in a thread of this process, so that a test sees what it is asked."""
        model = ScriptedModel(keep=2000)
        with in_a_thread(model):
            yield model

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls) -> Mapping[str, str]:
        """Settings that choose the sandboxes: a subclass that gets others from a fixture has them proved, too."""
        return {}

    @pytest.fixture(scope="class")
    @classmethod
    def server(
        cls,
        model: ScriptedModel,
        sandbox: Mapping[str, str],
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Iterator[LiveServer]:
        """The server, for all tests of the class. Its agents sleep as soon as they have nothing to do."""
        folder = tmp_path_factory.mktemp("sessions")
        upstreams, prices = folder / "upstreams.toml", folder / "prices.json"
        upstreams.write_text(
            f'[one]\nurl = "{model.url}"\nmodels = ["*"]\nkey = "sk-of-the-operator"\n'
            f'[two]\nurl = "{model.url}/v1"\ndialect = "openai"\nmodels = ["*"]\nkey = "sk-of-two"\n'
        )
        prices.write_text(json.dumps({cls.model_id: _PRICE}))
        settings = {
            "ROOST_HARNESS": cls.harness,
            "ROOST_UPSTREAMS": str(upstreams),
            "ROOST_PRICES": str(prices),
            "ROOST_SLEEP_AFTER": "0.3",
            "ROOST_LEASE_SECONDS": "2",
            **sandbox,
            **cls.environ,
            **cls.settings(folder),
        }
        with LiveServer(folder / "data", **settings) as server:
            yield server

    @pytest.fixture
    def client(self, server: LiveServer) -> Iterator[anthropic.Anthropic]:
        """The official client."""
        with anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=5) as client:
            yield client

    @pytest.fixture(autouse=True)
    def only_what_is_declared(self, request: pytest.FixtureRequest, server: LiveServer) -> None:
        """Skip the proof of what the harness does not claim."""
        skip_what_is_not_declared(request, self.harness, self.about(server)["abilities"])

    def about(self, server: LiveServer) -> dict[str, Any]:
        """What the server says of the harness."""
        return next(each for each in self.listed(server) if each["name"] == self.harness)

    def listed(self, server: LiveServer) -> list[dict[str, Any]]:
        """What the server says of all that it knows."""
        url, headers = f"{server.url}/roost/v1/harnesses", {"x-api-key": server.key}
        listed: list[dict[str, Any]] = httpx2.get(url, headers=headers).json()["data"]
        return listed

    def begin(
        self, server: LiveServer, client: anthropic.Anthropic, budget: Any = None, **agent: Any
    ) -> AgentSession:
        """A new session. `agent` are fields of its agent."""
        custom = self.about(server)["abilities"]["custom_tools"]
        tools = [tool for tool in _TOOLS if custom or tool["type"] != "custom"]
        made = client.beta.agents.create(
            **{"name": "contract", "model": self.model_id, "tools": tools, **agent}
        )
        place = client.beta.environments.create(name=f"place {time.time_ns()}")
        more = {} if budget is None else {"budget": budget}
        session = client.beta.sessions.create(agent=made.id, environment_id=place.id, **more)
        return AgentSession(server, client, session)

    def test_it_is_available_and_the_one_that_sessions_get(
        self, server: LiveServer, client: anthropic.Anthropic
    ) -> None:
        """The rest would prove another one."""
        about = self.about(server)
        assert about["available"], about["unavailable"]
        assert about["default"]
        session = self.begin(server, client)
        assert client.beta.sessions.retrieve(session.id).to_dict()["harness"] == self.harness

    def test_a_turn_has_the_events_that_every_client_knows(
        self, server: LiveServer, client: anthropic.Anthropic
    ) -> None:
        """In the order of the hosted API, whichever agent it is."""
        session = self.begin(server, client)
        events = [event.type for event in session.turn({"text": "Good morning."})]
        assert session.said() == ["Good morning."]
        told = [type for type in events if type not in ("agent.thinking", "roost.agent_frame")]
        assert told == [
            "session.status_running",
            "session.thread_status_running",
            "user.message",
            "span.model_request_start",
            "agent.message",
            "span.model_request_end",
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
        ]

    def test_a_client_cannot_tell_which_agent_it_is(
        self, server: LiveServer, client: anthropic.Anthropic
    ) -> None:
        """By the events of one conversation, but for what is declared."""
        session, abilities = self.begin(server, client), self.about(server)["abilities"]
        player = SessionClient(session, self.runs, custom_tools=abilities["custom_tools"])
        for part in parts_for(self.harness, abilities):
            before = len(session.events())
            part.play(player)
            told = as_told(session.events()[before:], loose=part.loose)
            assert told == part.told, part.name

    @proves("custom_tools")
    def test_a_call_that_waits_outlives_the_agents_sleep(
        self, server: LiveServer, client: anthropic.Anthropic, model: ScriptedModel
    ) -> None:
        """Somebody answers a custom tool when nothing of the agent is left but its files and the log."""
        session = self.begin(server, client)
        calls = {"tool": "lookup", "input": {"what": "weather"}}
        *_, idle = session.turn(calls, {"text": "It rains."})
        [call] = [event for event in session.events() if event.type == "agent.custom_tool_use"]
        assert (idle.stop_reason.type, idle.stop_reason.event_ids) == ("requires_action", [call.id])
        session.wait_until_asleep()
        before, content = len(session.events()), [{"type": "text", "text": "rain, 9 degrees"}]
        named = {"type": "user.custom_tool_result", "custom_tool_use_id": call.id}
        result: Any = {**named, "content": content}
        client.beta.sessions.events.send(session.id, events=[result])
        session.wait_until_idle(more_than=before)
        assert session.said() == ["It rains."]
        assert heard(model, "rain, 9 degrees") == [1]

    def test_it_sleeps_and_wakes_with_its_memory(
        self, server: LiveServer, client: anthropic.Anthropic, model: ScriptedModel
    ) -> None:
        """The second message starts another agent, which knows what was said."""
        session = self.begin(server, client)
        session.turn({"text": "I am Ada."}, say="first-word")
        session.wait_until_asleep()
        session.turn({"text": "Ada."}, say="second-word")
        assert session.said() == ["I am Ada.", "Ada."]
        assert heard(model, "first-word", "I am Ada.", "second-word") == [1, 2, 1]

    def test_it_goes_on_elsewhere_from_what_was_stored(
        self, server: LiveServer, client: anthropic.Anthropic, model: ScriptedModel
    ) -> None:
        """A server that has the database and the blob store, and not the directory of the session."""
        session = self.begin(server, client)
        session.turn({"text": "I am Ada."}, say="first-word")
        session.wait_until_asleep()
        server.stop()
        shutil.rmtree(session.home, ignore_errors=True)
        server.start()
        session.turn({"text": "Ada."}, say="second-word")
        assert session.said() == ["I am Ada.", "Ada."]
        assert heard(model, "first-word", "I am Ada.", "second-word") == [1, 2, 1]

    def test_a_turn_that_its_server_did_not_survive_is_finished_by_the_next(
        self, server: LiveServer, client: anthropic.Anthropic, model: ScriptedModel
    ) -> None:
        """The message is heard once, and answered once."""
        session = self.begin(server, client)
        self.killed_in_a_turn(
            session, lambda: any(e.type == "span.model_request_start" for e in session.events())
        )
        assert heard(model, "only-once") == [1]

    def killed_in_a_turn(self, session: AgentSession, moment: Callable[[], bool]) -> None:
        """A turn whose server is killed in this moment. An agent that is told to go on may have put a word of its own
        into its record, which counts as the first step.
        """
        server, answer = session.server, {"text": "Here it is."}
        session.send(script({**answer, "delay": 1.5}, answer, say="only-once"))
        until(moment)
        server.kill()
        server.start()
        session.wait_until_idle()
        assert session.said() == ["Here it is."]
        _spans_are_paired(session.events())

    @proves("retries")
    def test_a_passing_failure_of_the_model_reschedules_the_session(
        self, server: LiveServer, client: anthropic.Anthropic
    ) -> None:
        """Each try is told, and the answer comes once."""
        session = self.begin(server, client)
        events = session.turn({"text": "At last.", "error": {"status": 529, "times": 2}})
        told = [event.type for event in events]
        assert told.count("session.status_rescheduled") >= 1
        errors = [event.error for event in events if event.type == "session.error"]
        assert [error.retry_status.type for error in errors] == ["retrying", "retrying"]
        assert session.said() == ["At last."]
        assert events[-1].stop_reason.type == "end_turn"
        _spans_are_paired(events)

    @proves("fork")
    def test_a_fork_knows_what_was_said_until_its_turn(
        self, server: LiveServer, client: anthropic.Anthropic, model: ScriptedModel
    ) -> None:
        """And the original goes on with all of it."""
        session = self.begin(server, client)
        session.turn({"text": "One."}, say="first-word")
        session.turn({"text": "Two."}, say="second-word")
        made = client.beta.sessions.retrieve(session.asked("fork", {"at": 1})["id"])
        fork = AgentSession(server, client, made)
        assert fork.said() == ["One."]
        fork.turn({"text": "Another two."}, say="of-the-fork")
        assert heard(model, "first-word", "second-word", "of-the-fork") == [1, 0, 1]
        session.turn({"text": "Three."}, say="third-word")
        assert heard(model, "first-word", "second-word", "of-the-fork", "third-word") == [
            1,
            1,
            0,
            1,
        ]
        assert (fork.said(), session.said()) == (
            ["One.", "Another two."],
            ["One.", "Two.", "Three."],
        )

    @proves("rewind")
    def test_a_rewound_session_has_forgotten_what_came_after(
        self, server: LiveServer, client: anthropic.Anthropic, model: ScriptedModel
    ) -> None:
        """Its agent, too."""
        session = self.begin(server, client)
        session.turn({"text": "One."}, say="first-word")
        session.turn({"text": "Two."}, say="second-word")
        session.asked("rewind", {"to": 1})
        session.turn({"text": "Another two."}, say="after-it")
        assert heard(model, "first-word", "second-word", "after-it") == [1, 0, 1]
        assert session.said() == ["One.", "Another two."]

    @proves("budget")
    def test_a_session_stops_at_its_budget_and_goes_on_when_it_is_raised(
        self, server: LiveServer, client: anthropic.Anthropic
    ) -> None:
        """Every request of its agent is counted, so none is made beyond it."""
        session = self.begin(server, client, budget=_limit(1))
        used = {"input_tokens": 5000, "output_tokens": 100}  # 2.75 cents
        first = {**self.runs("echo one"), "usage": used}
        *_, idle = session.turn(first, {"text": "At last."})
        assert idle.stop_reason.type == "budget_reached"
        assert session.said() == []
        before = len(session.events())
        client.beta.sessions.update(session.id, budget=_limit(1000))
        session.wait_until_idle(more_than=before)
        assert session.said() == ["At last."]
        usage = client.beta.sessions.retrieve(session.id).usage
        assert usage.input_tokens is not None
        assert usage.input_tokens > used["input_tokens"]

    @proves("skills")
    def test_the_model_is_told_of_the_agents_skills(
        self, server: LiveServer, client: anthropic.Anthropic, model: ScriptedModel
    ) -> None:
        """With the description, by which it tells when to use one."""
        files = [("greeting/SKILL.md", _SKILL.encode(), "text/markdown")]
        skill = client.beta.skills.create(files=files)
        asked = [{"type": "custom", "skill_id": skill.id}]
        session = self.begin(server, client, skills=asked)
        session.turn({"text": "Good day."})
        assert heard(model, "The-greeting-of-the-house.") != [0]


def _spans_are_paired(events: Sequence[Any]) -> None:
    starts = [event.id for event in events if event.type == "span.model_request_start"]
    ends = [e.model_request_start_id for e in events if e.type == "span.model_request_end"]
    assert starts
    assert starts == ends


def text_of(event: Any) -> str:
    """The text of a message."""
    return "".join(block.text for block in event.content)


def heard(model: ScriptedModel, *words: str) -> list[int]:
    """How often each of the words is in the newest request to the model."""
    request = json.dumps(model.requests[-1].body)
    return [request.count(word) for word in words]


def gauge(server: LiveServer, name: str) -> int:
    """A number of the server's `/metrics`."""
    metrics = httpx2.get(f"{server.url}/metrics").text
    line = next(line for line in metrics.splitlines() if line.startswith(f"{name} "))
    return int(float(line.split()[1]))


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
