"""Workers and their server are killed and frozen at any moment: no call is run twice, and each has one result."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.journeys.test_workers import HERE, SelfHosted, tool

from roost.testing.live import LiveServer

CALLS = 8  # of each session
LEASE = 2  # seconds


class Killed:
    """A worker that is started again whenever it was killed."""

    def __init__(self, place: SelfHosted, workdir: Path) -> None:
        self._place = place
        self._workdir = workdir
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environ = {"PATH": os.environ["PATH"], "ANTHROPIC_ENVIRONMENT_KEY": self._place.key}
        command = [sys.executable, str(HERE / "official_worker.py"), self._place.server.url]
        with (self._place.root / "workers.log").open("ab") as output:
            self._process = subprocess.Popen(
                [*command, self._place.environment.id, str(self._workdir)],
                env=environ,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The worker, and not what it has begun: that may go on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self, seconds: float) -> None:
        """For longer than its lease; then it goes on with what it knows."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self._process.send_signal(signal.SIGCONT)


@pytest.mark.chaos
@pytest.mark.parametrize("kills", [40])
def test_no_call_is_run_twice_whatever_is_killed(tmp_path: Path, kills: int):
    chance, workdir = random.Random(11), tmp_path / "work"
    workdir.mkdir()
    with ExitStack() as stack:
        given = {"ROOST_WORK_LEASE_SECONDS": str(LEASE)}
        server = stack.enter_context(LiveServer(tmp_path / "data", **given))
        place = SelfHosted(server, tmp_path)
        workers = [Killed(place, workdir) for _ in range(2)]
        for worker in workers:
            worker.start()
            stack.callback(worker.kill)
        sessions = [begun(place, n) for n in range(3)]
        done: Counter[str] = Counter()
        while sum(done.values()) < kills:
            time.sleep(chance.uniform(0.3, 2.0))
            what = chance.choice(["worker", "worker", "server", "frozen"])
            done[what] += 1
            worker = chance.choice(workers)
            if what == "server":
                server.kill()
                server.start()
                place.move_to(server)
            elif what == "frozen":
                worker.freeze(LEASE + chance.uniform(0.5, 2.0))
            else:
                worker.kill()
                worker.start()
            if all(place.has_ended(session) for session in sessions[-3:]):
                sessions += [begun(place, len(sessions) + n) for n in range(3)]
        for session in sessions:
            place.until(lambda s=session: place.has_ended(s))
        ran = Counter((workdir / "log").read_text().split())
        unknown = sum(check(place, session, n, ran) for n, session in enumerate(sessions))
        print(f"{dict(done)}: {len(sessions) * CALLS} calls, {len(ran)} ran, {unknown} unknown")
        assert len(ran) > len(sessions), "some did run"


def begun(place: SelfHosted, number: int) -> str:
    steps = [tool("bash", command=f"echo {number}-{i} >>log; sleep 0.2") for i in range(CALLS)]
    return place.session(*steps, {"text": "Done."})


def check(place: SelfHosted, session: str, number: int, ran: Counter[str]) -> int:
    """How many of a session's calls were told as unknown; all others have run, and each of them once."""
    results = {each.tool_use_id: each for each in place.events(session, "user.tool_result")}
    calls = place.events(session, "agent.tool_use")
    assert len(calls) == CALLS == len(place.events(session, "user.tool_result"))
    unknown = 0
    for i, call in enumerate(calls):
        times, closed = ran[f"{number}-{i}"], (results[call.id].model_extra or {}).get("closed")
        assert times <= 1, f"{number}-{i} ran {times} times"
        assert (closed, times) in ((None, 1), ("worker_lost", 0), ("worker_lost", 1)), call
        unknown += closed is not None
    return unknown
