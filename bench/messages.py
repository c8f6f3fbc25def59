"""The loop of our own on the Messages API: from a message to the model's request, and 1,000 live sessions.

    python bench/messages.py [--quick]

Run it alone. Measured is the time from the first byte of a message, which is then accepted, until the model is
asked. Beside it, by turns, stands a bare request: the same request to the same model, sent in one write on a
connection that is there. Nobody can ask sooner. The model is a scripted one in this process. Aims: 5 ms at p50 for
a live session; 0.5 MB of the server's proportional memory (PSS) for each of 1,000 live sessions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from http.client import HTTPResponse
from pathlib import Path

from _race import LIVE, NEW, WOKEN, Model, Roost, Telling, Times, mebibytes, serving
from roost.testing.live import LiveServer

BARE = "bare request"


class Loop(Roost):
    """Sessions of one server, with the loop of our own."""

    def __init__(self, server: LiveServer) -> None:
        super().__init__(server, "messages")

    def wait_for_live(self, count: int) -> None:
        """Until so many agents are live while their sessions are idle."""
        while f"\nroost_warm_agents {count}.0" not in self._http.get("/metrics").text:
            time.sleep(0.05)


class Asking(Telling):
    """A request to the model, whose answer is read to its end."""

    def check(self) -> None:
        with self._line:
            answer = HTTPResponse(self._line)
            answer.begin()
            assert (answer.status, b"message_stop" in answer.read()) == (200, True)


def bare(url: str) -> Telling:
    """What the loop asks the model, without the loop."""
    body = json.dumps(
        {
            "model": "claude-opus-5-5",
            "max_tokens": 16_384,
            "stream": True,
            "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        }
    )
    host = url.removeprefix("http://")
    request = (
        f"POST /v1/messages HTTP/1.1\r\nhost: {host}\r\nx-api-key: none\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    )
    return Asking(host, request.encode())


def race(folder: Path, model: Model, environ: dict[str, str], rounds: int) -> None:
    """One of each kind in turns: new, live, woken and bare."""
    times: Times = defaultdict(list)

    def measure(kind: str, act: Telling) -> None:
        times[kind].append(model.seconds_after(act))
        act.check()

    with (
        LiveServer(folder / "ready", **environ) as ready,
        LiveServer(folder / "sleepy", **environ, ROOST_SLEEP_AFTER="0.1") as sleepy,
    ):
        awake, asleep = Loop(ready), Loop(sleepy)
        woken = asleep.session()
        for _ in range(rounds):
            session = awake.session()
            measure(NEW, awake.telling(session))
            awake.wait_until_done(session)
            for _ in range(5):
                measure(LIVE, awake.telling(session))
                awake.wait_until_done(session)
                measure(BARE, bare(environ["ANTHROPIC_BASE_URL"]))
            awake.archive(session)
            asleep.wait_for_live(0)
            measure(WOKEN, asleep.telling(woken))
            asleep.wait_until_done(woken)
    del times[WOKEN][0]  # it was new
    plain = statistics.median(times[BARE])
    print(f"{'message to request':<22}{'p50':>11}{'p90':>11}{'of bare':>9}")
    for kind, aim in ((LIVE, "aim 5 ms"), (NEW, ""), (WOKEN, ""), (BARE, "")):
        found = times[kind]
        middle, high = statistics.median(found), statistics.quantiles(found, n=10)[-1]
        print(
            f"{kind:<22}{1000 * middle:8.1f} ms{1000 * high:8.1f} ms{middle / plain:9.1f}"
            f"   n={len(found)} {aim}"
        )


def weigh(folder: Path, environ: dict[str, str], count: int) -> None:
    """The memory of live sessions that have had a turn, and a turn of all of them at once."""
    with LiveServer(folder / "weighed", **environ, ROOST_MAX_LIVE=str(count)) as server:
        loop = Loop(server)
        sessions = [loop.session() for _ in range(count)]
        few = 20  # what the first ones load is not theirs
        for session in sessions[:few]:
            loop.tell(session)
            loop.wait_until_done(session)
        before, opened = mebibytes([server.pid]), files(server)
        for session in sessions[few:]:
            loop.tell(session)
        loop.wait_for_live(count)
        each = (mebibytes([server.pid]) - before) / (count - few)
        open_each = (files(server) - opened) / (count - few)
        began = time.perf_counter()
        for session in sessions:
            loop.tell(session)
        told = time.perf_counter() - began
        loop.wait_until_done(sessions[-1])
        loop.wait_for_live(count)
        print(
            f"{count} live: {each * 1.048576:.3f} MB each (aim 0.5), {open_each:.1f} open files each, "
            f"{len(loop.processes)} processes; the server {mebibytes([server.pid]):.0f} MiB\n"
            f"{count} told one after another in {told:.1f} s, and done after "
            f"{time.perf_counter() - began:.1f} s"
        )


def files(server: LiveServer) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    quick = options.parse_args().quick
    model = Model()
    with (
        tempfile.TemporaryDirectory(prefix="messages-") as name,
        serving(model) as url,
    ):
        environ = {"ANTHROPIC_BASE_URL": url, "ROOST_LOG_LEVEL": "error"}
        race(Path(name), model, environ, rounds=4 if quick else 20)
        weigh(Path(name), environ, 100 if quick else 1000)


if __name__ == "__main__":
    main()
