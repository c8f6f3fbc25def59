"""The contract of runs: subclass, give the fixture `store`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from roost.domain.events import Micros
from roost.errors import InvalidRequest, NotFound
from roost.ports import runs as ports
from roost.ports.catalog import Record
from roost.ports.runs import NOT_YET, Plan, Planned, Run, RunQuery
from roost.ports.sessions import SessionQuery
from roost.testing.stage import TENANT, Stage
from roost.testing.store_contract import StoreContract

_DUE: Micros = 1_000
_NOW: Micros = 1_500
_NEXT: Micros = 2_000
_LATER: Micros = 3_000


def _run(slot: str, **fields: Any) -> Run:
    usual: dict[str, Any] = {"tenant": TENANT, "kind": "deployment", "owner": "depl_1"}
    usual |= {"created_by": "key_1", "state": "open", "look_at": _NOW, "body": {"n": slot}}
    return Run(**({**usual, "id": f"drun_{slot}", "slot": slot} | fields))


def _planning(*runs: Run, changed: Sequence[Run] = (), due_at: Micros | None = _NEXT) -> Plan:
    def plan(record: Record, unfinished: Sequence[Run]) -> Planned:
        return Planned(due_at, runs, changed)

    return plan


async def _owner(stage: Stage, owner: str = "depl_1", due_at: Micros | None = _DUE) -> None:
    catalog = stage.store.catalog
    body = {"name": owner}
    await catalog.add("deployment", TENANT, owner, body, unique_name=False, due_at=due_at)


async def _claim(stage: Stage, plan: Plan, now: Micros = _NOW) -> list[Run]:
    return await stage.store.runs.claim("deployment", TENANT, "depl_1", now, plan)


async def _all(stage: Stage, **fields: Any) -> list[Run]:
    query = RunQuery(kind="deployment", tenant=TENANT, limit=1000)
    return await stage.store.runs.page(replace(query, **fields))


def _slots(runs: Sequence[Run]) -> list[str]:
    return [run.slot for run in runs]


class RunsContract(StoreContract):
    """What schedules rely on, whichever database is behind them."""

    async def test_a_claim_makes_the_run_and_moves_the_record_on(self, stage: Stage) -> None:
        await _owner(stage)
        given = _run("at:1000", scheduled_at=1000)
        [made] = await _claim(stage, _planning(given))
        assert made.created_at > 0
        assert replace(made, created_at=0) == given
        assert await stage.store.runs.get("deployment", TENANT, given.id) == made
        record = await stage.store.catalog.get("deployment", TENANT, "depl_1")
        assert (record.due_at, record.version) == (_NEXT, 1)

    async def test_of_many_who_claim_at_once_one_gets_the_time(self, stage: Stage) -> None:
        await _owner(stage)
        made: list[Run] = []

        async def claim(number: int) -> None:
            made.extend(await _claim(stage, _planning(_run("at:1000", id=f"drun_{number}"))))

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(claim, number)
        assert len(made) == 1
        assert await _all(stage) == made

    async def test_a_time_that_comes_again_makes_no_second_run(self, stage: Stage) -> None:
        await _owner(stage)
        first = await _claim(stage, _planning(_run("at:1000"), due_at=_DUE))
        again = [_run("at:1000", id="drun_other"), _run("at:1001")]
        assert _slots(await _claim(stage, _planning(*again))) == ["at:1001"]
        assert (await _all(stage))[-1:] == first

    async def test_what_is_not_due_is_not_claimed(self, stage: Stage) -> None:
        def never(record: Record, unfinished: Sequence[Run]) -> Planned:
            raise AssertionError

        assert await _claim(stage, never) == []
        await _owner(stage)
        assert await _claim(stage, never, now=_DUE - 1) == []
        catalog = stage.store.catalog
        await catalog.change(
            "deployment", TENANT, "depl_1", lambda record: record.body, due_at=None
        )
        assert await _claim(stage, never) == []
        await catalog.change(
            "deployment", TENANT, "depl_1", lambda record: record.body, due_at=_DUE
        )
        await catalog.archive("deployment", TENANT, "depl_1")
        assert await _claim(stage, never) == []

    async def test_a_plan_that_is_refused_leaves_everything_as_it_was(self, stage: Stage) -> None:
        def refused(record: Record, unfinished: Sequence[Run]) -> Planned:
            raise InvalidRequest

        await _owner(stage)
        with pytest.raises(InvalidRequest):
            await _claim(stage, refused)
        assert _slots(await _claim(stage, _planning(_run("a")))) == ["a"]

    async def test_a_plan_is_told_of_the_runs_that_are_not_over(self, stage: Stage) -> None:
        await _owner(stage)
        await _owner(stage, "depl_2")
        told: list[list[str]] = []

        def plan(record: Record, unfinished: Sequence[Run]) -> Planned:
            told.append(_slots(unfinished))
            return Planned(_NEXT)

        runs = stage.store.runs
        await runs.begin(_run("open"))
        await runs.begin(_run("over", look_at=0, state="started"))
        await runs.begin(_run("waits", look_at=NOT_YET, state="queued"))
        await runs.begin(_run("other", owner="depl_2"))
        await _claim(stage, plan)
        assert told == [["open", "waits"]]

    async def test_a_run_that_waits_is_dropped_by_the_claim_of_a_newer_one(
        self, stage: Stage
    ) -> None:
        await _owner(stage)
        waits = await stage.store.runs.begin(_run("a", look_at=NOT_YET, state="queued"))
        dropped = replace(waits, state="skipped", look_at=0, body={"reason": "replaced"})
        newer = _run("b", look_at=NOT_YET, state="queued")
        await _claim(stage, _planning(newer, changed=[dropped]))
        assert [(run.slot, run.state) for run in await _all(stage)] == [
            ("b", "queued"),
            ("a", "skipped"),
        ]

    async def test_a_run_that_was_begun_is_found_under_its_slot(self, stage: Stage) -> None:
        await _owner(stage)
        runs = stage.store.runs
        first = await runs.begin(_run("key:a"))
        assert await runs.begin(_run("key:a", id="drun_other", body={})) == first
        other = await runs.begin(_run("key:a", id="drun_2", owner="depl_2"))
        assert other.id == "drun_2"

    async def test_each_run_is_taken_by_one_and_again_when_its_time_is_up(
        self, stage: Stage
    ) -> None:
        runs = stage.store.runs
        assert await runs.least_look() is None
        for number in (3, 1, 2):
            await runs.begin(_run(f"{number}", look_at=number))
        await runs.begin(_run("over", look_at=0))
        await runs.begin(_run("waits", look_at=NOT_YET))
        assert await runs.least_look() == 1
        assert sorted(_slots(await runs.take(3, 10, limit=2))) == ["1", "2"]
        assert _slots(await runs.take(3, 10, limit=9)) == ["3"]
        assert await runs.take(9, 20, limit=9) == []
        taken: list[Run] = []

        async def take() -> None:
            taken.extend(await runs.take(10, 20, limit=9))

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(take)
        assert sorted(_slots(taken)) == ["1", "2", "3"]
        assert {run.look_at for run in taken} == {20}

    async def test_what_came_of_a_run_is_written_once(self, stage: Stage) -> None:
        await _owner(stage)
        runs = stage.store.runs
        run = await runs.begin(_run("a"))
        started = replace(run, state="started", session_id="sesn_1", started_at=5, look_at=_LATER)
        assert await runs.settle(started, "open") == started
        failed = replace(run, state="failed", look_at=0)
        assert await runs.settle(failed, "open", change=lambda record: {"name": "no"}) is None
        assert await runs.get("deployment", TENANT, run.id) == started
        record = await stage.store.catalog.get("deployment", TENANT, "depl_1")
        assert (record.body, record.due_at) == ({"name": "depl_1"}, _DUE)
        ended = replace(started, look_at=0, ended_at=9)
        assert await runs.settle(ended, "started") == ended
        assert await runs.settle(started, "started") is None

    async def test_an_error_pauses_or_archives_the_record_in_the_same_commit(
        self, stage: Stage
    ) -> None:
        await _owner(stage)
        runs, catalog = stage.store.runs, stage.store.catalog
        for slot in ("a", "b"):
            run = await runs.begin(_run(slot))
            failed = replace(run, state="failed", look_at=0, ended_at=9)
            archive = slot == "b"
            await runs.settle(
                failed,
                "open",
                change=lambda record: {**record.body, "paused": 1},
                pauses=not archive,
                archive=archive,
            )
            record = await catalog.get("deployment", TENANT, "depl_1")
            assert record.body == {"name": "depl_1", "paused": 1}
            assert record.due_at is None
            assert (record.archived_at is not None) == archive

    async def test_the_run_that_waits_is_opened_when_the_last_one_ends(self, stage: Stage) -> None:
        await _owner(stage)
        runs = stage.store.runs
        working = [await runs.begin(_run(slot, state="started")) for slot in ("a", "b")]
        waits = await runs.begin(_run("c", look_at=NOT_YET, state="queued"))
        for n, run in enumerate(working):
            assert (await runs.get("deployment", TENANT, waits.id)).state == "queued"
            await runs.settle(replace(run, look_at=0, ended_at=100 + n), "started")
        opened = await runs.get("deployment", TENANT, waits.id)
        assert (opened.state, opened.look_at) == ("open", 101)

    async def test_a_listing_shows_the_runs_that_are_asked_for(self, stage: Stage) -> None:
        runs = stage.store.runs
        await runs.begin(_run("a", scheduled_at=1, state="started"))
        await runs.begin(_run("b", state="failed", created_by="key_2"))
        await runs.begin(_run("c", owner="depl_2"))
        await runs.begin(_run("d", kind="task"))
        await runs.begin(_run("e", tenant="tenant_2"))
        assert _slots(await _all(stage)) == ["c", "b", "a"]
        assert _slots(await _all(stage, owner="depl_1")) == ["b", "a"]
        assert _slots(await _all(stage, created_by="key_2")) == ["b"]
        assert _slots(await _all(stage, states=["failed", "started"])) == ["b", "a"]
        assert _slots(await _all(stage, scheduled=True)) == ["a"]
        assert _slots(await _all(stage, scheduled=False)) == ["c", "b"]
        assert _slots(await _all(stage, limit=1)) == ["c"]
        assert _slots(await _all(stage, after="drun_c")) == ["b", "a"]
        [a] = await _all(stage, scheduled=True)
        assert _slots(await _all(stage, until=a.created_at)) == ["a"]
        assert _slots(await _all(stage, since=a.created_at + 1)) == ["c", "b"]
        with pytest.raises(InvalidRequest):
            await _all(stage, after="drun_e")
        for kind, tenant in (("task", TENANT), ("deployment", "tenant_2")):
            with pytest.raises(NotFound):
                await runs.get(kind, tenant, "drun_a")

    async def test_the_last_scheduled_start_of_each_owner_is_known(self, stage: Stage) -> None:
        runs = stage.store.runs
        await runs.begin(_run("a", scheduled_at=1, started_at=10))
        await runs.begin(_run("b", scheduled_at=2, started_at=20))
        await runs.begin(_run("c", scheduled_at=3, state="skipped"))
        await runs.begin(_run("d", started_at=40))
        await runs.begin(_run("e", owner="depl_2", started_at=50))
        assert await runs.last_started(["depl_1", "depl_2"]) == {"depl_1": 20}

    async def test_an_owner_keeps_its_newest_runs_and_those_that_are_not_over(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ports, "MOST_RUNS", 2)
        await _owner(stage)
        runs = stage.store.runs
        await runs.begin(_run("open"))
        for slot in "abc":
            await runs.begin(_run(slot, look_at=0, state="started"))
        assert _slots(await _all(stage)) == ["c", "b", "open"]
        await _claim(stage, _planning(_run("d")))
        assert _slots(await _all(stage)) == ["d", "c", "open"]

    async def test_sessions_are_listed_by_the_deployment_that_made_them(self, stage: Stage) -> None:
        made = await stage.session(deployment_id="depl_1")
        await stage.session()
        await stage.store.runs.begin(_run("a", session_id=made))
        query = SessionQuery(tenant=TENANT, deployment_id="depl_1")
        assert [session.id for session in await stage.store.sessions.page(query)] == [made]
        assert (await stage.look(made)).spec.deployment_id == "depl_1"
        assert await stage.store.sessions.page(replace(query, deployment_id="depl_2")) == []

    async def test_a_record_is_changed_and_gets_runs_in_one_commit(self, stage: Stage) -> None:
        await _owner(stage)
        runs, catalog = stage.store.runs, stage.store.catalog
        seen: list[list[str]] = []

        async def amended(body: dict[str, Any], *made: Run) -> list[Run]:
            def amend(
                record: Record, unfinished: Sequence[Run]
            ) -> tuple[dict[str, Any], Sequence[Run]]:
                seen.append(_slots(unfinished))
                return {**record.body, **body}, made

            return await runs.amend("deployment", TENANT, "depl_1", amend)

        async def body() -> dict[str, Any]:
            return (await catalog.get("deployment", TENANT, "depl_1")).body

        assert _slots(await amended({"n": 1}, _run("a"), _run("b", created_at=7))) == ["a", "b"]
        assert await body() == {"name": "depl_1", "n": 1}
        assert (await runs.get("deployment", TENANT, "drun_b")).created_at == 7
        assert await amended({"n": 2}, _run("a")) == []
        assert await amended({"n": 2}, _run("other", id="drun_a")) == []
        assert await body() == {"name": "depl_1", "n": 1}
        assert await amended({"n": 3}) == []
        assert (await body())["n"] == 3
        assert seen == [[], ["a", "b"], ["a", "b"], ["a", "b"]]
        assert (await catalog.get("deployment", TENANT, "depl_1")).due_at == _DUE

        def refused(record: Record, unfinished: Sequence[Run]) -> Any:
            raise InvalidRequest

        with pytest.raises(InvalidRequest):
            await runs.amend("deployment", TENANT, "depl_1", refused)
        with pytest.raises(NotFound):
            await runs.amend("deployment", TENANT, "depl_none", refused)

    async def test_a_change_without_a_pause_leaves_the_record_due(self, stage: Stage) -> None:
        await _owner(stage)
        run = await stage.store.runs.begin(_run("a"))
        started = replace(run, state="started", look_at=0)
        await stage.store.runs.settle(started, "open", change=lambda record: {"name": "other"})
        record = await stage.store.catalog.get("deployment", TENANT, "depl_1")
        assert (record.body, record.due_at) == ({"name": "other"}, _DUE)

    async def test_a_task_keeps_fewer_runs_and_takes_them_with_it(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ports, "MOST_TASK_RUNS", 2)
        catalog, runs = stage.store.catalog, stage.store.runs
        await catalog.add("task", TENANT, "task_1", {}, unique_name=False)
        for slot in "abcd":
            await runs.begin(_run(slot, kind="task", owner="task_1", look_at=0))
        assert _slots(await _all(stage, kind="task")) == ["d", "c"]
        await catalog.delete("task", TENANT, "task_1")
        assert await _all(stage, kind="task") == []
