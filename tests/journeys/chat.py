"""A program's side of a session with the real Claude Code, for the tests that hold one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


class Chat:
    """A session with a coding agent, as a program sees it."""

    def __init__(
        self,
        server: LiveServer,
        *,
        networking: dict[str, Any] | None = None,
        budget: Any = anthropic.omit,
        **agent_fields: Any,
    ) -> None:
        self.server = server
        self.client = anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=0)
        fields = {"tools": [{"type": "agent_toolset_20260401"}], **agent_fields}
        agent = self.client.beta.agents.create(name="coder", model="claude-opus-5-5", **fields)
        place = self.client.beta.environments.create(
            name=f"place {time.time_ns()}",
            config={"type": "cloud", "networking": networking or {"type": "limited"}},
        )
        self.session = self.client.beta.sessions.create(
            agent=agent.id,
            environment_id=place.id,
            budget=budget,
            extra_body={"harness": "claude"},
        )

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
        return list(self.client.beta.sessions.events.list(self.session.id))

    def wait_for(self, type: str, count: int = 1) -> None:
        deadline = time.monotonic() + 30
        while sum(event.type == type for event in self.events()) < count:
            assert time.monotonic() < deadline, [event.type for event in self.events()]
            time.sleep(0.05)

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + 40
        while self.client.beta.sessions.retrieve(self.session.id).status != "idle":
            assert time.monotonic() < deadline, [event.type for event in self.events()]
            time.sleep(0.05)

    @property
    def home(self) -> Path:
        return self.server.data / "vault" / ".workspaces" / self.session.id


def said(events: list[Any]) -> list[str]:
    return [event.content[0].text for event in events if event.type == "agent.message"]


def printed(events: list[Any]) -> list[str]:
    return [event.content[0].text for event in events if event.type == "agent.tool_result"]


def warm_agents(server: LiveServer) -> int:
    metrics = httpx2.get(f"{server.url}/metrics").text
    line = next(line for line in metrics.splitlines() if line.startswith("roost_warm_agents "))
    return int(float(line.split()[1]))


@contextmanager
def serving(model: ScriptedModel) -> Iterator[str]:
    """The model on a port, in a thread, so that the test can look at what it was asked."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(listening(model, "127.0.0.1", 0)) as url,
    ):
        yield url
