"""Runs of tasks: cut off between any two writes, each still comes to its one end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.core.node import TENANT, Node, node

from roost.core.access.keys import Keyring
from roost.core.records.agents import Agents
from roost.core.records.environments import Environments
from roost.core.records.tasks import Tasks
from roost.core.sessions import task_runs as module
from roost.core.sessions.task_runs import TaskRuns
from roost.core.work.server_tools import ServerTools
from roost.core.write.intake import Intake
from roost.core.write.standby import StandbyRunners
from roost.domain import task
from roost.domain.ledger import Batch
from roost.domain.session import Pending, Spec
from roost.domain.task import TOOL
from roost.errors import Conflict, IdempotencyMismatch, InvalidRequest, NotFound
from roost.harnesses.scripted import ScriptedHarness
from roost.ports.catalog import Record, RecordQuery
from roost.ports.drafts import new_draft
from roost.ports.keys import Key
from roost.ports.sessions import SessionQuery
from roost.testing.null_parts import EveryModel, lifecycle_of, model_at


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
        catalog = Fragile(store.catalog, fuse, ("add", "change", "delete"))
        agents, environments = (
            Agents(store.catalog, None, EveryModel()),
            Environments(store.catalog, ["bubblewrap", "docker"]),
        )
        self.key = key
        self.board = Tasks(store.catalog, roost.notifier)
        scripted = ScriptedHarness(
            model_at("http://127.0.0.1:1", "none"), retries=0, retry_seconds=1
        )
        lifecycle = lifecycle_of(store, roost.notifier, {"scripted": scripted}, agents)
        self.agents, self.environments = agents, environments
        self.lifecycle = Fragile(lifecycle, fuse, ("create",))
        self.runs = TaskRuns(
            catalog,  # type: ignore[arg-type]
            self.board,
            self.lifecycle,  # type: ignore[arg-type]
            Keyring(store.keys),
            store.log,
            roost.notifier,
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
        yield made
        tasks.cancel_scope.cancel()


async def ended(board: Tasks, task_id: str) -> Record:
    with anyio.fail_after(60):
        while True:
            record = await board.get(TENANT, task_id)
            if record.body["runs"] and record.body["runs"][-1]["ended_at"]:
                return record
            await anyio.sleep(0.02)


async def open_runs(roost: Node) -> list[Record]:
    return await roost.store.catalog.page(RecordQuery(kind="run", tenant=""))


async def gone(roost: Node) -> None:
    with anyio.fail_after(60):
        while True:
            if not await open_runs(roost):
                return
            await anyio.sleep(0.02)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ABANDONED", 0)
    monkeypatch.setattr(module, "_LOOK_AGAIN", 0.3)
    monkeypatch.setattr(module, "_BREATHE", 0.01)


async def test_a_run_works_to_the_end_and_writes_it_to_its_task(tmp_path: Path) -> None:
    async with node(tmp_path) as roost, task_runs_setup(roost) as setup:
        task = await setup.task(
            f"SCRIPT{json.dumps([{'text': 'All done.'}])}", details="Mind the gap."
        )
        run = await setup.runs.start(setup.key, task.id, {"instructions": "Be quick."}, None)
        assert run["status"] == "running"
        record = await ended(setup.board, task.id)
        (after,) = record.body["runs"]
        assert (after["status"], after["outcome"], after["error"]) == (
            "succeeded",
            "All done.",
            None,
        )
        assert (record.body["status"], record.body["outcome"]) == ("done", "All done.")
        first = (await roost.store.log.read(run["session_id"], 0, 1))[0]
        text = first.fields["content"][0]["text"]
        assert all(part in text for part in ("Do it", "Mind the gap.", "Be quick."))
        session = await roost.store.sessions.get(TENANT, run["session_id"])
        assert TOOL in session.spec.agent["tools"]
        await gone(roost)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 7))
async def test_a_run_cut_off_at_any_write_ends_once_or_never_began(
    tmp_path: Path, at: int, when: str
) -> None:
    async with node(tmp_path) as roost:
        async with task_runs_setup(roost) as setup:
            task = await setup.task(f"SCRIPT{json.dumps([{'text': 'Once.'}])}")
        try:
            async with task_runs_setup(roost, Fuse(at, when)) as setup:
                await setup.runs.start(setup.key, task.id, {}, "key-1")
                await ended(setup.board, task.id)
                await gone(roost)
        except* Crash:
            pass
        async with task_runs_setup(roost) as setup:  # the process that comes after
            if (await setup.board.get(TENANT, task.id)).body["runs"]:
                await ended(setup.board, task.id)
            await gone(roost)
            again = await setup.runs.start(
                setup.key, task.id, {}, "key-1"
            )  # its client tries again
            record = await ended(setup.board, task.id)
            assert [run["id"] for run in record.body["runs"]] == [again["id"]]
            assert record.body["runs"][0]["outcome"] == "Once."
            await gone(roost)
        sessions = await roost.store.sessions.page(SessionQuery(tenant=TENANT))
        assert len(sessions) == 1


async def test_a_failed_run_says_why(tmp_path: Path) -> None:
    async with node(tmp_path) as roost, task_runs_setup(roost) as setup:
        wrong = json.dumps([{"error": {"status": 529, "times": 9}}])
        task = await setup.task(f"SCRIPT{wrong}")
        await setup.runs.start(setup.key, task.id, {}, None)
        record = await ended(setup.board, task.id)
        assert record.body["status"] == "failed"
        assert record.body["runs"][0]["error"]


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
        session = await roost.store.sessions.find(run["session_id"])
        await roost.until(session, "span.model_request_start")
        await roost.intake.accept(session.id, [new_draft("user.interrupt")])
        record = await ended(setup.board, task.id)
        assert record.body["runs"][0]["status"] == "cancelled"
        assert record.body["status"] == "open"
        await setup.board.delete(setup.key, task.id)


async def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    async with node(tmp_path) as roost, task_runs_setup(roost) as setup:
        task = await setup.task(agent=None)
        with pytest.raises(InvalidRequest, match="agent"):
            await setup.runs.start(setup.key, task.id, {}, None)
        with pytest.raises(NotFound):
            await setup.runs.start(setup.key, task.id, {"agent": "agent_none"}, None)
        record = await setup.board.get(TENANT, task.id)
        assert (record.body["runs"], record.body["status"]) == ([], "open")
        assert await open_runs(roost) == []


async def test_an_idempotency_key_is_for_one_request(tmp_path: Path) -> None:
    async with node(tmp_path) as roost, task_runs_setup(roost) as setup:
        task = await setup.task("Hello")
        first = await setup.runs.start(setup.key, task.id, {}, "k")
        again = await setup.runs.start(setup.key, task.id, {}, "k")
        assert again["session_id"] == first["session_id"]
        with pytest.raises(IdempotencyMismatch):
            await setup.runs.start(setup.key, task.id, {"instructions": "else"}, "k")


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
        session = await roost.store.sessions.find(run["session_id"])
        if began:
            await roost.until(session, "span.model_request_start")
        await roost.intake.accept(session.id, [new_draft("user.interrupt")])
        await roost.until(session, "session.status_idle")
        await getattr(roost.store.sessions, leave)(TENANT, session.id)
        async with task_runs_setup(roost) as setup:  # the process that comes after
            record = await ended(setup.board, task.id)
            (after,) = record.body["runs"]
            assert after["status"] == "cancelled"
            assert record.body["status"] == "open"
            await gone(roost)


def test_a_task_keeps_its_newest_runs():
    body: dict[str, Any] = {"runs": []}
    for number in range(80):
        body = task.begun(body, {"id": str(number), "status": "succeeded"})
    assert [run["id"] for run in body["runs"]] == [str(number) for number in range(30, 80)]
