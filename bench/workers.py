"""What a worker's call takes: from poll to result, and each call after it, beside the loop's own sandbox.

    python bench/workers.py [--calls 50] [--turns 10] [--quick]

One server, one session on a self-hosted environment and one on a cloud environment, in turns that take turns. The
worker is in this process, and answers each call at once: what is measured is the server, and not a shell. `claim` is
from a message until a poll that waits has the session's work item; `worker` is a call, from the event that asks for it
to the next one; `sandbox` is the same of a command that does nothing in the sandbox of the server's own loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx2

from roost.client.work import ClaimedWork, WorkClient
from roost.testing.live import LiveServer

HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
TOOLSET = {"type": "agent_toolset_20260401"}
CALL = {"tool": "bash", "input": {"command": "true"}}


class Bench:
    """A server, and one session of each kind."""

    def __init__(self, server: LiveServer) -> None:
        headers = HEADERS | {"x-api-key": server.key}
        self._http = httpx2.Client(base_url=server.url, headers=headers, timeout=600)
        agent = self.post("/v1/agents", {"name": "a", "model": "scripted", "tools": [TOOLSET]})
        self.environment = self._environment("self_hosted")
        keys = f"/roost/v1/environments/{self.environment}/keys"
        self.key = self.post(keys, {"name": "bench"})["secret"]
        kinds = {"worker": self.environment, "sandbox": self._environment("cloud")}
        self.sessions = {
            name: self.post(
                "/v1/sessions",
                {"agent": agent["id"], "environment_id": place, "harness": "messages"},
            )["id"]
            for name, place in kinds.items()
        }

    def _environment(self, kind: str) -> str:
        return str(self.post("/v1/environments", {"name": kind, "config": {"type": kind}})["id"])

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._http.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def say(self, name: str, calls: int) -> int:
        """A turn with so many calls begins; gives where the log ended before it."""
        steps = [CALL] * calls + [{"text": "done"}]
        content = [{"type": "text", "text": f"SCRIPT{json.dumps(steps)}"}]
        path = f"/v1/sessions/{self.sessions[name]}/events"
        return int(
            self.post(path, {"events": [{"type": "user.message", "content": content}]})["data"][0][
                "seq"
            ]
        )

    def asked_at(self, name: str, after: int) -> list[float]:
        """When each call of the last turn was asked for, once the turn is over: by the server's clock."""
        path = f"/v1/sessions/{self.sessions[name]}/events"
        while True:
            found = self._http.get(path, params={"limit": 1000, "order": "desc"}).json()["data"]
            turn = [event for event in found if event["seq"] >= after]
            last = turn[0] if turn else {}
            if last.get("stop_reason", {}).get("type") == "end_turn":
                break
            time.sleep(0.05)
        kinds = ("agent.tool_use", "agent.message")
        return sorted(_seconds(event["processed_at"]) for event in turn if event["type"] in kinds)


def _seconds(moment: str) -> float:
    hours, minutes, seconds = moment[11:-1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


async def answer_all(client: WorkClient, work: ClaimedWork) -> None:
    """As a worker that has nothing to do: each call is answered when it is seen."""
    await client.ack(work)
    await client.heartbeat(work, "NO_HEARTBEAT")
    answered: set[str] = set()
    async for event in client.events(work):
        if event.get("type") == "user.tool_result":
            answered.add(event["tool_use_id"])
        elif event.get("type") == "agent.tool_use" and event["id"] not in answered:
            content = [{"type": "text", "text": "ok"}]
            result = {"type": "user.tool_result", "tool_use_id": event["id"], "content": content}
            await client.send(work, result)


async def measure(bench: Bench, url: str, turns: int, calls: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {"claim": [], "worker": [], "sandbox": []}
    async with (
        httpx2.AsyncClient(base_url=url, timeout=600) as http,
        anyio.create_task_group() as tasks,
    ):
        client = WorkClient(http, bench.environment, bench.key, "bench")
        for turn in range(turns):
            for name in ("worker", "sandbox"):
                began = time.perf_counter()
                after = await anyio.to_thread.run_sync(bench.say, name, calls)
                if name == "worker" and turn == 0:
                    while (work := await client.poll()) is None:
                        pass
                    taken["claim"].append(time.perf_counter() - began)
                    tasks.start_soon(answer_all, client, work)
                at = await anyio.to_thread.run_sync(bench.asked_at, name, after)
                taken[name] += [later - one for one, later in pairwise(at)]
        tasks.cancel_scope.cancel()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    calls, turns = (5, 2) if given.quick else (given.calls, given.turns)
    with tempfile.TemporaryDirectory() as folder, LiveServer(Path(folder) / "data") as server:
        taken = anyio.run(measure, Bench(server), server.url, turns, calls)
    for name, seconds in taken.items():
        ordered = sorted(seconds)
        p90 = ordered[int(len(ordered) * 0.9)]
        middle = statistics.median(ordered)
        print(f"{name:8} {len(ordered):5} p50 {middle * 1000:7.1f} ms  p90 {p90 * 1000:7.1f} ms")
    worker, sandbox = statistics.median(taken["worker"]), statistics.median(taken["sandbox"])
    print(f"worker / sandbox: {worker / sandbox:.2f}")


if __name__ == "__main__":
    main()
