"""Deployments and their runs, over HTTP; the scheduler is driven by hand, with a clock that is moved."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anthropic.types import beta
from tests.api.api_server import (
    TENANT,
    ApiServer,
    api_server,
    client_of,
    error_of,
    message,
    official,
)

from roost.core.files.resources import Resources
from roost.core.sandbox.budgets import Budgets
from roost.core.sessions.lifecycle import Lifecycle
from roost.core.sessions.scheduler import Scheduler
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease
from roost.domain.webhook import EVENT_TYPES
from roost.errors import SandboxUnavailable, Unavailable

HOURLY = {"type": "cron", "expression": "0 * * * *", "timezone": "UTC"}
DAILY = {"type": "cron", "expression": "30 2 * * *", "timezone": "Europe/Berlin"}
REPOSITORY = {"type": "github_repository", "url": "https://github.com/a/b"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Deployed:
    """A server with an agent and an environment, and a clock that stands at ten past twelve, far in the future."""

    def __init__(self, roost: ApiServer, agent: Any, environment: Any) -> None:
        self.roost = roost
        self.agent = agent
        self.environment = environment
        self.scheduler = roost.deps.services[Scheduler]
        self.to(12, 10)

    def to(self, hour: int, minute: int = 0, second: float = 0) -> None:
        """Move the clock, also backwards."""
        at = datetime(2031, 5, 5, tzinfo=UTC) + timedelta(
            hours=hour, minutes=minute, seconds=second
        )
        self.roost.ahead += (at - EPOCH) // timedelta(microseconds=1) - self.scheduler._clock()

    async def tick(self) -> None:
        """What the scheduler does when it looks."""
        await self.scheduler.claim_all()
        await self.scheduler.advance_all()

    async def create(self, **fields: Any) -> Any:
        made = await self.roost.post("/v1/deployments", self.params(**fields))
        official(beta.BetaManagedAgentsDeployment, made)
        return made

    def params(self, **fields: Any) -> dict[str, Any]:
        usual = {
            "name": "nightly",
            "agent": self.agent["id"],
            "environment_id": self.environment["id"],
            "initial_events": [message("go")],
        }
        return {**usual, **fields}

    async def look(self, deployment: Any) -> Any:
        found = await self.roost.get(f"/v1/deployments/{deployment['id']}")
        official(beta.BetaManagedAgentsDeployment, found)
        return found

    async def do(self, deployment: Any, what: str, **more: Any) -> Any:
        return await self.roost.post(f"/v1/deployments/{deployment['id']}/{what}", **more)

    async def runs(self, **params: Any) -> list[Any]:
        """As the official API shows them, newest first."""
        found = (await self.roost.get("/v1/deployment_runs", **params))["data"]
        for run in found:
            official(beta.BetaManagedAgentsDeploymentRun, run)
            assert (run["session_id"] is None) != (run["error"] is None)
        return found

    async def all_runs(self, deployment: Any, **params: Any) -> list[Any]:
        """Also those that wait, and those that were skipped; oldest first."""
        path = f"/roost/v1/deployments/{deployment['id']}/runs"
        return (await self.roost.get(path, **params))["data"][::-1]

    async def told(self, deployment: Any) -> list[str]:
        """The state of each of its runs, with the reason if it was skipped."""
        return [
            run["state"] if run["skipped"] is None else f"skipped: {run['skipped']['reason']}"
            for run in await self.all_runs(deployment)
        ]


@asynccontextmanager
async def deployed(data: Path, **settings: Any) -> AsyncGenerator[Deployed, None]:
    async with api_server(data, **{"schedule_jitter": 0, **settings}) as roost:
        yield Deployed(roost, await roost.agent(), await roost.environment())


def scheduled(runs: list[Any]) -> list[str]:
    """The hours and minutes that runs were scheduled for."""
    return [run["trigger_context"]["scheduled_at"][11:16] for run in runs]


async def test_a_deployment_is_made_shown_changed_and_listed(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await it.create(schedule=DAILY, metadata={"a": "b"}, description="d")
        assert made["agent"] == {"type": "agent", "id": it.agent["id"], "version": 1}
        assert made["initial_events"] == [message("go")]
        assert (made["status"], made["paused_reason"], made["archived_at"]) == (
            "active",
            None,
            None,
        )
        upcoming = made["schedule"]["upcoming_runs_at"]
        assert [each[:16] for each in upcoming[:2]] == ["2031-05-06T00:30", "2031-05-07T00:30"]
        assert len(upcoming) == 5
        assert made["schedule"]["last_run_at"] is None
        assert (made["overlap"], made["missed_runs"]["policy"]) == ("allow", "skip")
        await it.roost.post(f"/v1/agents/{it.agent['id']}", {"name": "v2"})
        path = f"/v1/deployments/{made['id']}"
        changed = await it.roost.post(path, {"name": "other", "metadata": {"a": None, "c": "d"}})
        assert (changed["name"], changed["metadata"], changed["agent"]) == (
            "other",
            {"c": "d"},
            made["agent"],
        )
        changed = await it.roost.post(
            path, {"agent": it.agent["id"], "schedule": None, "description": ""}
        )
        assert (changed["agent"]["version"], changed["schedule"], changed["description"]) == (
            2,
            None,
            None,
        )
        other = await it.create(agent={"type": "agent", "id": it.agent["id"], "version": 1})
        assert other["agent"]["version"] == 1
        await it.do(other, "pause")

        async def listed(**params: Any) -> list[str]:
            return [
                each["id"] for each in (await it.roost.get("/v1/deployments", **params))["data"]
            ]

        assert await listed() == [other["id"], made["id"]]
        assert await listed(status="active") == [made["id"]]
        assert await listed(status="paused") == [other["id"]]
        assert await listed(agent_id="agent_none") == []
        page = await it.roost.get("/v1/deployments", limit=1)
        assert await listed(limit=1, page=page["next_page"]) == [made["id"]]
        await it.do(made, "archive")
        assert await listed() == [other["id"]]
        assert await listed(include_archived=True) == [other["id"], made["id"]]
        both = await it.roost.client.get(
            "/v1/deployments", params={"status": "paused", "include_archived": True}
        )
        error_of(both, 400)


async def test_what_a_session_would_be_refused_for_is_refused_at_once(tmp_path: Path):
    async with deployed(tmp_path) as it:
        archived = await it.roost.agent()
        await it.roost.post(f"/v1/agents/{archived['id']}/archive")

        async def refused(status: int, starts: str, **fields: Any) -> None:
            answer = await it.roost.client.post("/v1/deployments", json=it.params(**fields))
            assert error_of(answer, status)["message"].startswith(starts), answer.text

        def cron(expression: str, timezone: str = "UTC") -> dict[str, Any]:
            return {"type": "cron", "expression": expression, "timezone": timezone}

        await refused(400, "schedule.expression: ", schedule=cron("@daily"))
        await refused(400, "schedule.expression: '61'", schedule=cron("61 * * * *"))
        await refused(400, "schedule.expression: there is no such day", schedule=cron("0 0 31 2 *"))
        await refused(400, "schedule.timezone: ", schedule=cron("0 0 * * *", "Mars/Olympus"))
        await refused(400, "initial_events: ", initial_events=[])
        outcome = {
            "type": "user.define_outcome",
            "description": "d",
            "rubric": {"type": "text", "content": "c"},
        }
        await refused(400, "initial_events.0.type: ", initial_events=[outcome])
        await refused(404, "agent agent_none", agent="agent_none")
        await refused(400, "agent: ", agent=archived["id"])
        await refused(404, "environment env_none", environment_id="env_none")
        await refused(404, "vault vlt_none", vault_ids=["vlt_none"])
        await refused(400, "overlap: ", overlap="sometimes")
        await refused(400, "missed_runs.window_seconds: ", missed_runs={"window_seconds": 1})
        await refused(400, "trust_level", trust_level="full")
        spoiled = {**REPOSITORY, "authorization_token": "two words"}
        await refused(400, "resources.0.authorization_token: ", resources=[spoiled])
        assert (await it.roost.get("/v1/deployments"))["data"] == []


async def test_a_run_by_hand_makes_a_session_also_while_paused(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await it.create(metadata={"a": "b"})
        await it.do(made, "pause")
        run = await it.do(made, "run")
        official(beta.BetaManagedAgentsDeploymentRun, run)
        assert run["trigger_context"] == {"type": "manual"}
        session = await it.roost.get(f"/v1/sessions/{run['session_id']}")
        assert (session["deployment_id"], session["title"]) == (made["id"], "nightly")
        assert (session["status"], session["metadata"]) == ("running", {"a": "b"})
        events = (await it.roost.get(f"/v1/sessions/{session['id']}/events"))["data"]
        assert events[0]["content"] == message("go")["content"]
        assert await it.roost.get(f"/v1/deployment_runs/{run['id']}") == run
        await it.roost.session()
        listed = (await it.roost.get("/v1/sessions", deployment_id=made["id"]))["data"]
        assert [each["id"] for each in listed] == [session["id"]]
        again = [await it.do(made, "run", headers={"idempotency-key": "k"}) for _ in range(2)]
        assert again[0] == again[1] != run
        assert [each["id"] for each in await it.runs(trigger_type="manual")] == [
            again[0]["id"],
            run["id"],
        ]
        assert await it.runs(trigger_type="schedule") == []
        await it.do(made, "archive")
        error_of(await it.roost.client.post(f"/v1/deployments/{made['id']}/run"), 400)


async def test_a_run_has_all_that_its_deployment_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Resources, "check", lambda *given: None)  # here are no sandboxes,
    monkeypatch.setattr(Budgets, "_check_price", lambda *given: None)  # and no prices
    async with deployed(tmp_path) as it:
        sent = {"file": ("a.txt", b"a", "text/plain")}
        upload = (await it.roost.post("/v1/files", files=sent))["id"]
        vault = (await it.roost.post("/v1/vaults", {"display_name": "v"}))["id"]
        budget = {"type": "limit", "max_list_cost": {"amount": "100", "currency": "USD"}}
        given = {"type": "file", "file_id": upload, "mount_path": "/in/a.txt"}
        made = await it.create(budget=budget, resources=[given], vault_ids=[vault], harness="able")
        run = await it.do(made, "run")
        session = await it.roost.get(f"/v1/sessions/{run['session_id']}")
        assert (session["budget"], session["vault_ids"]) == (budget, [vault])
        [resource] = session["resources"]
        assert resource["mount_path"] == "/mnt/session/uploads/in/a.txt"


async def test_each_time_has_one_run_and_pausing_makes_up_for_nothing(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await it.create(schedule=HOURLY)
        await it.tick()
        assert await it.runs() == []
        it.to(13, 0, 2)
        for _ in range(2):
            await it.tick()
        [run] = await it.runs(deployment_id=made["id"], has_error=False)
        assert scheduled([run]) == ["13:00"]
        shown = await it.look(made)
        assert shown["schedule"]["last_run_at"][11:18] == "13:00:0"
        assert shown["updated_at"] == made["updated_at"]
        paused = await it.do(made, "pause")
        assert (paused["status"], paused["paused_reason"]) == ("paused", {"type": "manual"})
        it.to(15, 0, 2)
        await it.tick()
        assert paused["schedule"]["upcoming_runs_at"][0][11:16] == "14:00"
        assert (await it.do(made, "unpause"))["status"] == "active"
        await it.tick()
        it.to(16, 0, 2)
        await it.tick()
        assert scheduled(await it.all_runs(made)) == ["13:00", "16:00"]
        archived = await it.do(made, "archive")
        assert archived["schedule"]["upcoming_runs_at"] == []
        it.to(17, 0, 2)
        await it.tick()
        assert len(await it.runs()) == 2
        for what in ("pause", "unpause"):
            error_of(await it.roost.client.post(f"/v1/deployments/{made['id']}/{what}"), 400)


async def test_a_clock_that_is_set_back_runs_nothing_twice(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await it.create(schedule=HOURLY)
        for hour in (13, 14, 13, 14, 15):
            it.to(hour, 0, 2)
            await it.tick()
        assert scheduled(await it.all_runs(made)) == ["13:00", "14:00", "15:00"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_after_a_clock_that_was_far_ahead_schedules_are_planned_anew(
    tmp_path: Path, restarted: bool
):
    async with deployed(tmp_path) as it:
        daily = {**HOURLY, "expression": "0 14 * * *"}
        made, other = [await it.create(schedule=daily) for _ in range(2)]
        paused = await it.create(schedule=daily)
        await it.do(paused, "pause")
        await it.tick()
        it.to(24 * 30, 10)
        await it.tick()  # planned for a day that is a month away
        it.to(13, 0)
        if restarted:
            it.scheduler._latest = None
        await it.roost.post(f"/v1/deployments/{other['id']}", {"name": "changed meanwhile"})

        async def away(*asked: Any, **more: Any) -> None:
            raise Unavailable("the database is away")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(it.roost.store.catalog, "every", away)
            with pytest.raises(Unavailable):
                await it.scheduler.claim_all()
        await it.tick()
        it.to(14, 0, 2)
        for _ in range(2):
            await it.tick()
        for each in (made, other):
            assert [
                run["trigger_context"]["scheduled_at"][:16]
                for run in await it.runs(deployment_id=each["id"])
            ] == ["2031-05-05T14:00"]
        assert await it.all_runs(paused) == []


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("skip", ["skipped: missed"]),
        ("latest", ["skipped: missed", "started"]),
        ("all", ["started"] * 3),
    ],
)
async def test_times_that_nobody_was_there_for_go_by_the_policy(
    tmp_path: Path, policy: str, expected: list[str]
):
    async with deployed(tmp_path) as it:
        made = await it.create(schedule=HOURLY, missed_runs={"policy": policy})
        it.to(15, 30)
        await it.tick()
        assert await it.told(made) == expected
        if policy == "skip":
            [run] = await it.all_runs(made, state="skipped")
            assert run["skipped"]["count"] == 3
            assert run["skipped"]["since"][11:16] == "13:00"
            assert await it.runs() == []
            error_of(await it.roost.client.get(f"/v1/deployment_runs/{run['id']}"), 404)
        it.to(16, 0, 1)
        await it.tick()
        assert (await it.told(made))[-1] == "started"


async def test_killed_between_any_two_steps_the_time_still_has_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with deployed(tmp_path) as it:
        made = await it.create(schedule=HOURLY)
        it.to(13, 0, 1)
        # Claimed, and nobody was left to make the session.
        await it.scheduler.claim_all()
        assert await it.told(made) == ["open"]
        assert await it.runs() == []
        # The session is there, and nobody was left to say so.
        runs = it.roost.store.runs

        async def killed(*args: Any, **fields: Any) -> None:
            raise Unavailable("killed here")

        with monkeypatch.context() as patched:
            patched.setattr(runs, "settle", killed)
            await it.scheduler.advance_all()
        assert await it.told(made) == ["open"]
        assert len((await it.roost.get("/v1/sessions"))["data"]) == 1
        await it.tick()
        assert await it.told(made) == ["open"]  # whoever has taken it may still be at it
        it.to(13, 2)
        await it.tick()
        [session] = (await it.roost.get("/v1/sessions"))["data"]
        [run] = await it.runs()
        assert run["session_id"] == session["id"]


async def test_times_that_wait_for_others_to_be_claimed_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As on a machine that is so busy that claiming takes minutes."""
    async with deployed(tmp_path) as it:
        made = [await it.create(schedule=HOURLY) for _ in range(6)]
        it.to(13, 0, 1)
        claim = it.roost.store.runs.claim

        async def slow(*args: Any) -> Any:
            it.roost.ahead += 120_000_000
            return await claim(*args)

        monkeypatch.setattr(it.roost.store.runs, "claim", slow)
        await it.tick()
        assert [await it.told(each) for each in made] == [["started"]] * 6


async def test_many_nodes_that_look_at_once_make_one_session(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = [await it.create(schedule=HOURLY) for _ in range(3)]
        it.to(13, 0, 1)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(it.tick)
        for each in made:
            assert await it.told(each) == ["started"]
        assert len((await it.roost.get("/v1/sessions"))["data"]) == 3


async def test_what_is_away_is_waited_for_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with deployed(tmp_path) as it:
        made = await it.create(schedule=HOURLY)

        async def away(*args: Any) -> None:
            raise SandboxUnavailable("no sandbox")

        monkeypatch.setattr(it.roost.deps.services[Lifecycle], "create", away)
        run = await it.do(made, "run")
        assert run["error"] == {"type": "unknown_error", "message": "no sandbox"}
        it.to(13, 0, 1)
        await it.tick()
        assert (await it.told(made))[-1] == "open"
        for minute in range(2, 70, 2):
            it.to(13, minute)
            await it.scheduler.advance_all()
        assert (await it.told(made))[:2] == ["failed", "failed"]
        assert (await it.look(made))["status"] == "active"


async def test_each_error_has_its_type_and_those_that_stay_pause_the_deployment(tmp_path: Path):
    async with deployed(tmp_path) as it:
        roost = it.roost
        environment = await roost.environment("other")
        vaults = [await roost.post("/v1/vaults", {"display_name": "v"}) for _ in range(2)]
        skill = await roost.skill()
        skilled = await roost.agent(
            skills=[{"type": "custom", "skill_id": skill["id"]}],
            tools=[{"type": "agent_toolset_20260401"}],
            metadata={"roost.harness": "able"},
        )
        gone = await roost.agent()
        made = {
            "environment_archived_error": await it.create(
                schedule=HOURLY, environment_id=environment["id"]
            ),
            "vault_archived_error": await it.create(
                schedule=HOURLY, harness="able", vault_ids=[vaults[0]["id"]]
            ),
            "vault_not_found_error": await it.create(
                schedule=HOURLY, harness="able", vault_ids=[vaults[1]["id"]]
            ),
            "skill_not_found_error": await it.create(schedule=HOURLY, agent=skilled["id"]),
            "agent_archived_error": await it.create(schedule=HOURLY, agent=gone["id"]),
        }
        await roost.post(f"/v1/environments/{environment['id']}/archive")
        await roost.post(f"/v1/vaults/{vaults[0]['id']}/archive")
        assert (await roost.client.delete(f"/v1/vaults/{vaults[1]['id']}")).status_code == 200
        assert (await roost.client.delete(f"/v1/skills/{skill['id']}")).status_code == 200
        await roost.post(f"/v1/agents/{gone['id']}/archive")
        by_hand = await it.do(made["vault_archived_error"], "run")
        assert by_hand["error"]["type"] == "vault_archived_error"
        assert (await it.look(made["vault_archived_error"]))["status"] == "active"
        it.to(13, 0, 1)
        await it.tick()
        for kind, each in made.items():
            [run] = await it.runs(deployment_id=each["id"], trigger_type="schedule", has_error=True)
            assert run["error"]["type"] == kind
            assert run["error"]["message"]
            now = await it.look(each)
            if kind == "agent_archived_error":
                assert now["archived_at"] is not None
            else:
                assert now["paused_reason"] == {"type": "error", "error": {"type": kind}}
        assert (await roost.get("/v1/sessions"))["data"] == []
        it.to(14, 0, 1)
        await it.tick()
        assert len(await it.runs(trigger_type="schedule")) == len(made)


async def test_a_quota_fails_the_run_and_the_next_one_is_tried(tmp_path: Path):
    async with deployed(tmp_path, max_sessions=1) as it:
        made = await it.create(schedule=HOURLY)
        session = await it.roost.session()
        it.to(13, 0, 1)
        await it.tick()
        [run] = await it.runs()
        assert run["error"]["type"] == "session_rate_limited_error"
        assert (await it.look(made))["status"] == "active"
        await it.roost.post(f"/v1/sessions/{session['id']}/archive")
        it.to(14, 0, 1)
        await it.tick()
        assert await it.told(made) == ["failed", "started"]


async def begun(it: Deployed, session_id: str) -> Lease:
    """As if a runner had taken up what waits in a session, and its agent was at work."""
    log = it.roost.store.log
    await log.renew("node_1", 60)
    [lease] = [each for each in await log.claim("node_1", 9) if each.session_id == session_id]
    await log.append(lease, Batch(takes=await log.inputs(session_id), turn=TurnMark.BEGIN))
    return lease


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
async def test_while_the_last_run_works_the_next_one_goes_by_the_policy(
    tmp_path: Path, overlap: str
):
    async with deployed(tmp_path) as it:
        made = await it.create(schedule=HOURLY, overlap=overlap)
        it.to(13, 0, 1)
        await it.tick()
        [first] = await it.runs()
        lease = await begun(it, first["session_id"])
        for hour in (14, 15):
            it.to(hour, 0, 1)
            await it.tick()
        expected = {
            "skip": ["started", "skipped: overlap", "skipped: overlap"],
            "queue": ["started", "queued", "skipped: queue_full"],
            "replace": ["started", "skipped: replaced", "queued"],
        }
        assert await it.told(made) == expected[overlap]
        events = (await it.roost.get(f"/v1/sessions/{first['session_id']}/events"))["data"]
        interrupts = [each for each in events if each["type"] == "user.interrupt"]
        assert bool(interrupts) == (overlap == "replace")
        await it.roost.finish(lease)
        it.to(15, 0, 20)
        await it.tick()
        started = (await it.told(made)).count("started")
        assert started == (1 if overlap == "skip" else 2)
        assert (await it.all_runs(made))[0]["ended_at"] is not None
        it.to(16, 0, 1)
        await it.tick()
        assert (await it.told(made))[-1] in ("started", "queued")


async def test_a_schedule_acts_for_whoever_made_it_and_no_further_than_that_key_goes(
    tmp_path: Path,
):
    async with deployed(tmp_path) as it:
        key, secret = await it.roost.keyring.create(tenant=TENANT, name="u")
        user = await it.roost.user()
        async with client_of(it.roost.app, secret) as owner, user:
            made = (await owner.post("/v1/deployments", json=it.params(schedule=HOURLY))).json()
            path = f"/v1/deployments/{made['id']}"
            assert made["created_by"] == key.id
            error_of(await user.get(path), 404)
            error_of(await user.post(f"{path}/run"), 404)
            it.to(13, 0, 1)
            await it.tick()
            [run] = (await owner.get("/v1/deployment_runs")).json()["data"]
            assert (await user.get("/v1/deployment_runs")).json()["data"] == []
            error_of(await user.get(f"/v1/deployment_runs/{run['id']}"), 404)
            session = (await owner.get(f"/v1/sessions/{run['session_id']}")).json()
            assert session["created_by"] == key.id
            # Another key for the same owner takes over, and without any there is nobody to act for.
            other, _ = await it.roost.keyring.create(tenant=TENANT, name="u2", owner=key.id)
            await it.roost.keyring.revoke(key.id)
            it.to(14, 0, 1)
            await it.tick()
            await it.roost.keyring.revoke(other.id)
            it.to(15, 0, 1)
            await it.tick()
            assert await it.told(made) == ["started", "started", "failed"]
            now = await it.look(made)
            assert now["paused_reason"] == {"type": "error", "error": {"type": "unknown_error"}}


async def test_jitter_delays_the_start_and_not_the_time(tmp_path: Path):
    async with deployed(tmp_path, schedule_jitter=30) as it:
        made = [await it.create(schedule=HOURLY) for _ in range(4)]
        it.to(13, 0, 0.001)
        await it.tick()
        states = [(await it.told(each))[0] for each in made]
        assert "open" in states
        it.to(13, 0, 31)
        await it.tick()
        runs = await it.runs()
        assert scheduled(runs) == ["13:00"] * 4


async def test_webhooks_are_told_of_deployments_and_of_their_scheduled_runs(tmp_path: Path):
    async with deployed(tmp_path) as it:
        types = [type for type in EVENT_TYPES if type.startswith("deployment")]
        asked = {"url": "https://hooks.example/in", "enabled_events": types}
        hook = await it.roost.post("/roost/v1/webhooks", asked)
        made = await it.create(schedule=HOURLY)
        await it.roost.post(f"/v1/deployments/{made['id']}", {"name": "other"})
        for what in ("pause", "pause", "unpause", "run"):
            await it.do(made, what)
        it.to(13, 0, 1)
        await it.tick()
        await it.roost.post(f"/v1/agents/{it.agent['id']}/archive")
        it.to(15, 0, 1)
        await it.tick()
        sent = await it.roost.get(f"/roost/v1/webhooks/{hook['id']}/deliveries")
        told = [(each["event_type"], each["subject_id"]) for each in reversed(sent["data"])]
        first, _, second = [run["id"] for run in await it.all_runs(made)][1:]
        assert told == [
            ("deployment.created", made["id"]),
            ("deployment.updated", made["id"]),
            ("deployment.paused", made["id"]),
            ("deployment.unpaused", made["id"]),
            ("deployment_run.started", first),
            ("deployment_run.succeeded", first),
            ("deployment_run.started", second),
            ("deployment_run.failed", second),
            ("deployment.archived", made["id"]),
        ]
