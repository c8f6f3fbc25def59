"""Agents started ahead, when those who ask for one are cancelled, fail or are left in doubt at any wait.

After each history: nobody else's agent was given away, none twice, no two places were open for one session,
and no place is open that nobody knows of.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from msgspec.structs import replace
from tests.core import test_prestart
from tests.core.node import TENANT, texts
from tests.core.test_prestart import SPEC, PrestartNode, at_once, prestart_node  # noqa: F401 - a fixture
from tests.core.test_sandboxes import FakeProvider, FakeSandbox
from tests.striking import WAYS, End, Way, cancelled

from roost.core.work.prestart import PrestartedAgent
from roost.domain.session import Lease, Session, Spec
from roost.errors import QuotaExceeded, Unavailable
from roost.ids import mint
from roost.ports.sandbox_provider import Plan
from roost.testing.null_parts import CollectedReports

OTHER = "tenant_2"
_MOST_WAITS = 100


class Watchful(FakeProvider):
    """Notices a session with two sandboxes; closes one as slowly as a real provider."""

    def __init__(self) -> None:
        super().__init__()
        self.sandboxes_open: list[str] = []
        self.twice: list[str] = []

    @asynccontextmanager
    async def open(self, plan: Plan) -> AsyncGenerator[FakeSandbox, None]:
        self.twice += [plan.session_id] if plan.session_id in self.sandboxes_open else []
        self.sandboxes_open.append(plan.session_id)
        try:
            async with super().open(plan) as room:
                yield room
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)
            self.sandboxes_open.remove(plan.session_id)


class History:
    """A pool, and all that was made with it."""

    def __init__(self, prestarting: PrestartNode, provider: Watchful, like: Session) -> None:
        self.prestarting = prestarting
        self.like = like
        self.started: dict[str, str] = {}  # for which tenant an agent was
        self.pool = prestarting.pool
        self.provider = provider
        self.offered: list[str] = []
        self.count = 0

    async def create(self, spec: Spec = SPEC, tenant: str = TENANT) -> Session:
        """As `core.sessions.lifecycle` does."""
        async with self.pool.offer(tenant, spec) as offer:
            self._check_offer(offer.session_id, tenant)
            made = await self.prestarting.node.store.sessions.create(tenant, offer.session_id, spec)
            offer.accepted = True
        self.pool.made(made)
        return made

    def _check_offer(self, session_id: str, tenant: str) -> None:
        assert session_id not in self.offered, "it was given to somebody before"
        self.offered.append(session_id)
        plans = [plan for plan in self.provider.plans if plan.session_id == session_id]
        started = self.started.get(session_id)
        assert bool(plans) == (started is not None)
        assert started is None or started == tenant, "another tenant's agent"

    async def check(self) -> None:
        """Every sandbox that is open belongs to an agent that the pool knows; soon, as some are being left."""
        self.count += 1
        assert self.provider.twice == []
        with anyio.fail_after(60):
            while not self._is_settled():  # noqa: ASYNC110 - nobody notifies of it
                await anyio.sleep(0.01)

    def _is_settled(self) -> bool:
        pool = self.pool
        ours = [spare.session.id for spare in (*pool._spares, *pool._given.values())]
        assert len(set(ours)) == len(ours), "both free and given away"
        return set(self.provider.sandboxes_open) <= set(ours)

    async def ready(self) -> None:
        """An agent waits for a session like those of `TENANT`."""
        with anyio.fail_after(60):
            while not any(
                spare.conversation and spare.session.tenant == TENANT for spare in self.pool._spares
            ):
                for given in list(self.pool._given)[:-5]:
                    self.pool.drop(given)  # there is room for nine, and many never work
                self.pool._recent.clear()
                self.pool.made(self.like)
                await anyio.sleep(0.02)


@asynccontextmanager
async def history(data: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[History, None]:
    provider = Watchful()
    monkeypatch.setattr(test_prestart, "FakeProvider", lambda: provider)
    async with prestart_node(data) as prestarting:
        like = await prestarting.node.store.sessions.create(TENANT, mint("sesn"), SPEC)
        past = History(prestarting, provider, like)
        begin = PrestartedAgent.__init__

        def begun(spare: PrestartedAgent, like: Session) -> None:
            past.started[like.id] = like.tenant
            begin(spare, like)

        monkeypatch.setattr(PrestartedAgent, "__init__", begun)
        yield past


async def at_every_wait(
    past: History, work: Callable[[], Coroutine[Any, Any, Any]], way: Way
) -> list[End]:
    """Each time with an agent that waits to be given away."""
    ends = []
    for at in range(1, _MOST_WAITS):
        await past.ready()
        ends.append(await cancelled(work(), at, way))
        await past.check()
        if not ends[-1].struck:
            print(f"{past.count} histories")
            return ends
    raise AssertionError("it never ends")


@pytest.mark.parametrize("way", WAYS)
async def test_whoever_gives_up_making_a_session_leaves_no_agent_to_two_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
):
    async with history(tmp_path, monkeypatch) as past:
        ends = await at_every_wait(past, past.create, way)
        assert ends[-1].value is not None
        for _ in range(2):
            await past.ready()
            made = await past.create()
            assert len(texts(await past.prestarting.node.turn(made, "Hello"))) == 1
        await past.check()


async def test_a_runner_that_is_cancelled_as_it_takes_an_agent_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with history(tmp_path, monkeypatch) as past:
        pool, made = past.pool, past.like

        async def work() -> None:
            async with pool.taken(Lease(made.id, "n", 1), made, CollectedReports()) as found:
                assert found is None or made.id in past.provider.sandboxes_open
                await checkpoint()
            assert made.id not in past.provider.sandboxes_open

        for at in range(1, _MOST_WAITS):
            await past.ready()
            made = await past.create()
            end = await cancelled(work(), at, "scope")
            assert made.id not in past.provider.sandboxes_open
            assert made.id not in pool._given
            await past.check()
            if not end.struck:
                break
        print(f"{past.count} histories")


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
async def test_a_session_whose_agent_is_let_go_just_then_gets_a_sandbox_after_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: int
):
    async with history(tmp_path, monkeypatch) as past:
        await past.ready()
        made = await past.create()
        assert made.id in past.provider.sandboxes_open
        said = await past.prestarting.node.say(made, "Hello")
        for _ in range(lag):
            await checkpoint()
        past.pool.drop(made.id)
        entries = await past.prestarting.node.until(made, "session.status_idle", said - 1)
        assert len(texts(entries)) == 1
        await past.check()


@pytest.mark.parametrize("committed", [True, False])
async def test_an_agent_whose_session_may_have_been_made_is_offered_to_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: bool
):
    async with history(tmp_path, monkeypatch) as past:
        await past.ready()
        with pytest.raises(Unavailable):
            async with past.pool.offer(TENANT, SPEC) as offer:
                if committed:
                    await past.prestarting.node.store.sessions.create(
                        TENANT, offer.session_id, SPEC
                    )
                raise Unavailable("whether this was kept is not known")
        assert offer.session_id in past.started
        async with past.pool.offer(TENANT, SPEC) as other:
            assert other.session_id != offer.session_id
        past.pool._seconds = 0.01
        await past.check()
        home = anyio.Path(tmp_path, "vault", ".workspaces", offer.session_id)
        with anyio.fail_after(60):
            while (  # noqa: ASYNC110 - nobody notifies of a directory
                offer.session_id in past.provider.sandboxes_open or await home.exists() != committed
            ):
                await anyio.sleep(0.01)


async def test_an_agent_whose_session_was_refused_waits_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with history(tmp_path, monkeypatch) as past:
        await past.ready()
        with pytest.raises(QuotaExceeded):
            async with past.pool.offer(TENANT, SPEC) as offer:
                raise QuotaExceeded
        assert (await past.create()).id == offer.session_id


async def test_an_agent_is_not_forgotten_when_it_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with history(tmp_path, monkeypatch) as past:
        await past.ready()

        async def away(session: Session) -> None:
            raise Unavailable("the database is away")

        monkeypatch.setattr(past.prestarting.belongings, "networking", away)
        with pytest.raises(Unavailable):
            await past.create()
        monkeypatch.undo()
        await past.check()


async def random_histories(past: History, number: int, rng: random.Random) -> None:
    """Sessions of two tenants are made, worked with, given up and dropped in any order."""
    node, made = past.prestarting.node, []
    for _ in range(number):
        if rng.random() < 0.7:
            await past.ready()
        tenant = rng.choice((TENANT, TENANT, OTHER))
        spec = rng.choice((SPEC, SPEC, replace(SPEC, environment_id="env_2")))
        end = await cancelled(past.create(spec, tenant), rng.randrange(1, 30), rng.choice(WAYS))
        assert end.error is None, end.error
        if end.value is not None:
            made.append(end.value)
        for session in rng.sample(made, min(2, len(made))):
            if rng.random() < 0.3:
                past.pool.drop(session.id)
            if rng.random() < 0.5:
                assert len(texts(await node.turn(session, "Hello"))) == 1
        if rng.random() < 0.2:
            past.prestarting.room[0] = rng.choice((0, 1, 9))
            await anyio.sleep(0.05)
            past.prestarting.room[0] = 9
        await past.check()


async def test_in_any_order_no_agent_is_given_to_two_or_to_another_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await any_order(tmp_path, monkeypatch, 30)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_in_a_thousand_orders_no_agent_is_given_to_two_or_to_another_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await any_order(tmp_path, monkeypatch, 1000)


async def any_order(data: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    rng = random.Random(seed := random.SystemRandom().randrange(2**32))
    async with history(data, monkeypatch) as past:
        await random_histories(past, number, rng)
        print(f"seed {seed}: {past.count} histories, {len(past.started)} agents started ahead")
