"""Workers of self-hosted environments: the official ones, unchanged, run the tools of real sessions to the end.

They are killed and restarted, two at once, and their network and their server come and go.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from anyio.from_thread import start_blocking_portal
from tests.gateway.proxy import bad_network
from tests.journeys.chat import client_of, script
from tests.parts import need

from roost.testing.live import LiveServer

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TYPESCRIPT = ROOT / ".tools/ts-1.8.0"
MINUTES = 180.0  # seconds: what must come is waited for
ASKS = {"name": "write", "enabled": True, "permission_policy": {"type": "always_ask"}}
TOOLSET = {"type": "agent_toolset_20260401", "configs": [ASKS]}
CUSTOM = {
    "type": "custom",
    "name": "lookup",
    "description": "Looks something up.",
    "input_schema": {"type": "object", "properties": {}},
}


class SelfHosted:
    """A self-hosted environment with an agent, whose workers have directories below `root`."""

    def __init__(self, server: LiveServer, root: Path) -> None:
        self.root = root
        self.move_to(server)
        self.environment = self.client.beta.environments.create(
            name="elsewhere", config={"type": "self_hosted"}
        )
        self.agent = self.client.beta.agents.create(
            name="coder", model="claude-opus-5-5", tools=[TOOLSET, CUSTOM]
        )
        path = f"{server.url}/roost/v1/environments/{self.environment.id}/keys"
        made = httpx2.post(path, json={"name": "w"}, headers={"x-api-key": server.key})
        self.key = made.json()["secret"]

    def move_to(self, server: LiveServer) -> None:
        self.server = server
        self.client = client_of(server).with_options(max_retries=9)

    def session(self, *steps: dict[str, Any]) -> str:
        """A session that is told to do these."""
        content = [{"type": "text", "text": script(*steps)}]
        made = self.client.beta.sessions.create(
            agent=self.agent.id,
            environment_id=self.environment.id,
            initial_events=[{"type": "user.message", "content": content}],
        )
        return str(made.id)

    def send(self, session: str, *events: Any) -> None:
        self.client.beta.sessions.events.send(session, events=list(events))

    def events(self, session: str, *kinds: str) -> list[Any]:
        found = self.client.beta.sessions.events.list(session, limit=1000)
        return [event for event in found if not kinds or event.type in kinds]

    def results(self, session: str) -> list[str]:
        return [event.content[0].text for event in self.events(session, "user.tool_result")]

    def has_ended(self, session: str) -> bool:
        idle = self.events(session, "session.status_idle")
        return bool(idle) and idle[-1].stop_reason.type == "end_turn"

    def waits_for(self, session: str, kind: str) -> Any:
        """The one call of this kind that the session waits for, if it does."""
        idle = self.events(session, "session.status_idle")
        waiting = idle[-1].stop_reason.event_ids if idle and not self.has_ended(session) else []
        found = [event for event in self.events(session, kind) if event.id in waiting]
        return found[0] if found else None

    def go_on(self, session: str) -> None:
        """Answer what an application answers, and then allow what a person is asked about."""
        call = self.until(lambda: self.waits_for(session, "agent.custom_tool_use"))
        content = [{"type": "text", "text": "found"}]
        answer = {"type": "user.custom_tool_result", "custom_tool_use_id": call.id}
        self.send(session, {**answer, "content": content})
        call = self.waits_for(session, "agent.tool_use")
        assert (call.name, call.evaluated_permission) == ("write", "ask")
        verdict = {"type": "user.tool_confirmation", "tool_use_id": call.id}
        self.send(session, {**verdict, "result": "allow"})

    @contextmanager
    def worker(
        self, name: str, url: str | None = None, *, typescript: bool = False
    ) -> Generator[Path, None, None]:
        """The official worker, until the context ends; its directory."""
        workdir = self.root / name
        workdir.mkdir(exist_ok=True)
        command = [sys.executable, str(HERE / "official_worker.py")]
        more = []
        if typescript:
            command = [str(ROOT / ".venv/bin/node"), str(HERE / "official_worker.mjs")]
            more = [str(TYPESCRIPT)]
        environ = {"PATH": os.environ["PATH"], "ANTHROPIC_ENVIRONMENT_KEY": self.key}
        given = [url or self.server.url, self.environment.id, str(workdir), *more]
        with (self.root / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                [*command, *given],
                env=environ,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield workdir
        finally:
            os.killpg(
                process.pid, signal.SIGKILL
            )  # what is called node may be a program that starts it
            process.wait()

    def until(self, what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + MINUTES
        while not (found := what()):
            logs = [path.read_text()[-2000:] for path in self.root.glob("*.log")]
            assert time.monotonic() < deadline, (logs, self.server.output[-2000:])
            time.sleep(0.1)
        return found


def tool(name: str, **given: Any) -> dict[str, Any]:
    return {"tool": name, "input": given}


def waiting_command(word: str) -> dict[str, Any]:
    """A command that is under way until somebody says `go`."""
    return tool("bash", command=f"echo {word} >>log; until [ -e go ]; do sleep 0.05; done; cat log")


def test_official_workers_of_two_languages_run_the_tools_of_two_sessions_to_the_end(
    tmp_path: Path,
):
    need("the TypeScript SDK 1.8.0", (TYPESCRIPT / "node_modules").exists(), "scripts/setup")
    with LiveServer(tmp_path / "data") as server:
        place = SelfHosted(server, tmp_path)
        steps = (
            {"thinking": "Hm.", "tools": [tool("bash", command="echo $$ >>log; wc -l <log")]},
            {"tools": [tool("write", file_path="a.txt", content="abc"), tool("lookup")]},
            {"tools": [tool("read", file_path="a.txt"), tool("glob", pattern="*.txt")]},
            {"text": "Done."},
        )
        sessions = [place.session(*steps), place.session(*steps)]
        place.until(lambda: place.events(sessions[1], "roost.worker_awaited"))
        [said] = place.events(sessions[1], "roost.worker_awaited")
        assert said.model_extra["workers_polling"] == 0
        assert said.model_extra["environment_id"] == place.environment.id
        with ExitStack() as workers:
            # The first has one session, and keeps it until that goes on; so the second gets the other.
            for count, typescript in enumerate([False, True], 1):
                workers.enter_context(place.worker(f"worker-{count}", typescript=typescript))
                place.until(lambda n=count: sum(map(bool, map(place.results, sessions))) == n)
            for session in sessions:
                place.go_on(session)
            for session in sessions:
                place.until(lambda s=session: place.has_ended(s))
                ran, wrote, read, globbed = place.results(session)
                assert (ran.strip(), read) == ("1", "abc"), "it ran once"
                assert "wrote 3 bytes" in wrote
                assert globbed.endswith("a.txt")
                assert not place.events(session, "agent.tool_result")
            # Each has let its item go, some time after the session was idle.
            work = place.client.beta.environments.work
            place.until(
                lambda: {item.state for item in work.list(place.environment.id)} == {"stopped"}
            )
            place.until(lambda: work.stats(place.environment.id).workers_polling == 2)


def test_a_call_whose_worker_is_killed_is_told_as_unknown_and_not_run_again(tmp_path: Path):
    data = tmp_path / "data"
    with LiveServer(data, ROOST_WORK_LEASE_SECONDS="2") as server:
        place = SelfHosted(server, tmp_path)
        session = place.session(waiting_command("first"), {"text": "I see."})
        with place.worker("one") as one:
            place.until(lambda: (one / "log").exists())
        # Nobody polls: the server notices by itself, and the model goes on.
        place.until(lambda: place.has_ended(session))
        [told] = place.events(session, "user.tool_result")
        assert (told.is_error, told.model_extra["closed"]) == (True, "worker_lost")
        assert "unknown" in told.content[0].text
        assert [e.content[0].text for e in place.events(session, "agent.message")] == ["I see."]
        content = [{"type": "text", "text": script(waiting_command("second"), {"text": "Yes."})}]
        place.send(session, {"type": "user.message", "content": content})
        place.until(lambda: place.events(session, "roost.worker_awaited"))
    # Another server, and another worker, in the directory of the first.
    with LiveServer(data) as server:
        place.move_to(server)
        with place.worker("one"):
            place.until(lambda: (one / "log").read_text() == "first\nsecond\n")
            (one / "go").touch()
            place.until(lambda: place.has_ended(session))
        assert place.results(session)[1:] == ["first\nsecond"]


def test_a_worker_outlives_its_network_and_its_server(tmp_path: Path):
    with LiveServer(tmp_path / "data") as server:
        place = SelfHosted(server, tmp_path)
        session = place.session(
            waiting_command("once"), tool("bash", command="cat log"), {"text": "Done."}
        )
        network = bad_network(server.url, random.Random(7), 4, (300, 6000))
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(network) as (url, proxy),
            place.worker("one", url) as one,
        ):
            place.until(lambda: (one / "log").exists())
            server.kill()
            server.start()
            (one / "go").touch()
            place.until(lambda: place.has_ended(session))
            assert proxy.dropped > 0
        assert place.results(session) == ["once", "once"]
        assert (one / "log").read_text() == "once\n"
