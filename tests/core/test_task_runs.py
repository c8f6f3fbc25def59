"""Runs of tasks: cut off between any two writes, each still comes to its one end."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.core.node import TENANT, Node, node

from roost.core.access.keys import Keyring
from roost.core.records.agents import Agents
from roost.core.records.environments import Environments
from roost.core.records.tasks import Tasks
from roost.core.records.timetable import Timetable
from roost.core.sessions import scheduler
from roost.core.sessions import task_runs as module
from roost.core.sessions.run_faults import RunFaults
from roost.core.sessions.scheduled_runs import RunParts
from roost.core.sessions.scheduler import Scheduler
from roost.core.sessions.task_runs import TaskRuns
from roost.core.work.server_tools import ServerTools
from roost.core.write.intake import Intake
from roost.core.write.standby import StandbyRunners
from roost.domain.environment import EnvironmentChoices
from roost.domain.ledger import Batch
from roost.domain.session import Pending, Spec
from roost.domain.task import TOOL
from roost.errors import Conflict, IdempotencyMismatch, InvalidRequest, NotFound
from roost.harnesses.scripted import ScriptedHarness
from roost.ports.catalog import Record, RecordQuery
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.runs import Run, RunQuery
from roost.ports.sessions import SessionQuery
from roost.testing.bare_sandboxes import NoPackages
from roost.testing.null_parts import EveryModel, lifecycle_of, model_at


def now() -> int:
    return time.time_ns() // 1000


NO_FAULTS: RunFaults = None  # type: ignore[assignment] # nothing here runs by a schedule


class Crash(Exception):
    """The process is gone."""


class Fragile:
    """Something whose n-th write is the last, `before` or `after` it is done."""

    def __init__(self, inner: Any, fuse: Fuse, writes: tuple[str, ...]) -> None:
        self._inner = inner
        self._fuse = fuse
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._writes:
            return found

        async def burning(*args: Any, **more: Any) -> Any:
            self._fuse.burn("before")
            result = await found(*args, **more)
            self._fuse.burn("after")
            return result

        return burning


class Fuse:
    def __init__(self, at: int = -1, when: str = "before") -> None:
        self.at, self.when, self.writes = at, when, 0

    def burn(self, when: str) -> None:
        if when == "before":
            self.writes += 1
        if when == self.when and self.writes == self.at:
            raise Crash


class TaskRunsSetup:
    """All that runs need, over a node."""

    def __init__(self, roost: Node, key: Key, fuse: Fuse) -> None:
        store = roost.store
        runs = Fragile(store.runs, fuse, ("amend", "settle", "take"))
        agents, environments = (
            Agents(store.catalog, None, EveryModel()),
            Environments(
                store.catalog, EnvironmentChoices(["bubblewrap", "docker"], ["node"]), NoPackages()
            ),
        )
        self.key = key
        self.board = Tasks(store.catalog, roost.notifier, Timetable(store.runs, now))
        scripted = ScriptedHarness(
            model_at("http://127.0.0.1:1", "none"), retries=0, retry_seconds=1
        )
        lifecycle = lifecycle_of(store, roost.notifier, {"scripted": scripted}, agents)
        self.agents, self.environments = agents, environments
        self.lifecycle = Fragile(lifecycle, fuse, ("create",))
        parts = RunParts(
            runs=runs,  # type: ignore[arg-type]
            lifecycle=self.lifecycle,  # type: ignore[arg-type]
            keyring=Keyring(store.keys),
            faults=NO_FAULTS,
            intake=roost.intake,
            clock=now,
            jitter=0,
        )
        self.runs = TaskRuns(store.catalog, self.board, parts, store.log, roost.notifier)
        self.scheduler = Scheduler(
            store.catalog,
            runs,  # type: ignore[arg-type]
            roost.notifier,
            [self.runs],
            now,
        )

    async def task(self, description: str = "", **fields: Any) -> Record:
        agent = await self.agents.create(self.key, {"name": "a", "model": "m"})
        place = await self.environments.create(self.key, {"name": f"e {agent.id}"})
        given = {"agent": agent.id, "environment_id": place.id, **fields}
        return await self.board.create(
            self.key, {"title": "Do it", "description": description, **given}
        )


@asynccontextmanager
async def task_runs_setup(
    roost: Node, fuse: Fuse | None = None
) -> AsyncGenerator[TaskRunsSetup, None]:
    """With somebody who sees runs to their end."""
    keyring = Keyring(roost.store.keys)
    keys = await roost.store.keys.all()
    key = keys[0] if keys else (await keyring.create(tenant=TENANT, name="me"))[0]
    async with anyio.create_task_group() as tasks:
        made = TaskRunsSetup(roost, key, fuse or Fuse())
        await tasks.start(made.runs.run)
        await tasks.start(made.scheduler.run)
        yield made
        tasks.cancel_scope.cancel()


async def runs_of(roost: Node, task_id: str, **fields: Any) -> list[Run]:
    query = RunQuery(kind="task", tenant=TENANT, owner=task_id, limit=100)
    return await roost.store.runs.page(replace(query, **fields))


async def ended(roost: Node, task_id: str) -> tuple[Run, Record]:
    """Its newest run, when that is over, and the task."""
    with anyio.fail_after(120):
        while True:
            runs = await runs_of(roost, task_id)
            if runs and runs[0].ended_at:
                return runs[0], await roost.store.catalog.get("task", TENANT, task_id)
            await anyio.sleep(0.02)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_AGAIN", 0.3)
    monkeypatch.setattr(module, "_BREATHE", 0.01)
    monkeypatch.setattr(TaskRuns, "follow_again", 300_000)
    monkeypatch.setattr(module, "LEASE_SECONDS", 1)  # whoever comes after finds an open run soon
    monkeypatch.setattr(scheduler, "LEASE_SECONDS", 1)


async def test_a_run_works_to_the_end_and_writes_it_to_its_task(tmp_path: Path) -> None:
    async with node(tmp_path) as roost, task_runs_setup(roost) as setup:
        task = await setup.task(
            f"SCRIPT{json.dumps([{'text': 'All done.'}])}", details="Mind the gap."
        )
        run = await setup.runs.start(setup.key, task.id, {"instructions": "Be quick."}, None)
        assert run.session_id is not None
        after, record = await ended(roost, task.id)
        assert (after.body["status"], after.body["outcome"]) == ("succeeded", "All done.")
        assert (record.body["status"], record.body["outcome"]) == ("done", "All done.")
        first = (await roost.store.log.read(run.session_id, 0, 1))[0]
        text = first.fields["content"][0]["text"]
        assert all(part in text for part in ("Do it", "Mind the gap.", "Be quick."))
        session = await roost.store.sessions.get(TENANT, run.session_id)
        assert TOOL in session.spec.agent["tools"]
        assert len(record.body["runs"]) == 0


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 6))
async def test_a_run_cut_off_at_any_write_ends_once_or_never_began(
    tmp_path: Path, at: int, when: str
) -> None:
    async with node(tmp_path) as roost:
        async with task_runs_setup(roost) as setup:
            task = await setup.task(f"SCRIPT{json.dumps([{'text': 'Once.'}])}")
        with suppress(BaseExceptionGroup):
            async with task_runs_setup(roost, Fuse(at, when)) as setup:
                await setup.runs.start(setup.key, task.id, {}, "key-1")
                await ended(roost, task.id)
        async with task_runs_setup(roost) as setup:  # the process that comes after
            if await runs_of(roost, task.id):
                await ended(roost, task.id)
            again = await setup.runs.start(
                setup.key, task.id, {}, "key-1"
            )  # its client tries again
            run, record = await ended(roost, task.id)
            assert [each.id for each in await runs_of(roost, task.id)] == [again.id]
            assert (run.body["outcome"], record.body["status"]) == ("Once.", "done")
        sessions = await roost.store.sessions.page(SessionQuery(tenant=TENANT))
        assert len(sessions) == 1


async def test_a_failed_run_says_why(tmp_path: Path) -> None:
    async with node(tmp_path) as roost, task_runs_setup(roost) as setup:
        wrong = json.dumps([{"error": {"status": 529, "times": 9}}])
        task = await setup.task(f"SCRIPT{wrong}")
        await setup.runs.start(setup.key, task.id, {}, None)
        run, record = await ended(roost, task.id)
        assert record.body["status"] == "failed"
        assert run.body["said"]


async def test_an_interrupted_run_is_cancelled(tmp_path: Path) -> None:
    async with node(tmp_path) as roost, task_runs_setup(roost) as setup:
        slow = json.dumps([{"text": "word " * 200, "chunk_delay": 0.05}])
        task = await setup.task(f"SCRIPT{slow}")
        run = await setup.runs.start(setup.key, task.id, {}, None)
        with pytest.raises(Conflict):
            await setup.runs.start(setup.key, task.id, {}, None)
        with pytest.raises(Conflict):
            await setup.board.delete(setup.key, task.id)
        with pytest.raises(Conflict):
            await setup.board.update(setup.key, task.id, {"status": "done"})
        session = await roost.store.sessions.find(run.session_id or "")
        await roost.until(session, "span.model_request_start")
        await roost.intake.accept(session.id, [new_draft("user.interrupt")])
        after, record = await ended(roost, task.id)
        assert (after.body["status"], record.body["status"]) == ("cancelled", "open")
        await setup.board.delete(setup.key, task.id)
        assert await runs_of(roost, task.id) == []


async def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    async with node(tmp_path) as roost, task_runs_setup(roost) as setup:
        task = await setup.task(agent=None)
        with pytest.raises(InvalidRequest, match="agent"):
            await setup.runs.start(setup.key, task.id, {}, None)
        with pytest.raises(NotFound):
            await setup.runs.start(setup.key, task.id, {"agent": "agent_none"}, None)
        record = await setup.board.get(TENANT, task.id)
        assert (await runs_of(roost, task.id), record.body["status"]) == ([], "open")


async def test_an_idempotency_key_is_for_one_request(tmp_path: Path) -> None:
    async with node(tmp_path) as roost, task_runs_setup(roost) as setup:
        task = await setup.task("Hello")
        first = await setup.runs.start(setup.key, task.id, {}, "k")
        again = await setup.runs.start(setup.key, task.id, {}, "k")
        assert again.session_id == first.session_id
        with pytest.raises(IdempotencyMismatch):
            await setup.runs.start(setup.key, task.id, {"instructions": "else"}, "k")


def old_body(body: dict[str, Any], *runs: dict[str, Any]) -> dict[str, Any]:
    """As the version before wrote it."""
    new = ("schedule", "missed_runs", "overlap", "paused_reason", "key_id")
    return {**{name: body[name] for name in body if name not in new}, "runs": list(runs)}


@pytest.mark.parametrize("where", ["task", "session", "noted"])
async def test_runs_in_the_body_of_an_old_task_become_rows_and_come_to_their_end(
    tmp_path: Path, where: str
) -> None:
    async with node(tmp_path) as roost, task_runs_setup(roost) as setup:
        catalog = roost.store.catalog
        made = await setup.task(f"SCRIPT{json.dumps([{'text': 'Once.'}])}")
        over = {"id": "run_1", "session_id": "sesn_x", "status": "failed", "outcome": "no"}
        over |= {"error": "It broke.", "created_at": 5, "ended_at": 9, "params": {}}
        over["key_id"] = setup.key.id
        opened = {**over, "id": "run_2", "session_id": None, "status": "starting", "outcome": None}
        opened |= {"error": None, "ended_at": None}
        body = old_body({**made.body, "status": "running"}, over, opened)
        await catalog.change("task", TENANT, made.id, lambda record: body)
        noted = {"tenant": TENANT, "task_id": made.id}
        if where == "noted":
            await catalog.add("run", "", "run_2", noted, unique_name=False)
        elif where == "task":
            query = RunQuery(kind="task", tenant=TENANT, owner=made.id)
            assert len(await setup.runs.page(setup.key, made.id, query)) == 2
        else:
            assert (await setup.runs.seen(setup.key, made.id, "run_1")).body["said"] == "It broke."
        run, record = await ended(roost, made.id)
        assert (run.id, run.body["outcome"]) == ("run_2", "Once.")
        assert (record.body["runs"], record.body["status"]) == ([], "done")
        [_, first] = await runs_of(roost, made.id)
        assert (first.created_at, first.ended_at, first.look_at) == (5, 9, 0)
        with anyio.fail_after(60):
            while True:
                if not await catalog.page(RecordQuery(kind="run", tenant="")):
                    break
                await anyio.sleep(0.02)


async def test_a_call_to_the_server_counts_once_though_its_answer_was_lost(tmp_path: Path) -> None:
    async with node(tmp_path, working=False) as roost, task_runs_setup(roost) as setup:
        task = await setup.task()
        spec = Spec(agent={"tools": [TOOL]}, environment_id="env_1", task_id=task.id)
        said = new_draft("user.message", content=[])
        session = await roost.store.sessions.create(TENANT, "sesn_1", spec, [said])
        await roost.store.log.renew("node_1", 60)
        [lease] = await roost.store.log.claim("node_1", 1)
        call = new_draft("agent.custom_tool_use", name=TOOL["name"], input={"title": "New"})
        blocks = [Pending(call.id, "custom_tool")]
        await roost.store.log.append(lease, Batch(drafts=[call], blocks=blocks))
        intake = Intake(roost.store.log, roost.notifier, StandbyRunners(), max_queued=9)
        waiting = await roost.store.sessions.find(session.id)
        for when in ("before", "after"):
            fuse = Fuse(1, when)
            fragile: Any = Fragile(intake, fuse, ("accept",))
            with pytest.raises(Crash):
                await ServerTools(roost.store.log, fragile, setup.board).carry_out(waiting)
            await setup.board.update(setup.key, task.id, {"title": "Edited since"})
        assert await ServerTools(roost.store.log, intake, setup.board).carry_out(waiting)
        record = await setup.board.get(TENANT, task.id)
        assert record.body["title"] == "Edited since"  # and not what the call said, once more
        entries = await roost.store.log.read(session.id, 0, 100)
        answers = [e.fields for e in entries if e.type == "user.custom_tool_result"]
        assert [answer["task"]["title"] for answer in answers] == ["New"] or len(answers) == 1
        rested = await roost.store.sessions.find(session.id)
        assert not rested.state.pending
        assert not await ServerTools(roost.store.log, intake, setup.board).carry_out(rested)


@pytest.mark.parametrize("given", [{}, {"title": ""}, {"status": "done"}, {"title": 5}, {"x": "y"}])
async def test_a_call_that_is_wrong_changes_nothing_and_says_so(tmp_path: Path, given: Any) -> None:
    async with node(tmp_path, working=False) as roost, task_runs_setup(roost) as setup:
        task = await setup.task()
        spec = Spec(agent={"tools": [TOOL]}, environment_id="env_1", task_id=task.id)
        await roost.store.sessions.create(TENANT, "sesn_1", spec, [new_draft("user.message")])
        await roost.store.log.renew("node_1", 60)
        [lease] = await roost.store.log.claim("node_1", 1)
        call = new_draft("agent.custom_tool_use", name=TOOL["name"], input=given)
        blocks = [Pending(call.id, "custom_tool")]
        await roost.store.log.append(lease, Batch(drafts=[call], blocks=blocks))
        session = await roost.store.sessions.find("sesn_1")
        assert await ServerTools(roost.store.log, roost.intake, setup.board).carry_out(session)
        assert (await setup.board.get(TENANT, task.id)).version == 1
        answer = (await roost.store.log.read("sesn_1", 0, 100))[-1].fields
        assert answer["is_error"]
        assert "title" in answer["content"][0]["text"]


@pytest.mark.parametrize("leave", ["delete", "archive"])
@pytest.mark.parametrize("began", [True, False])
async def test_a_run_whose_session_goes_after_an_interrupt_is_cancelled(
    tmp_path: Path, leave: str, began: bool
) -> None:
    """Nobody looks in between: the end is read when the session is gone, or archived."""
    async with node(tmp_path, working=began) as roost:
        async with task_runs_setup(roost) as setup:
            slow = json.dumps([{"text": "word " * 200, "chunk_delay": 0.05}])
            task = await setup.task(f"SCRIPT{slow}")
            run = await setup.runs.start(setup.key, task.id, {}, None)
        session = await roost.store.sessions.find(run.session_id or "")
        if began:
            await roost.until(session, "span.model_request_start")
        await roost.intake.accept(session.id, [new_draft("user.interrupt")])
        await roost.until(session, "session.status_idle")
        await getattr(roost.store.sessions, leave)(TENANT, session.id)
        async with task_runs_setup(roost) as setup:  # the process that comes after
            after, record = await ended(roost, task.id)
            assert (after.body["status"], record.body["status"]) == ("cancelled", "open")
