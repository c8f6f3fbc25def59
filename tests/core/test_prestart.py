"""Prestarted agents: who gets one, who must not, and when they go."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from tests.core.node import AGENT, TENANT, Node, node, texts, use_parts
from tests.core.test_planner import session
from tests.core.test_sandboxes import FakeEgress, FakeProvider, SandboxedHarness, sandboxes
from tests.core.test_start_limit import Slow

from roost.core.sandbox.planner import SandboxSystem
from roost.core.work.prestart import FailedStarts, Prestart, PrestartSettings
from roost.core.work.start_limit import StartLimit
from roost.domain.session import Session, Spec
from roost.errors import QuotaExceeded, SandboxFailed
from roost.ports.egress import Networking, RefusalReport
from roost.ports.notifier import Notifier
from roost.testing.bare_sandboxes import NoBelongings, NoPackages
from roost.testing.null_parts import CollectedReports, runner_parts

SPEC = Spec(agent=AGENT, environment_id="env_1", harness="in-sandbox", title="first")


class FixedNetworking(NoBelongings):
    """Sessions whose environments are in no catalog."""

    reach = Networking()

    async def networking(self, session: Session) -> Networking:
        return self.reach


@dataclass
class PrestartNode:
    node: Node
    pool: Prestart
    provider: FakeProvider
    belongings: FixedNetworking
    room: list[int]

    async def create(self, spec: Spec = SPEC, tenant: str = TENANT) -> Session:
        async with self.pool.offer(tenant, spec) as offer:
            made = await self.node.store.sessions.create(tenant, offer.session_id, spec)
            offer.accepted = True
        self.pool.made(made)
        return made

    async def ready(self, count: int = 1) -> str:
        """When so many agents wait for a session; the newest one's id."""
        with anyio.fail_after(60):
            while len(self.pool) != count:  # noqa: ASYNC110 - a count that nobody notifies of
                await anyio.sleep(0.01)
        return self.provider.plans[-1].session_id


async def until_gone(home: Path) -> None:
    with anyio.fail_after(60):
        while await anyio.Path(home).exists():  # noqa: ASYNC110 - nobody notifies of a directory
            await anyio.sleep(0.01)


@asynccontextmanager
async def prestart_node(
    data: Path, *, size: int = 1, notifier: Notifier | None = None
) -> AsyncGenerator[PrestartNode, None]:
    provider, room = FakeProvider(), [9]
    async with (
        node(data, stop_seconds=0.01, notifier=notifier) as roost,
        anyio.create_task_group() as tasks,
    ):
        store, notifier = roost.store, roost.notifier
        fixed = FixedNetworking(store.catalog)
        opens = sandboxes(data / "vault", provider, FakeEgress(), roost, belongings=fixed)
        harnesses = {"in-sandbox": SandboxedHarness(roost.harnesses["scripted"])}
        wakes = StartLimit(notifier, 9)
        pool = Prestart(
            store.log,
            store.sessions,
            notifier,
            harnesses,
            opens,
            wakes,
            PrestartSettings(size=size, seconds=60, notes=data / "pool"),
            room=lambda: room[0],
        )
        use_parts(
            roost,
            runner_parts(
                *(store, notifier, harnesses), sandboxes=opens, limit=wakes, prestart=pool
            ),
        )
        await tasks.start(pool.run)
        yield PrestartNode(roost, pool, provider, fixed, room)
        tasks.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.core.work.prestart._QUIET", 0)
    monkeypatch.setattr("roost.core.work.prestart._LOOK_AGAIN", 0.02)


async def test_the_next_session_of_the_same_kind_gets_the_agent_that_waits(tmp_path: Path):
    async with prestart_node(tmp_path) as prestarting:
        first = await prestarting.create()
        waiting = await prestarting.ready()
        assert waiting != first.id
        second = await prestarting.create(replace(SPEC, title="second", metadata={"a": "b"}))
        assert second.id == waiting
        assert len(texts(await prestarting.node.turn(second, "Hello"))) == 1
        plans = [plan for plan in prestarting.provider.plans if plan.session_id == second.id]
        assert [plan.generation for plan in plans] == [1]
        assert len(texts(await prestarting.node.turn(second, "once more"))) == 1
        plans = [plan for plan in prestarting.provider.plans if plan.session_id == second.id]
        assert [plan.generation for plan in plans] == [1, 2]


@pytest.mark.parametrize(
    ("spec", "tenant"),
    [
        (SPEC, "tenant_2"),
        (replace(SPEC, agent={**AGENT, "version": 2}), TENANT),
        (replace(SPEC, environment_id="env_2"), TENANT),
        (replace(SPEC, mount_scope="workspace+vault"), TENANT),
        (replace(SPEC, budget={"max_list_cost": {"amount": "1", "currency": "USD"}}), TENANT),
        (replace(SPEC, task_id="task_1"), TENANT),
        (replace(SPEC, agent={**AGENT, "skills": [{"skill_id": "s", "version": "v"}]}), TENANT),
        (replace(SPEC, agent={**AGENT, "model": {"id": "another"}}), TENANT),
        (replace(SPEC, agent={**AGENT, "mcp_servers": [{"name": "m", "url": "u"}]}), TENANT),
    ],
)
async def test_no_other_session_gets_it(tmp_path: Path, spec: Spec, tenant: str):
    async with prestart_node(tmp_path) as prestarting:
        await prestarting.create()
        waiting = await prestarting.ready()
        assert (await prestarting.create(spec, tenant)).id != waiting
        await until_gone(tmp_path / "vault" / ".workspaces" / waiting)
        assert await prestarting.ready() != waiting


@pytest.mark.parametrize("vaults", [{}, {"model_vault": "vlt_1"}])
async def test_a_session_with_vaults_does_not_get_it_and_leaves_it_to_others(
    tmp_path: Path, vaults: dict[str, str]
):
    async with prestart_node(tmp_path) as prestarting:
        await prestarting.create()
        waiting = await prestarting.ready()
        with_vaults = replace(SPEC, vault_ids=["vlt_1"], **vaults)
        assert (await prestarting.create(with_vaults)).id != waiting
        assert (await prestarting.create()).id == waiting


async def test_one_that_is_not_up_yet_is_left_alone(tmp_path: Path):
    async with prestart_node(tmp_path) as prestarting:
        slow = Slow(prestarting.node.dispatcher._parts.starter._harnesses["in-sandbox"]._inner)  # type: ignore[attr-defined]
        prestarting.pool._harnesses = {"in-sandbox": slow}
        await prestarting.create()
        await slow.until_opened(1)
        (starting,) = slow.opened
        assert (await prestarting.create()).id != starting
        slow.come_up(0)
        assert await prestarting.ready() == starting
        assert (await prestarting.create()).id == starting


async def test_an_environment_that_changed_ends_what_was_started_for_it(tmp_path: Path):
    async with prestart_node(tmp_path) as prestarting:
        await prestarting.create()
        waiting = await prestarting.ready()
        prestarting.belongings.reach = Networking(kind="unrestricted")
        assert (await prestarting.create()).id != waiting
        waiting = await prestarting.ready()
        second = await prestarting.create()
        assert second.id == waiting
        prestarting.belongings.reach = Networking()
        assert len(texts(await prestarting.node.turn(second, "Hello"))) == 1
        opened = [plan.session_id for plan in prestarting.provider.plans]
        assert opened.count(second.id) == 2


async def test_an_id_whose_session_was_not_made_waits_for_the_next_one(tmp_path: Path):
    async with prestart_node(tmp_path) as prestarting:
        await prestarting.create()
        waiting = await prestarting.ready()
        with pytest.raises(QuotaExceeded):
            async with prestarting.pool.offer(TENANT, SPEC) as offer:
                assert offer.session_id == waiting
                async with prestarting.pool.offer(TENANT, SPEC) as other:
                    assert other.session_id != waiting
                raise QuotaExceeded
        assert (await prestarting.create()).id == waiting


async def test_sessions_with_something_of_their_own_are_not_foreseen(tmp_path: Path):
    async with prestart_node(tmp_path) as prestarting:
        for own in (
            {"trust_level": "full"},
            {"resources": [{"type": "file"}]},
            {"vault_ids": ["vlt_1"], "model_vault": "vlt_1"},
        ):
            await prestarting.create(replace(SPEC, **own))
        await anyio.sleep(0.1)
        assert prestarting.provider.plans == []


async def test_what_nobody_wants_goes_after_a_while_and_with_it_its_directory(tmp_path: Path):
    async with prestart_node(tmp_path) as prestarting:
        await prestarting.create()
        waiting = await prestarting.ready()
        second = await prestarting.create()
        assert second.id == waiting
        unwanted = await prestarting.ready()
        prestarting.pool._seconds = 0.05
        await prestarting.provider.until_open(0)
        await until_gone(tmp_path / "vault" / ".workspaces" / unwanted)
        assert await anyio.Path(tmp_path, "vault", ".workspaces", second.id).exists()
        assert len(texts(await prestarting.node.turn(second, "Hello"))) == 1


async def test_what_cannot_be_removed_stops_no_start_and_is_tried_again(tmp_path: Path):
    note, left = tmp_path / "pool" / "sesn_x", tmp_path / "vault" / ".workspaces" / "sesn_x"
    for path in (note, left):
        path.parent.mkdir(parents=True)
        path.touch()  # a file, where a directory was to be
    async with prestart_node(tmp_path) as prestarting:
        await prestarting.create()
        await prestarting.ready()
    assert note.exists()
    left.unlink()
    async with prestart_node(tmp_path) as prestarting:
        assert not note.exists()


async def test_no_more_are_kept_than_there_is_room_for(tmp_path: Path):
    async with prestart_node(tmp_path, size=3) as prestarting:
        for _ in range(3):
            await prestarting.create()
        await prestarting.ready(3)
        prestarting.room[0] = 1
        await prestarting.provider.until_open(1)
        prestarting.room[0] = 0
        await prestarting.provider.until_open(0)


async def test_nothing_is_started_ahead_while_a_session_waits_for_its_agent(tmp_path: Path):
    async with prestart_node(tmp_path) as prestarting:
        prestarting.pool._limit.expect("somebody")
        await prestarting.create()
        await anyio.sleep(0.1)
        assert prestarting.provider.plans == []
        prestarting.pool._limit.end("somebody")
        await prestarting.ready()


async def test_what_a_sandbox_is_refused_is_told_to_the_session_that_has_it(tmp_path: Path):
    refused = RefusalReport(session_id="s", host="h", port=1, reason="host_not_allowed")
    async with prestart_node(tmp_path) as prestarting:
        await prestarting.create()
        await prestarting.ready()
        (spare,) = prestarting.pool._spares
        await spare.refused(refused)
        spare.reports = reports = CollectedReports()
        await spare.refused(refused)
        assert reports.told == [refused]


async def test_a_deleted_session_lets_go_of_its_agent(tmp_path: Path):
    async with prestart_node(tmp_path) as prestarting:
        await prestarting.create()
        await prestarting.ready()
        prestarting.room[0] = 1
        second = await prestarting.create()
        prestarting.pool.drop(second.id)
        prestarting.pool.drop(second.id)
        prestarting.room[0] = 0
        await prestarting.provider.until_open(0)


class NamedLayer(NoPackages):
    """All sessions have this layer."""

    name: str | None = "before"

    async def of(self, *_: object) -> SandboxSystem:
        return SandboxSystem(layer=self.name)

    async def named(self, *_: object) -> SandboxSystem:
        if self.name is None:
            raise SandboxFailed("the engine is gone")
        return SandboxSystem(layer=self.name)


async def test_an_agent_with_packages_that_have_changed_is_given_to_nobody(tmp_path: Path):
    async with prestart_node(tmp_path) as prestarting:
        packages = prestarting.pool._sandboxes.packages = NamedLayer()
        await prestarting.create()
        waiting = await prestarting.ready()
        assert (await prestarting.create()).id == waiting
        for name in ("after", None):
            waiting = await prestarting.ready()
            assert prestarting.provider.plans[-1].layer == packages.name
            packages.name = name
            assert (await prestarting.create()).id != waiting


async def test_no_agent_is_started_ahead_without_packages_that_failed(tmp_path: Path):
    """Its session goes on without them; but each is to try them again, and fits no agent that has none."""

    class FellBack(NamedLayer):
        async def of(self, *_: object) -> SandboxSystem:
            return SandboxSystem()

    async with prestart_node(tmp_path) as prestarting:
        pool = prestarting.pool
        pool._sandboxes.packages = FellBack()
        pool.keep([await prestarting.create()])
        with anyio.fail_after(60):
            while not pool._failed:  # noqa: ASYNC110 - nobody notifies of it
                await anyio.sleep(0.01)
        assert prestarting.provider.plans == []


async def test_an_agent_that_fails_again_and_again_is_tried_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
):
    one = session()
    other = replace(one, spec=replace(one.spec, agent=AGENT | {"name": "other"}))
    now = 0.0
    monkeypatch.setattr("roost.core.work.prestart.anyio.current_time", lambda: now)
    failed, pauses = FailedStarts(), []
    for _ in range(8):
        failed.add(one)
        began = now
        while failed.waits(one):
            now += 10
        pauses.append(now - began)
    assert pauses == [30, 60, 120, 240, 480, 960, 960, 960]
    assert not failed.waits(other)
    failed.add(other)
    failed.remove(one)
    failed.add(one)
    now += 30
    assert not failed.waits(one), "it has started in between"
    now += 9999
    failed.add(other)
    assert len(failed) == 1


async def test_an_agent_that_cannot_be_started_holds_up_no_other(tmp_path: Path):
    async with prestart_node(tmp_path, size=2) as prestarting:
        broken = replace(SPEC, agent=AGENT | {"name": "broken"})

        async def of(session: Session, *_: object) -> SandboxSystem:
            if session.spec.agent["name"] == "broken":
                tried.set()
                raise SandboxFailed("cannot be started")
            return SandboxSystem()

        tried = anyio.Event()
        prestarting.pool._sandboxes.packages.of = of  # type: ignore[method-assign]
        await prestarting.create(broken)
        with anyio.fail_after(60):
            await tried.wait()
        await prestarting.create()
        await prestarting.ready()
        assert [plan.session_id for plan in prestarting.provider.plans] == [
            prestarting.pool._spares[0].session.id
        ]
