"""An agent's program through Roost, in its sandbox, beside the bare one in the same run: what the benchmarks of the
harnesses share.

Measured is the time from a message until the model is asked, which is all that Roost adds to; the model is a scripted
one in this process. Roost and the bare program take turns, and nothing is started ahead while either is measured. The
ratios of the medians count, not the numbers. Memory is the proportional share (PSS) of every process below the
server; as many live sessions are weighed as fit.
"""

from __future__ import annotations

import json
import queue
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Protocol

import httpx2
from anyio.from_thread import start_blocking_portal

from roost.builtin_model.script import Fault
from roost.sandboxes import procfs
from roost.serve.http import listening
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel, SeenRequest

NEW, LIVE, WOKEN = "new session", "live session", "woken session"
HELLO = {"events": [{"type": "user.message", "content": [{"type": "text", "text": "Hello"}]}]}
SPARE = 4096  # mebibytes that others may need
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
Times = defaultdict[str, list[float]]


class Model(ScriptedModel):
    """The scripted model, and when it was asked for an answer. What programs ask beside that, for a title, has no
    tools, and does not count.
    """

    def __init__(self) -> None:
        super().__init__(keep=0)
        self._asked: queue.Queue[float] = queue.Queue()

    def seen(self, request: SeenRequest) -> Fault | None:
        if request.body.get("tools"):
            self._asked.put(time.perf_counter())
        return super().seen(request)

    def seconds_after(self, act: Callable[[], object]) -> float:
        """How long after the beginning of this act the model is asked; once, in all of it."""
        began = time.perf_counter()
        act()
        asked = self._asked.get(timeout=60)
        return asked - began


@contextmanager
def serving(model: Model) -> Iterator[str]:
    """The model on a port; gives its address."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(listening(model, "127.0.0.1", 0)) as url,
    ):
        yield url


class Bare(Protocol):
    """The program by itself, as another program would keep it."""

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    def start(self, *, resume: bool) -> None:
        """Start it, and say something."""
        ...

    def say(self) -> None:
        """Say something more."""
        ...

    def wait_until_done(self) -> None:
        """Wait until it has answered."""
        ...

    def end(self) -> None:
        """Let it end."""
        ...


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
    """Sessions of one server, with a harness."""

    def __init__(self, server: LiveServer, harness: str) -> None:
        self._server = server
        self._harness = harness
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

    def session(self) -> str:
        body = {"agent": self._agent, "environment_id": self._place, "harness": self._harness}
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
    """Roost and the bare program, in turns, on the same track."""

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

    def show(self, aims: Mapping[str, float]) -> None:
        print(f"{'message to request':<22}{'Roost':>11}{'bare':>11}{'ratio':>8}")
        for kind in (NEW, LIVE, WOKEN):
            aim = f"aim {aims[kind]}" if kind in aims else ""
            show(kind, self.ours[kind], self.bare[kind], aim)
        show("new, none ahead", self.ours["new, none ahead"], self.bare[NEW])

    def _measure(self, times: Times, kind: str, act: Callable[[], object]) -> None:
        times[kind].append(self._model.seconds_after(act))
        if isinstance(act, Telling):
            act.check()


def mebibytes(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def free_mebibytes() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1024


def weigh(
    folder: Path, environ: Mapping[str, str], harness: str, each: int, counts: Sequence[int]
) -> None:
    """The memory of live sessions, which are all told something at once; about `each` mebibytes."""
    with LiveServer(folder / "weighed", **environ, ROOST_MAX_LIVE="1000") as server:
        roost = Roost(server, harness)
        sessions: list[str] = []
        for count in counts:
            if free_mebibytes() < (count - len(sessions)) * each + SPARE:
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


def show(what: str, ours: list[float], bare: list[float], aim: str = "") -> None:
    ours_ms, bare_ms = 1000 * statistics.median(ours), 1000 * statistics.median(bare)
    ratio = ours_ms / bare_ms
    print(f"{what:<22}{ours_ms:8.1f} ms{bare_ms:8.1f} ms{ratio:8.2f}   n={len(ours)} {aim}")


def race(
    folder: Path,
    model: Model,
    environ: Mapping[str, str],
    harness: str,
    bare_of: Callable[[int], Bare],
    rounds: int,
) -> Race:
    """So many rounds, each with a bare program of its own."""
    with (
        LiveServer(folder / "ready", **environ, ROOST_PRESTART="1") as ready,
        LiveServer(folder / "sleepy", **environ, ROOST_SLEEP_AFTER="1") as sleepy,
    ):
        awake = Roost(ready, harness)
        awake.session()  # the first one is what the next is expected to be like
        track = Race(model, awake, Roost(sleepy, harness))
        for number in range(rounds):
            track.round(bare_of(number), turns=5)
        return track


def weigh_bare(bare_of: Callable[[int], Bare], count: int) -> None:
    """The memory of as many bare programs, each after a turn."""
    running = [bare_of(number) for number in range(count)]
    for bare in running:
        bare.start(resume=False)
        bare.wait_until_done()
    tree = procfs.descendants([bare.pid for bare in running])
    print(f"{count} bare: {mebibytes([seen.pid for seen in tree]) / count:.0f} MiB each")
    for bare in running:
        bare.end()
