"""Tasks with a schedule, over HTTP; the scheduler is driven by hand, with a clock that is moved."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.api.api_server import error_of
from tests.api.dying import Killed
from tests.api.test_deployment_tokens import Dying
from tests.api.test_deployments import HOURLY, Deployed, begun, deployed

AT = "/roost/v1/tasks"


async def created(it: Deployed, **fields: Any) -> Any:
    parts = {"agent": it.agent["id"], "environment_id": it.environment["id"]}
    return await it.roost.post(AT, {"title": "Water the plants", **parts, **fields})


async def runs_of(it: Deployed, task: Any, **params: Any) -> list[Any]:
    """Oldest first."""
    return (await it.roost.get(f"{AT}/{task['id']}/runs", **params))["data"][::-1]


async def told(it: Deployed, task: Any) -> list[str]:
    return [
        run["status"] if run["skipped"] is None else f"skipped: {run['skipped']['reason']}"
        for run in await runs_of(it, task)
    ]


async def rested(it: Deployed, session_id: str) -> None:
    """As if its agent had done what it was told."""
    await it.roost.finish(await begun(it, session_id))


async def test_each_time_has_one_run_that_comes_to_its_end(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await created(it, schedule=HOURLY)
        assert (made["overlap"], made["paused_reason"]) == ("skip", None)
        assert made["schedule"]["upcoming_runs_at"][0][11:16] == "13:00"
        it.to(13, 0, 2)
        for _ in range(2):
            await it.tick()
        [run] = await runs_of(it, made)
        assert (run["status"], run["scheduled_at"][11:16]) == ("running", "13:00")
        session = await it.roost.get(f"/v1/sessions/{run['session_id']}")
        assert session["task_id"] == made["id"]
        shown = await it.roost.get(f"{AT}/{made['id']}")
        assert (shown["status"], shown["schedule"]["last_run_at"][11:16]) == ("running", "13:00")
        it.to(14, 0, 2)  # it still works
        await it.tick()
        await rested(it, run["session_id"])
        for hour, minute in ((14, 1), (15, 0)):
            it.to(hour, minute, 2)
            await it.tick()
        assert await told(it, made) == ["succeeded", "skipped: overlap", "running"]
        again = error_of(await it.roost.client.post(f"{AT}/{made['id']}/runs", json={}), 409)
        assert "runs already" in again["message"]
        pages = await it.roost.get(f"{AT}/{made['id']}/runs", limit=2)
        rest = await it.roost.get(f"{AT}/{made['id']}/runs", limit=2, page=pages["next_page"])
        assert (len(pages["data"]), len(rest["data"]), rest["next_page"]) == (2, 1, None)


async def test_paused_changed_and_deleted_a_task_runs_no_more(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await created(it, schedule=HOURLY)
        at = f"{AT}/{made['id']}"
        paused = await it.roost.post(f"{at}/pause")
        assert paused["paused_reason"] == {"type": "manual"}
        it.to(13, 0, 2)
        await it.tick()
        assert await runs_of(it, made) == []
        assert (await it.roost.post(f"{at}/unpause"))["paused_reason"] is None
        it.to(14, 0, 2)
        await it.tick()
        [run] = await runs_of(it, made)
        assert run["scheduled_at"][11:16] == "14:00"
        await rested(it, run["session_id"])
        it.to(14, 1)
        await it.tick()
        unscheduled = await it.roost.post(at, {"schedule": None})
        assert unscheduled["schedule"] is None
        it.to(15, 0, 2)
        await it.tick()
        assert await told(it, made) == ["succeeded"]
        await it.roost.post(at, {"schedule": HOURLY, "missed_runs": {"policy": "all"}})
        await it.roost.client.delete(at)
        it.to(16, 0, 2)
        await it.tick()
        assert len((await it.roost.get("/v1/sessions"))["data"]) == 1


async def test_an_error_that_would_come_again_pauses_the_task(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await created(it, schedule=HOURLY)
        await it.roost.post(f"/v1/agents/{it.agent['id']}/archive")
        it.to(13, 0, 2)
        await it.tick()
        [run] = await runs_of(it, made)
        assert (run["status"], run["session_id"]) == ("failed", None)
        assert "archived" in run["error"]
        shown = await it.roost.get(f"{AT}/{made['id']}")
        assert shown["status"] == "failed"
        error = {"type": "agent_archived_error"}
        assert shown["paused_reason"] == {"type": "error", "error": error}
        it.to(14, 0, 2)
        await it.tick()
        assert len(await runs_of(it, made)) == 1


WRONG: tuple[Any, ...] = (
    1,
    "x",
    True,
    [],
    [HOURLY],
    {},
    {"type": "cron"},
    {"type": "cron", "expression": "0 * * * *"},
    {"type": "cron", "timezone": "UTC"},
    {"expression": "0 * * * *", "timezone": "UTC"},
    *({**HOURLY, "type": each} for each in (None, "at", 1, [], {})),
    *(
        {**HOURLY, "expression": each}
        for each in (None, "", 5, [], {}, "* * * *", "61 * * * *", "0 0 31 2 *", "@daily", "\0")
    ),
    *(
        {**HOURLY, "timezone": each}
        for each in (None, "", 5, [], {}, "Mars/Olympus", "../UTC", "x" * 65, "\0", "posixrules")
    ),
    {**HOURLY, "jitter": 5},
)
POLICIES: tuple[dict[str, Any], ...] = (
    *({"overlap": each} for each in (None, 1, "", "sometimes", [], {})),
    *({"missed_runs": each} for each in (None, 1, "all", [])),
    *({"missed_runs": {"policy": each}} for each in (None, 1, "some", [], {})),
    *({"missed_runs": {"window_seconds": each}} for each in (None, 59, 604801, "60", 60.5, [])),
    {"missed_runs": {"other": 1}},
)


async def test_a_wrong_schedule_is_refused_by_name_in_tasks_and_deployments(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await created(it)
        deployment = await it.create()
        parts = {"agent": it.agent["id"], "environment_id": it.environment["id"]}
        usual = {"title": "t", **parts}
        for wrong in [*({"schedule": each} for each in WRONG), *POLICIES]:
            [field] = wrong
            for path, body in (
                (AT, {**usual, **wrong}),
                (f"{AT}/{made['id']}", wrong),
                ("/v1/deployments", it.params(**wrong)),
                (f"/v1/deployments/{deployment['id']}", wrong),
            ):
                answer = await it.roost.client.post(path, json=body)
                assert error_of(answer, 400)["message"].startswith(field), (path, wrong)
        assert (await it.roost.get(f"{AT}/{made['id']}"))["schedule"] is None
        lacking = await it.roost.client.post(AT, json={"title": "t", "schedule": HOURLY})
        assert error_of(lacking, 400)["message"].startswith("agent: ")
        await it.roost.post(f"{AT}/{made['id']}", {"schedule": HOURLY})
        bare = await it.roost.client.post(f"{AT}/{made['id']}", json={"environment_id": None})
        assert error_of(bare, 400)["message"].startswith("environment_id: ")


async def test_only_its_owner_sets_a_schedule_and_pauses(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await created(it, schedule=HOURLY)
        async with await it.roost.user() as user:
            for what in ("pause", "unpause"):
                error_of(await user.post(f"{AT}/{made['id']}/{what}"), 404)


async def test_killed_between_any_two_writes_a_time_has_one_run_and_one_session(tmp_path: Path):
    async with deployed(tmp_path) as it:
        for last in range(1, 30):
            if await killed_at(it, last):
                break
        assert 3 < last < 29


async def killed_at(it: Deployed, last: int) -> bool:
    """A scheduled run whose server dies instead of this write, and that is finished later."""
    made = await created(it, schedule=HOURLY, missed_runs={"policy": "all"})
    it.to(12 + last, 0, 1)
    store = it.roost.store
    with pytest.MonkeyPatch.context() as patched:
        writes = Dying(patched, last)
        writes.count(store.catalog, "add", "change", "delete")
        writes.count(store.sessions, "create")
        writes.count(store.runs, "claim", "take", "settle", "amend")
        with suppress(Killed, BaseExceptionGroup):
            await it.tick()
            for run in await runs_of(it, made):
                await rested(it, run["session_id"])
                it.to(12 + last, 0, 30)
                await it.tick()
    it.to(12 + last, 2)  # whoever had taken it has had its minute
    await it.tick()
    [run] = await runs_of(it, made)
    if run["status"] == "running":
        await rested(it, run["session_id"])
        it.to(12 + last, 4)
        await it.tick()
    assert await told(it, made) == ["succeeded"]
    sessions = (await it.roost.get("/v1/sessions", limit=100))["data"]
    assert [each["id"] for each in sessions if each["task_id"] == made["id"]] == [run["session_id"]]
    assert (await it.roost.get(f"{AT}/{made['id']}"))["status"] == "done"
    await it.roost.post(f"{AT}/{made['id']}", {"schedule": None})
    return writes.left > 0
