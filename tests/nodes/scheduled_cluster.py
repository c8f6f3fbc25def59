"""Three servers, deployments with schedules, and what must have come of each time that their clocks have shown."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx2
from tests.nodes.driven_server import Drive
from tests.postgres_pair import primary_and_standby, url_of_both
from tests.unit.test_cron import asked_for, every_minute, micros

from roost.testing.live import LiveServer
from roost.testing.postgres import PostgresServer

KEY = "roost_the_same_key_on_every_node_0123456789"
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
    "x-api-key": KEY,
}
SECOND = 1_000_000
HOUR = 3600 * SECOND
BEGIN = micros(2027, 3, 27, 21, 0) + SECOND
"""Four hours later, clocks in Berlin are set."""

NAMES = ("a", "b", "c")
PATIENCE = 300
GO = {"type": "user.message", "content": [{"type": "text", "text": 'SCRIPT[{"text": "done"}]'}]}


class Plan(NamedTuple):
    """A deployment that is made."""

    missed: str
    overlap: str = "allow"
    expression: str = "0 * * * *"
    zone: str = "UTC"


FEW = (
    Plan("skip"),
    Plan("latest"),
    Plan("all", expression="0 0-23/1 * * 0-7", zone="Europe/Berlin"),
    Plan("all", "queue"),
)
MANY = (
    *FEW,
    Plan("skip", "skip"),
    Plan("latest", "replace"),
    Plan("all", expression="0 1-3 * * *", zone="Europe/Berlin"),
    Plan("latest", expression="0 */2 * * *", zone="America/New_York"),
)


class ScheduledCluster:
    """What happens to it is done by the clock of its servers, which stands still in between."""

    def __init__(self, folder: Path, primary: PostgresServer, standby: PostgresServer) -> None:
        self.drive = Drive(folder)
        self.did: Counter[str] = Counter()
        self._databases = [primary, standby]
        self._url = anyio.run(primary.new)
        environ = {
            "ROOST_DATABASE_URL": url_of_both(self._url, primary, standby),
            "ROOST_BLOBS_URL": f"file://{folder}/blobs",
            "ROOST_API_KEY": KEY,
            "ROOST_LEASE_SECONDS": "6",
            "ROOST_SCHEDULE_JITTER": "0",
        }
        self.servers = {name: LiveServer(folder / name, **environ) for name in NAMES}
        for name, server in self.servers.items():
            self.drive.set(name, BEGIN)
            server.prefix = (*_DRIVEN, str(folder), name)
        self._plans: dict[str, Plan] = {}
        self._down: list[tuple[int, int]] = []
        self._checked: set[str] = set()

    # Time

    @property
    def now(self) -> int:
        """What most clocks show."""
        return sorted(self.drive.now(name) for name in NAMES)[1]

    @property
    def hours(self) -> int:
        """How many have passed."""
        return (self.now - BEGIN) // HOUR

    def move(self, by: int) -> None:
        """All clocks go on."""
        for name in NAMES:
            self.drive.set(name, self.drive.now(name) + by)

    def to_next_hour(self) -> None:
        self.move(self._left(self.now))

    def _left(self, moment: int) -> int:
        """How long it is to the next hour."""
        return HOUR - (moment - BEGIN) % HOUR

    def hour(self) -> None:
        """The next times come, and all that they lead to."""
        self.to_next_hour()
        self.until_settled()

    def until_settled(self) -> None:
        """No time waits to be claimed, and no run for its end. A minute passes if only that helps."""
        _eventually(lambda: not self._count(f"records WHERE due_at <= {self._latest()}"))
        _eventually(self._settled)

    def _settled(self) -> bool:
        latest = self._latest()
        soon = f"runs WHERE look_at BETWEEN 1 AND {latest + 600 * SECOND}"
        if not self._count(soon):
            return True
        [(least,)] = self._rows(f"SELECT min(look_at) FROM {soon}")
        working = self._count("sessions WHERE active_since > 0")
        left = min(self._left(self.drive.now(name)) for name in NAMES)
        if least is not None and least > latest and not working and left > 120 * SECOND:
            self.move(61 * SECOND)
        return False

    def _latest(self) -> int:
        """What the clock shows that is ahead of the others."""
        return max(self.drive.now(name) for name in NAMES if not self._ended(name))

    # What happens

    def strike(self, step: str, wait: int) -> bool:
        """An hour in which one of them is killed at a step; whether somebody came to it."""
        self.drive.strike(step, wait)
        self.hour()
        struck = self.drive.withdraw()
        if struck:
            _eventually(lambda: any(map(self._ended, NAMES)))
            self.did[f"killed at {step}"] += 1
        return struck

    def down(self, hours: int) -> None:
        """Nobody is there for some hours, and half of one more."""
        first = self.now + 1
        self.kill(*NAMES)
        for _ in range(hours):
            self.to_next_hour()
        self.move(HOUR // 2)
        self._down.append((first, self.now))
        self.did["hours down"] += hours
        self.revive()
        self.until_settled()

    def ahead(self, name: str) -> None:
        """The clock of one is up to an hour ahead, and then set back."""
        self.did["ahead"] += 1
        self.drive.set(name, self.now + self._left(self.now))
        self.until_settled()
        self.drive.set(name, self.now + self._left(self.now) + HOUR)
        for other in set(NAMES) - {name}:
            self.drive.set(other, self.drive.now(name) - HOUR)
        self.until_settled()
        self.drive.set(name, self.now)
        self.hour()

    def behind(self, name: str) -> None:
        """The clock of one is an hour back; it is alone for an hour, and the others come back."""
        self.did["behind"] += 1
        others = set(NAMES) - {name}
        self.drive.set(name, self.now - HOUR)
        self.hour()
        self.kill(*others)
        self.to_next_hour()  # which it does not know of yet
        self.to_next_hour()
        on_time = self.now
        self.until_settled()
        for other in others:
            self.drive.set(other, on_time)
        self.revive()
        self.until_settled()
        self.drive.set(name, self.now)
        self.hour()

    def fail_over(self, after: float) -> None:
        """The database dies when times have come, and its standby is promoted."""
        self.did["failover"] += 1
        primary, standby = self._databases
        self.to_next_hour()
        time.sleep(after)
        primary.kill()
        anyio.run(standby.do, "SELECT pg_promote()")
        self._url = self._url.replace(str(primary.folder), str(standby.folder))
        self._databases.reverse()
        self.until_settled()

    def kill(self, *names: str) -> None:
        for name in names:
            self.servers[name].kill()
            self.did["killed"] += 1

    def revive(self) -> None:
        """All that are not there are started, at once."""
        starting = [
            threading.Thread(target=server.start)
            for name, server in self.servers.items()
            if self._ended(name)
        ]
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join()
        assert not any(map(self._ended, NAMES))

    def dead(self) -> int:
        return sum(map(self._ended, NAMES))

    def _ended(self, name: str) -> bool:
        return self.servers[name].has_ended()

    # Deployments, and what has come of them

    def deploy(self, plans: Sequence[Plan]) -> None:
        agent = self._call("POST", "/v1/agents", {"name": "a", "model": "scripted"})
        environment = self._call("POST", "/v1/environments", {"name": "e"})
        for plan in plans:
            schedule = {"type": "cron", "expression": plan.expression, "timezone": plan.zone}
            body = {"name": "d", "agent": agent["id"], "environment_id": environment["id"]}
            body |= {"initial_events": [GO], "schedule": schedule, "overlap": plan.overlap}
            body |= {"missed_runs": {"policy": plan.missed}}
            self._plans[self._call("POST", "/v1/deployments", body)["id"]] = plan

    def check(self) -> int:
        """Each time has one run, by its policy, and each run one session. Gives the number of sessions."""
        self.revive()
        _eventually(lambda: not self._count("sessions WHERE active_since > 0"))
        found = 0
        for deployment, plan in self._plans.items():
            runs = self._all(f"/roost/v1/deployments/{deployment}/runs")
            outcomes = Counter(each for run in runs for each in self._outcomes(plan, run))
            assert set(outcomes.values()) <= {1}, f"run twice: {outcomes.most_common(3)}"
            assert dict(outcomes) == dict.fromkeys(self._expected(plan), 1), plan
            sessions = self._all("/v1/sessions", deployment_id=deployment)
            started = [run["session_id"] for run in runs if run["state"] == "started"]
            assert sorted(started) == sorted(session["id"] for session in sessions)
            for session in sessions:
                if session["id"] not in self._checked:
                    self._check_session(session)
            found += len(sessions)
        return found

    def _check_session(self, session: dict[str, Any]) -> None:
        assert session["status"] == "idle"
        types = Counter(each["type"] for each in self._all(f"/v1/sessions/{session['id']}/events"))
        assert (types["user.message"], types["agent.message"]) == (1, 1), types
        self._checked.add(session["id"])

    def _outcomes(self, plan: Plan, run: dict[str, Any]) -> Iterator[tuple[int, str]]:
        """Each time that a run stands for, and what happened at it."""
        at = _moment(run["trigger_context"]["scheduled_at"])
        if run["state"] != "skipped":
            yield at, run["state"]
            return
        skipped = run["skipped"]
        since = at if skipped["since"] is None else _moment(skipped["since"])
        times = self._times(plan, since - 1, at)
        assert len(times) == skipped["count"], run
        yield from ((each, skipped["reason"]) for each in times)

    def _expected(self, plan: Plan) -> Iterator[tuple[int, str]]:
        missed: list[int] = []
        for first, last in self._down:
            times = self._times(plan, first, last)
            missed += times
            yield from zip(times, _made_up_for(plan, len(times)), strict=True)
        for at in self._times(plan, BEGIN, self.now):
            if at not in missed:
                yield at, "started"

    def _times(self, plan: Plan, after: int, until: int) -> list[int]:
        asks = asked_for(plan.expression)
        return [at for at, shown in every_minute(plan.zone, after, until) if asks(shown)]

    # How to ask

    def _rows(self, sql: str) -> list[Any]:
        return [tuple(row) for row in anyio.run(self._databases[0].do, sql, self._url)]

    def _count(self, what: str) -> int:
        return int(self._rows(f"SELECT count(*) FROM {what}")[0][0])

    def _call(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        server = next(each for each in self.servers.values() if not each.has_ended())
        more: Any = {"headers": HEADERS, "timeout": PATIENCE, "params": params}
        answer = httpx2.request(method, server.url + path, json=body, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def _all(self, path: str, **params: Any) -> list[Any]:
        found, page = [], self._call("GET", path, limit=100, **params)
        while True:
            found += page["data"]
            if not page.get("next_page"):
                return found
            page = self._call("GET", path, limit=100, page=page["next_page"], **params)


_DRIVEN = (sys.executable, "-m", "tests.nodes.driven_server")


def _made_up_for(plan: Plan, count: int) -> list[str]:
    """What becomes of so many times that were missed together."""
    if plan.missed == "skip":
        return ["missed"] * count
    if plan.missed == "latest":
        return [*["missed"] * (count - 1), "started"][-count:] if count else []
    if plan.overlap == "queue":
        return ["started", "started", *["queue_full"] * (count - 2)][:count]
    return ["started"] * count


def _moment(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp()) * SECOND


def _eventually(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.1)


@contextmanager
def scheduled_cluster(folder: Path, plans: Sequence[Plan]) -> Iterator[ScheduledCluster]:
    """Started, with these deployments; in the end all of it is killed."""
    with primary_and_standby() as (primary, standby):
        cluster = ScheduledCluster(folder, primary, standby)
        try:
            cluster.servers["a"].start()  # which makes the tables
            cluster.deploy(plans)
            cluster.revive()
            yield cluster
        finally:
            for server in cluster.servers.values():
                server.kill()
