"""A program's side of a session with the real Claude Code, for the tests that hold one."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anthropic
import httpx2
from anyio.from_thread import start_blocking_portal

from roost.serve.http import listening
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel


def script(*steps: dict[str, Any]) -> str:
    return f"SCRIPT{json.dumps(steps)}"


def bash(command: str, **more: Any) -> dict[str, Any]:
    return {"tool": "Bash", "input": {"command": command}, **more}


SLOW: Final = {"tool": "Bash", "input": {"command": "sleep 550", "timeout": 600_000}}
"""A command that does not end before somebody has looked, however slow the machine is."""

_clients: list[anthropic.Anthropic] = []


def client_of(server: LiveServer, key: str | None = None) -> anthropic.Anthropic:
    """The official client. It is closed when the test is over: left to the collector, it may be found
    after its own socket, which then counts as forgotten.
    """
    made = anthropic.Anthropic(base_url=server.url, api_key=key or server.key, max_retries=0)
    _clients.append(made)
    return made


def close_clients() -> None:
    while _clients:
        _clients.pop().close()


class Chat:
    """A session with a coding agent, as a program sees it."""

    def __init__(
        self,
        server: LiveServer,
        *,
        networking: dict[str, Any] | None = None,
        key: str | None = None,
        budget: Any = anthropic.omit,
        agent: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._key = key or server.key
        self.move_to(server)
        tools = [{"type": "agent_toolset_20260401"}]
        fields = {"model": "claude-opus-5-5", "tools": tools, **(agent or {})}
        self._agent = self.client.beta.agents.create(name="coder", **fields)
        self._place = self.client.beta.environments.create(
            name=f"place {time.time_ns()}",
            config={"type": "cloud", "networking": networking or {"type": "limited"}},
        )
        self._harness = options.pop("harness", "claude")
        self.session = self.begin(budget, **options)

    def begin(self, budget: Any = anthropic.omit, **options: Any) -> Any:
        """Another session, of the same agent and in the same environment."""
        return self.client.beta.sessions.create(
            agent=self._agent.id,
            environment_id=self._place.id,
            budget=budget,
            extra_body={"harness": self._harness, **options},
        )

    def another(self) -> Chat:
        """A second session of the same agent in the same environment."""
        other = copy.copy(self)
        other.session = self.client.beta.sessions.create(
            agent=self.session.agent.id,
            environment_id=self.session.environment_id,
            extra_body={"harness": self._harness},
        )
        return other

    def move_to(self, server: LiveServer) -> None:
        """Go on with another server that has the same database."""
        self.server = server
        self.client = client_of(server, self._key)
        # A server closes connections that were idle for a while, perhaps in the moment of a request.
        self._reading = self.client.with_options(max_retries=5)

    def send(self, text: str) -> None:
        content = [{"type": "text", "text": text}]
        self.client.beta.sessions.events.send(
            self.session.id, events=[{"type": "user.message", "content": content}]
        )

    def turn(self, text: str) -> list[Any]:
        """Everything the stream shows until the session rests."""
        with self.client.beta.sessions.events.stream(self.session.id) as stream:
            self.send(text)
            seen = []
            for event in stream:
                seen.append(event)
                if event.type == "session.status_idle":
                    return seen
        raise AssertionError("the stream ended")

    def events(self) -> list[Any]:
        return list(self._reading.beta.sessions.events.list(self.session.id))

    def wait_for(self, type: str, count: int = 1) -> None:
        deadline = time.monotonic() + 60
        while sum(event.type == type for event in self.events()) < count:
            assert time.monotonic() < deadline, [event.type for event in self.events()]
            time.sleep(0.05)

    @property
    def status(self) -> str:
        return str(self._reading.beta.sessions.retrieve(self.session.id).status)

    def wait_until_idle(self, seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while self.status != "idle":
            assert time.monotonic() < deadline, [event.type for event in self.events()]
            time.sleep(0.05)

    def fields(self) -> dict[str, Any]:
        """What Roost adds to the session."""
        return self.client.beta.sessions.retrieve(self.session.id).model_extra or {}

    @property
    def home(self) -> Path:
        return self.server.data / "vault" / ".workspaces" / self.session.id


def said(events: list[Any]) -> list[str]:
    return [event.content[0].text for event in events if event.type == "agent.message"]


def printed(events: list[Any]) -> list[str]:
    return [event.content[0].text for event in events if event.type == "agent.tool_result"]


def gauge(server: LiveServer, name: str) -> int:
    metrics = httpx2.get(f"{server.url}/metrics").text
    line = next(line for line in metrics.splitlines() if line.startswith(f"{name} "))
    return int(float(line.split()[1]))


def warm_agents(server: LiveServer) -> int:
    return gauge(server, "roost_warm_agents")


@contextmanager
def serving(model: ScriptedModel, host: str = "127.0.0.1") -> Iterator[str]:
    """The model on a port, in a thread, so that the test can look at what it was asked."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(listening(model, host, 0)) as url,
    ):
        yield url
