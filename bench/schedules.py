"""What many schedules cost: a server with 100,000 deployments beside one with none, and 1,000 due in one minute.

    python bench/schedules.py [--deployments 100000] [--due 1000] [--seconds 60] [--quick]

First in SQLite, then in PostgreSQL. Both servers are idle at the same time, and the processor time of each is that
of its process and of its database's. Then some deployments are due at the next full minute: when the last of them
was claimed and started after that, with the usual jitter of up to ten seconds, and what that took. Their sessions
are made and their first turns run by the same server, by a harness that answers without a model.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import httpx2

from roost.testing.live import LiveServer
from roost.testing.postgres import PostgresServer

HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
GO = {"type": "user.message", "content": [{"type": "text", "text": 'SCRIPT[{"text": "done"}]'}]}
PATIENCE = 600
_MASTER_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

_RECORDS = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
INSERT INTO records (id, kind, tenant, name, version, created_at, updated_at, created_by, due_at)
SELECT id || '-{tag}-' || n, kind, tenant, name, version, created_at, updated_at, created_by, due_at
FROM records, numbers WHERE id = '{id}'
"""
_VERSIONS = """
INSERT INTO versions (record, version, updated_at, body, ceiling)
SELECT c.num, v.version, v.updated_at, v.body, v.ceiling
FROM records o JOIN versions v ON v.record = o.num JOIN records c ON c.id LIKE o.id || '-{tag}-%'
WHERE o.id = '{id}'
"""
_STARTED = """
SELECT count(*), max(created_at), max(started_at) FROM runs
WHERE scheduled_at = {at} AND state = 'started'
"""
_WORKING = "SELECT count(*) FROM sessions WHERE active_since > 0"


class Installation:
    """A server and its database. `ask` runs a statement there."""

    def __init__(
        self,
        folder: Path,
        ask: Callable[[str], list[Any]],
        database_pid: int | None,
        **environ: str,
    ) -> None:
        self.server = LiveServer(folder, **environ)
        self.ask = ask
        self._database_pid = database_pid

    def cpu(self) -> float:
        """Seconds of processor time so far, of the server and of its database."""
        used = _cpu(self.server.pid)
        return used if self._database_pid is None else used + _cpu(self._database_pid, family=True)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        headers = HEADERS | {"x-api-key": self.server.key}
        answer = httpx2.post(self.server.url + path, json=body, headers=headers, timeout=PATIENCE)
        answer.raise_for_status()
        return answer.json()

    def make(self, expression: str) -> str:
        """A deployment with this schedule."""
        agent = self.post("/v1/agents", {"name": "a", "model": "scripted"})
        environment = self.post("/v1/environments", {"name": f"e {time.time_ns()}"})
        body = {"name": "d", "agent": agent["id"], "environment_id": environment["id"]}
        body |= {"initial_events": [GO], "schedule": schedule(expression)}
        return str(self.post("/v1/deployments", body)["id"])

    def copy(self, deployment: str, count: int, tag: object) -> None:
        """As many more like it: rows, written while the server is down."""
        self.server.stop()
        self.ask(_RECORDS.format(id=deployment, count=count, tag=tag))
        self.ask(_VERSIONS.format(id=deployment, tag=tag))
        self.server.start()


def schedule(expression: str) -> dict[str, str]:
    return {"type": "cron", "expression": expression, "timezone": "UTC"}


@contextmanager
def on_sqlite(folder: Path) -> Iterator[Installation]:
    def ask(sql: str) -> list[Any]:
        with closing(sqlite3.connect(folder / "roost.db", timeout=PATIENCE)) as db, db:
            return db.execute(sql).fetchall()

    installation = Installation(folder, ask, None)
    with installation.server:
        yield installation


@contextmanager
def on_postgres(folder: Path) -> Iterator[Installation]:
    postgres = PostgresServer()
    try:
        postgres.make()
        postgres.start()
        url = anyio.run(postgres.new)

        def ask(sql: str) -> list[Any]:
            return [tuple(row) for row in anyio.run(postgres.do, sql, url)]

        lock = (postgres.data / "postmaster.pid").read_text()
        environ = {"ROOST_DATABASE_URL": url, "ROOST_MASTER_KEY": _MASTER_KEY}
        installation = Installation(folder, ask, int(lock.split()[0]), **environ)
        with installation.server:
            yield installation
    finally:
        postgres.stop()


def idle(many: Installation, none: Installation, count: int, seconds: float) -> str:
    """What both cost while nothing is due."""
    time.sleep(min(seconds, 5))  # what a start leaves to be done
    before = many.cpu(), none.cpu()
    time.sleep(seconds)
    with_many, with_none = many.cpu() - before[0], none.cpu() - before[1]
    ratio = with_many / with_none if with_none else float("nan")
    return (
        f"idle for {seconds:.0f} s: {with_many:.2f} s of processor time with {count:,} deployments, "
        f"{with_none:.2f} s with none: {ratio:.2f}"
    )


def due(many: Installation, model: str, count: int) -> str:
    """How long it takes until so many that are due at once have started: copies of one, and that one."""
    minute = 0
    while minute < time.time():  # again, if making them has taken so long that they were missed
        minute = (int(time.time()) + 45) // 60 * 60 + 60
        expression = f"{datetime.fromtimestamp(minute, UTC):%-M %-H %-d %-m} *"
        many.post(f"/v1/deployments/{model}", {"schedule": schedule(expression)})
        many.copy(model, count - 1, minute)
    time.sleep(max(0.0, minute - time.time()))
    before, at = many.cpu(), minute * 1_000_000
    started, claimed_at, started_at = _until(
        lambda: many.ask(_STARTED.format(at=at))[0], lambda row: row[0] == count
    )
    used = many.cpu() - before
    _until(lambda: many.ask(_WORKING)[0], lambda row: row[0] == 0)
    rest, all_used = time.time() - minute, many.cpu() - before
    claimed, last = (claimed_at - at) / 1e6, (started_at - at) / 1e6
    return (
        f"{started:,} due in one minute: claimed within {claimed:.1f} s, started within {last:.1f} s "
        f"({used:.1f} s of processor time); their turns were over after {rest:.1f} s ({all_used:.1f} s)"
    )


def _until(ask: Callable[[], Any], enough: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not enough(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    return found


def _cpu(pid: int, *, family: bool = False) -> float:
    """Of a process; with its family, also of those it has started, ended or not."""
    used = time.clock_gettime(
        (~pid << 3) | 2
    )  # the clock of that process, which has no coarse ticks
    if family:
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        used += sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")
        used += sum(_cpu(child) for child in _children(pid))
    return used


def _children(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (thread / "children").read_text().split())


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--deployments", type=int, default=100_000)
    asked.add_argument("--due", type=int, default=1000)
    asked.add_argument("--seconds", type=float, default=60)
    asked.add_argument("--quick", action="store_true", help="2,000, 100 due, 10 seconds")
    given = asked.parse_args()
    if given.quick:
        given.deployments, given.due, given.seconds = 2000, 100, 10
    for name, opened in (("SQLite", on_sqlite), ("PostgreSQL", on_postgres)):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            none = stack.enter_context(opened(Path(folder) / "none"))
            many = stack.enter_context(opened(Path(folder) / "many"))
            model = many.make("0 0 1 1 *")
            many.copy(model, given.deployments - 1, "idle")
            print(f"{name}, {idle(many, none, given.deployments, given.seconds)}", flush=True)
            print(f"{name}, {due(many, model, given.due)}", flush=True)


if __name__ == "__main__":
    main()
