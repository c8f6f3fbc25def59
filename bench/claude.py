"""The real Claude Code: through Roost, in its sandbox, beside the bare CLI in the same run.

    python bench/claude.py [--quick]

Run it alone. Measured is the time from a message until the model is asked, which is all that Roost
adds to; the model is a scripted one in this process. The ratios count, not the numbers. Memory is the
proportional share (PSS) of every process below the server.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal
from starlette.types import Receive, Scope, Send

from roost.harnesses.claude import bundled_cli
from roost.ports.sandbox import Plan
from roost.sandboxes import procfs
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.serve.http import listening
from roost.testing.live import LiveServer
from roost.testing.scripted_model import scripted_model

SLEEP_AFTER = 2.0
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
TOOLS = "Bash,Read,Write,Edit,Glob,Grep,WebFetch,WebSearch"
ARGUMENTS = (
    "--output-format=stream-json --input-format=stream-json --verbose --include-partial-messages "
    "--permission-prompt-tool=stdio --setting-sources= --strict-mcp-config --model=claude-opus-5-5 "
    f"--tools={TOOLS}"
).split()
QUIET = {
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "ENABLE_TOOL_SEARCH": "false",
}
Times = defaultdict[str, list[float]]


class Model:
    """The scripted model, and when it was asked."""

    def __init__(self) -> None:
        self._model = scripted_model(keep=0)
        self._asked: queue.Queue[float] = queue.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/messages":
            self._asked.put(time.perf_counter())
        await self._model(scope, receive, send)

    def seconds_after(self, act: Callable[[], object]) -> float:
        """How long after the beginning of this act the model is asked; once, in all of it."""
        began = time.perf_counter()
        act()
        asked = self._asked.get(timeout=60)
        return asked - began


class Bare:
    """The CLI by itself, as a program would keep it."""

    def __init__(self, home: Path, url: str, number: int) -> None:
        self._environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", **QUIET}
        self._environ |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "placeholder"}
        self._home = home
        self._name = str(uuid5(UUID(int=0), str(number)))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, resume: bool) -> None:
        which = f"--{'resume' if resume else 'session-id'}={self._name}"
        self._process = subprocess.Popen(
            [bundled_cli(), *ARGUMENTS, which],
            env=self._environ,
            cwd=self._home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        first = {"subtype": "initialize", "hooks": None}
        self._write({"type": "control_request", "request_id": "1", "request": first})
        self.say()

    def say(self) -> None:
        message = {"role": "user", "content": "Hello"}
        self._write({"type": "user", "message": message, "parent_tool_use_id": None})

    def wait_until_done(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        while b'"type":"result"' not in self._process.stdout.readline():
            assert self._process.poll() is None, "the CLI ended"

    def end(self) -> None:
        assert self._process is not None
        self._process.communicate()

    def _write(self, frame: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(frame).encode() + b"\n")
        self._process.stdin.flush()


class Roost:
    """Sessions of one server."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        headers = {**HEADERS, "x-api-key": server.key}
        self._http = httpx2.Client(base_url=server.url, headers=headers, timeout=30)
        toolset = {"type": "agent_toolset_20260401"}
        agent = {"name": "coder", "model": "claude-opus-5-5", "tools": [toolset]}
        self._agent = self._post("/v1/agents", agent)["id"]
        self._place = self._post("/v1/environments", {"name": "place"})["id"]

    def session(self) -> str:
        body = {"agent": self._agent, "environment_id": self._place, "harness": "claude"}
        return str(self._post("/v1/sessions", body)["id"])

    def say(self, session: str) -> None:
        event = {"type": "user.message", "content": [{"type": "text", "text": "Hello"}]}
        self._post(f"/v1/sessions/{session}/events", {"events": [event]})

    def wait_until_done(self, session: str) -> None:
        while self._http.get(f"/v1/sessions/{session}").json()["status"] != "idle":
            time.sleep(0.02)

    def wait_until_asleep(self) -> None:
        while len(procfs.descendants([self._server.pid])) > 1:
            time.sleep(0.05)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        done: dict[str, Any] = answer.json()
        return done


def through_roost(roost: Roost, model: Model, times: Times, turns: int) -> None:
    session = roost.session()
    times["new session"].append(model.seconds_after(lambda: roost.say(session)))
    for _ in range(turns):
        roost.wait_until_done(session)
        time.sleep(0.1)
        times["live session"].append(model.seconds_after(lambda: roost.say(session)))
    roost.wait_until_done(session)
    roost.wait_until_asleep()
    times["woken session"].append(model.seconds_after(lambda: roost.say(session)))
    roost.wait_until_done(session)
    roost.wait_until_asleep()


def without(bare: Bare, model: Model, times: Times, turns: int) -> None:
    times["new session"].append(model.seconds_after(lambda: bare.start(resume=False)))
    for _ in range(turns):
        bare.wait_until_done()
        time.sleep(0.1)
        times["live session"].append(model.seconds_after(bare.say))
    bare.wait_until_done()
    bare.end()
    times["woken session"].append(model.seconds_after(lambda: bare.start(resume=True)))
    bare.wait_until_done()
    bare.end()


async def sandboxes(home: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds that `true` takes in a sandbox of its own, which is made for it, and without."""
    provider = BubblewrapProvider()
    await provider.check()
    confined, plain = [], []
    for number in range(rounds):
        plan = Plan(session_id=f"bench-{number}", generation=1, home=home, workspace=home)
        began = time.perf_counter()
        async with provider.open(plan) as sandbox:
            await (await sandbox.spawn(["/bin/true"])).wait()
            confined.append(time.perf_counter() - began)
        began = time.perf_counter()
        await anyio.run_process(["/bin/true"])
        plain.append(time.perf_counter() - began)
    return confined, plain


def mebibytes(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def weigh(folder: Path, url: str, most: int) -> None:
    """The memory of live sessions; here none falls asleep while others are still being started."""
    environ = {"ANTHROPIC_BASE_URL": url, "ROOST_LOG_LEVEL": "error"}
    with LiveServer(folder / "weighed", **environ) as server:
        roost = Roost(server)
        for live in range(1, most + 1):
            session = roost.session()
            roost.say(session)
            roost.wait_until_done(session)
            if live in (1, most):
                tree = procfs.descendants([server.pid])
                below = [seen.pid for seen in tree if seen.pid != server.pid]
                each = mebibytes(below) / live
                print(f"{live} live: {each:.0f} MiB and {len(below) / live:.1f} processes each")


def show(what: str, ours: list[float], bare: list[float]) -> None:
    ours_ms, bare_ms = 1000 * statistics.median(ours), 1000 * statistics.median(bare)
    print(f"{what:<22}{ours_ms:8.1f} ms{bare_ms:8.1f} ms{ours_ms / bare_ms:8.2f}   n={len(ours)}")


def measure(folder: Path, model: Model, url: str, rounds: int, most: int) -> None:
    environ = {"ANTHROPIC_BASE_URL": url, "ROOST_LOG_LEVEL": "error"}
    environ["ROOST_SLEEP_AFTER"] = str(SLEEP_AFTER)
    ours: Times = defaultdict(list)
    bare: Times = defaultdict(list)
    with LiveServer(folder / "data", **environ) as server:
        roost = Roost(server)
        alone = mebibytes([server.pid])
        for number in range(rounds):
            through_roost(roost, model, ours, turns=10)
            without(Bare(folder, url, number), model, bare, turns=10)
        print(f"{'message to request':<22}{'Roost':>11}{'bare':>11}{'ratio':>8}")
        for kind, seconds in ours.items():
            show(kind, seconds, bare[kind])
        show("true in a sandbox", *anyio.run(sandboxes, folder / "home", 10 * rounds))
        left, now = len(procfs.descendants([server.pid])) - 1, mebibytes([server.pid])
        print(
            f"{rounds} asleep: {left} processes; the server {alone:.0f} MiB before, {now:.0f} now"
        )
    weigh(folder, url, most)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    quick = options.parse_args().quick
    model = Model()
    with (
        tempfile.TemporaryDirectory(prefix="claude-") as name,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(listening(model, "127.0.0.1", 0)) as url,
    ):
        (Path(name) / "home").mkdir()
        measure(Path(name), model, url, rounds=3 if quick else 10, most=3 if quick else 8)


if __name__ == "__main__":
    main()
