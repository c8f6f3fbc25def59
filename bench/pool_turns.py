"""The first text of a turn in a container of a pool, beside the same turn in bubblewrap, in the same run.

    python bench/pool_turns.py [--quick]

Run it alone. The agent is the real Claude Code with the built-in model; the pool is one that Roost serves on this machine,
whose containers have Claude Code already. Measured is the time from a message until its answer is in the event stream:
of a session's first message, and of those after it. The servers take turns; the medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2

from roost.testing.live import LiveServer

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.pool.stocked import planted

HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
NEW, LIVE = "new session", "live session"


class Sessions:
    """Sessions of one server."""

    def __init__(self, server: LiveServer) -> None:
        headers = {"x-api-key": server.key, **HEADERS}
        self._http = httpx2.Client(base_url=server.url, headers=headers, timeout=120)
        self.environment = self._post("/v1/environments", {"name": "place"})["id"]

    def begin(self) -> str:
        tools = [{"type": "agent_toolset_20260401"}]
        agent = self._post("/v1/agents", {"name": "a", "model": "claude-opus-5-5", "tools": tools})
        body = {"agent": agent["id"], "environment_id": self.environment, "harness": "claude"}
        return str(self._post("/v1/sessions", body)["id"])

    def pool(self) -> None:
        self._post("/roost/v1/pools", {"name": "turns", "environment_id": self.environment})

    def seconds(self, session: str) -> float:
        """From a message to the first text of its answer; returns when the session is idle."""
        content = [{"type": "text", "text": "Hello"}]
        message = {"events": [{"type": "user.message", "content": content}]}
        took = 0.0
        with self._http.stream("GET", f"/v1/sessions/{session}/events/stream") as stream:
            began = time.perf_counter()
            self._post(f"/v1/sessions/{session}/events", message)
            for line in stream.iter_lines():
                if not took and '"agent.message"' in line:
                    took = time.perf_counter() - began
                if '"session.status_idle"' in line:
                    assert took, "it said nothing"
                    return took
        raise AssertionError("the stream has ended")

    def archive(self, session: str) -> None:
        self._post(f"/v1/sessions/{session}/archive", {})

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    rounds = 3 if parser.parse_args().quick else 12
    times: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        site = str(planted(root / "site"))
        pool = stack.enter_context(
            LiveServer(root / "pool", PYTHONPATH=site, ROOST_SANDBOX="stocked")
        )
        Sessions(pool).pool()
        away = {
            "ROOST_SANDBOX": "pool",
            "ROOST_POOL_ENDPOINT": f"{pool.url}/roost/v1/pools/turns",
            "ROOST_POOL_TOKEN": pool.key,
            "ROOST_POOL_SECRET": "a secret for as long as this takes",
        }
        servers = {
            "bubblewrap": Sessions(stack.enter_context(LiveServer(root / "here"))),
            "pool": Sessions(stack.enter_context(LiveServer(root / "away", **away))),
        }
        for number in range(rounds + 1):
            for kind, sessions in servers.items():
                session = sessions.begin()
                first = sessions.seconds(session)
                others = [sessions.seconds(session) for _ in range(3)]
                sessions.archive(session)
                if number:  # the first one fills caches
                    times[kind, NEW].append(first)
                    times[kind, LIVE] += others
    print(f"{'message to first text, ms':<28}{'bubblewrap':>12}{'pool':>10}{'more':>10}")
    for what in (NEW, LIVE):
        here, there = (statistics.median(times[kind, what]) for kind in ("bubblewrap", "pool"))
        print(f"{what:<28}{here * 1e3:>12.0f}{there * 1e3:>10.0f}{(there - here) * 1e3:>10.0f}")


if __name__ == "__main__":
    main()
