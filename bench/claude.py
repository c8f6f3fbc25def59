"""The real Claude Code: through Roost, in its sandbox, beside the bare CLI in the same run.

    python bench/claude.py [--quick]

Run it alone. Measured is the time from a message until the model is asked, which is all that Roost
adds to; the model is a scripted one in this process. Roost and the bare CLI take turns, and nothing is
started ahead while either is measured. The ratios of the medians count, not the numbers. Memory is the
proportional share (PSS) of every process below the server; as many live sessions are weighed as fit.
"""

from __future__ import annotations

import argparse
import json
import queue
import socket
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal
from starlette.types import Receive, Scope, Send

from roost.harnesses.claude import bundled_cli
from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes import procfs
from roost.sandboxes.bubblewrap import BubblewrapProvider
from roost.serve.http import listening
from roost.testing.live import LiveServer
from roost.testing.scripted_model import scripted_model

NEW, LIVE, WOKEN = "new session", "live session", "woken session"
HELLO = {"events": [{"type": "user.message", "content": [{"type": "text", "text": "Hello"}]}]}
EACH, SPARE = 150, 4096  # mebibytes: about what a live session takes; what others may need
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


class Telling:
    """A message that is ready to go out in one write, on a connection that is there. Its answer is read
    later: what a client takes on the same two processors is not Roost's.
    """

    def __init__(self, host: str, request: bytes) -> None:
        name, _, port = host.partition(":")
        self._line = socket.create_connection((name, int(port)), timeout=30)
        self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        time.sleep(0.05)

    def __call__(self) -> None:
        self._line.sendall(self._request)

    def check(self) -> None:
        with self._line:
            answer = HTTPResponse(self._line)
            answer.begin()
            assert answer.status == 200, answer.read()


class Roost:
    """Sessions of one server."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        headers = {**HEADERS, "x-api-key": server.key}
        self._http = httpx2.Client(base_url=server.url, headers=headers, timeout=30)
        self._host = str(server.url).removeprefix("http://")
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        toolset = {"type": "agent_toolset_20260401"}
        agent = {"name": "coder", "model": "claude-opus-5-5", "tools": [toolset]}
        self._agent = self._post("/v1/agents", agent)["id"]
        self._place = self._post("/v1/environments", {"name": "place"})["id"]

    @property
    def processes(self) -> list[int]:
        """All below the server."""
        tree = procfs.descendants([self._server.pid])
        return [seen.pid for seen in tree if seen.pid != self._server.pid]

    def session(self, harness: str = "claude") -> str:
        body = {"agent": self._agent, "environment_id": self._place, "harness": harness}
        return str(self._post("/v1/sessions", body)["id"])

    def tell(self, session: str) -> None:
        self._post(f"/v1/sessions/{session}/events", HELLO)

    def telling(self, session: str) -> Telling:
        body = json.dumps(HELLO)
        request = (
            f"POST /v1/sessions/{session}/events HTTP/1.1\r\nhost: {self._host}\r\n{self._head}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        )
        return Telling(self._host, request.encode())

    def archive(self, session: str) -> None:
        self._post(f"/v1/sessions/{session}/archive", {})

    def wait_until_done(self, session: str) -> None:
        while self._http.get(f"/v1/sessions/{session}").json()["status"] != "idle":
            time.sleep(0.02)

    def wait_until_asleep(self) -> None:
        while self.processes:
            time.sleep(0.05)

    def wait_until_ahead(self) -> None:
        while "\nroost_prestarted_agents 1.0" not in self._http.get("/metrics").text:
            time.sleep(0.05)
        time.sleep(0.2)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        done: dict[str, Any] = answer.json()
        return done


class Race:
    """Roost and the bare CLI, in turns, on the same track."""

    def __init__(self, model: Model, ready: Roost, sleepy: Roost) -> None:
        self._model = model
        self._ready = ready
        self._sleepy = sleepy
        self.ours: Times = defaultdict(list)
        self.bare: Times = defaultdict(list)

    def round(self, bare: Bare, turns: int) -> None:
        """One of each kind; what is started ahead is up before anything is measured."""
        self._ready.wait_until_ahead()
        cold = self._sleepy.session()
        self._measure(self.ours, "new, none ahead", self._sleepy.telling(cold))
        self._sleepy.wait_until_done(cold)
        self._measure(self.bare, NEW, lambda: bare.start(resume=False))
        bare.wait_until_done()
        session = self._ready.session()
        self._measure(self.ours, NEW, self._ready.telling(session))
        self._ready.wait_until_done(session)
        self._ready.wait_until_ahead()
        for _ in range(turns):
            self._measure(self.ours, LIVE, self._ready.telling(session))
            self._ready.wait_until_done(session)
            time.sleep(0.1)
            self._measure(self.bare, LIVE, bare.say)
            bare.wait_until_done()
            time.sleep(0.1)
        self._ready.archive(session)
        bare.end()
        self._sleepy.wait_until_asleep()
        self._measure(self.ours, WOKEN, self._sleepy.telling(cold))
        self._sleepy.wait_until_done(cold)
        self._sleepy.wait_until_asleep()
        self._measure(self.bare, WOKEN, lambda: bare.start(resume=True))
        bare.wait_until_done()
        bare.end()

    def show(self) -> None:
        print(f"{'message to request':<22}{'Roost':>11}{'bare':>11}{'ratio':>8}")
        for kind, aim in ((NEW, 0.5), (LIVE, 1.2), (WOKEN, 1.10)):
            show(kind, self.ours[kind], self.bare[kind], f"aim {aim}")
        show("new, none ahead", self.ours["new, none ahead"], self.bare[NEW])

    def _measure(self, times: Times, kind: str, act: Callable[[], object]) -> None:
        times[kind].append(self._model.seconds_after(act))
        if isinstance(act, Telling):
            act.check()


async def sandboxes(home: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds that `true` takes in a sandbox of its own, which is made for it, and without."""
    provider = BubblewrapProvider()
    await provider.check()
    confined, plain = [], []
    for number in range(rounds):
        plan = Plan(
            session_id=f"bench-{number}",
            generation=1,
            home=LocalVolume(home),
            workspace=LocalVolume(home),
        )
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


def free_mebibytes() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1024


def weigh(folder: Path, environ: dict[str, str], counts: Sequence[int]) -> None:
    """The memory of live sessions, which are all told something at once."""
    with LiveServer(folder / "weighed", **environ, ROOST_MAX_LIVE="1000") as server:
        roost = Roost(server)
        sessions: list[str] = []
        for count in counts:
            if free_mebibytes() < (count - len(sessions)) * EACH + SPARE:
                print(f"{count} live: not weighed, {free_mebibytes():.0f} MiB are free")
                break
            fresh = [roost.session() for _ in range(count - len(sessions))]
            began = time.perf_counter()
            for session in fresh:
                roost.tell(session)
            for session in fresh:
                roost.wait_until_done(session)
            sessions += fresh
            below = roost.processes
            print(
                f"{count} live: {mebibytes(below) / count:.0f} MiB and {len(below) / count:.1f} "
                f"processes each; the server {mebibytes([server.pid]):.0f} MiB; "
                f"{len(fresh)} at once in {time.perf_counter() - began:.1f} s"
            )


def hibernate(folder: Path, environ: dict[str, str], count: int) -> None:
    """What sessions cost that have worked, and sleep. Their agent is a scripted one: asleep, there is
    no difference.
    """
    with LiveServer(folder / "asleep", **environ) as server:
        roost = Roost(server)
        roost.wait_until_done(_told(roost))
        before = mebibytes([server.pid])
        sessions = [_told(roost) for _ in range(count)]
        for session in sessions:
            roost.wait_until_done(session)
        after, size = mebibytes([server.pid]), (folder / "asleep" / "roost.db").stat().st_size
        print(
            f"{count} asleep: {len(roost.processes)} processes; the server {before:.0f} MiB before, "
            f"{after:.0f} now; {size / 1024 / count:.1f} KiB of database each"
        )


def _told(roost: Roost) -> str:
    session = roost.session("scripted")
    roost.tell(session)
    return session


def show(what: str, ours: list[float], bare: list[float], aim: str = "") -> None:
    ours_ms, bare_ms = 1000 * statistics.median(ours), 1000 * statistics.median(bare)
    ratio = ours_ms / bare_ms
    print(f"{what:<22}{ours_ms:8.1f} ms{bare_ms:8.1f} ms{ratio:8.2f}   n={len(ours)} {aim}")


def race(folder: Path, model: Model, environ: dict[str, str], rounds: int) -> None:
    with (
        LiveServer(folder / "ready", **environ, ROOST_PRESTART="1") as ready,
        LiveServer(folder / "sleepy", **environ, ROOST_SLEEP_AFTER="1") as sleepy,
    ):
        awake = Roost(ready)
        awake.session()  # the first one is what the next is expected to be like
        track = Race(model, awake, Roost(sleepy))
        for number in range(rounds):
            track.round(Bare(folder, environ["ANTHROPIC_BASE_URL"], number), turns=5)
        track.show()
    show("true in a sandbox", *anyio.run(sandboxes, folder / "home", 10 * rounds))


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
        folder = Path(name)
        (folder / "home").mkdir()
        environ = {"ANTHROPIC_BASE_URL": url, "ROOST_LOG_LEVEL": "error"}
        race(folder, model, environ, rounds=3 if quick else 9)
        weigh(folder, environ, counts=(1, 5) if quick else (1, 20, 100))
        hibernate(folder, environ, 200 if quick else 2000)


if __name__ == "__main__":
    main()
