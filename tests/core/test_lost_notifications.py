"""A notification may be lost: whoever waits for one looks again after a while all the same.

Each test loses the notifications that its loop waits for, and waits for what the loop does only when it looks. The
notifier makes those who wait impatient, so that a loop that looks again does so soon, and one that does not
comes too late.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.core.node import TENANT, Node, message, node, texts, types
from tests.core.test_nodes import at_work, fleet, handed_over, said
from tests.core.test_prestart import prestart_node
from tests.core.test_revocations import two
from tests.core.test_sandboxes import FakeProvider, sandboxed_node
from tests.core.test_shared_workspaces import Machine, W, setup
from tests.core.test_standby import until_standing_by
from tests.core.test_task_runs import ended, task_runs_setup

from roost.core.read.follow import Pause
from roost.core.work.workspace_queue import WorkspaceQueue
from roost.core.write.intake import Intake
from roost.core.write.standby import StandbyRunners
from roost.domain.events import Entry
from roost.domain.session import Session
from roost.ports.drafts import new_draft
from roost.ports.notifier import Notifier
from roost.stores.notifier import LocalNotifier
from roost.stores.sqlite import SqliteStore
from roost.testing.lossy_notifier import LossyNotifier, every_notification
from roost.testing.stage import Stage

SOON = 20  # seconds in which a busy machine has looked again many times
LONG = 100 * 60 * 60.0  # seconds, of which the notifier's subscribers wait the hundredth part


def lossy() -> LossyNotifier:
    return LossyNotifier(LocalNotifier())


def elsewhere(roost: Node) -> Intake:
    """Another node's: nobody stands by there."""
    return Intake(roost.store.log, roost.notifier, StandbyRunners(), max_queued=9)


@asynccontextmanager
async def working(roost: Node) -> AsyncGenerator[None, None]:
    """While the node, which was told not to, works."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(roost.dispatcher.run, 1)
        yield
        roost.dispatcher.stop()


async def test_a_stream_shows_what_was_written_though_its_notification_was_lost(tmp_path: Path):
    async with node(tmp_path, working=False, notifier=lossy()) as roost:
        session = await roost.session()
        async with aclosing(roost.follow.tail(session.id, 0)) as tail:
            with anyio.fail_after(SOON):
                assert await anext(tail) is Pause.QUIET
                await roost.say(session, "Hello")
                shown = [await anext(tail)]
                while not isinstance(shown[-1], Entry):
                    shown.append(await anext(tail))
        assert shown[-1].type == "user.message"


async def test_a_stream_ends_with_its_session_though_the_notification_was_lost(tmp_path: Path):
    async with node(tmp_path, working=False, notifier=lossy()) as roost:
        session = await roost.session()
        async with aclosing(roost.follow.tail(session.id, 0)) as tail:
            with anyio.fail_after(SOON):
                assert await anext(tail) is Pause.QUIET
                await roost.store.sessions.delete(TENANT, session.id)
                while await anext(tail) is not Pause.GONE:
                    pass


async def test_an_interrupt_whose_notification_was_lost_stops_the_turn(tmp_path: Path):
    async with node(tmp_path, notifier=lossy()) as roost:
        session = await roost.session(message(said("word " * 400, chunk_delay=0.5)))
        await at_work(roost)
        await roost.intake.accept(session.id, [new_draft("user.interrupt")])
        with anyio.fail_after(SOON):
            await roost.until(session, "session.status_idle")


async def test_a_warm_agent_answers_what_another_node_accepted_and_notified_of_in_vain(
    tmp_path: Path,
):
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, sleep_after=LONG, notifier=lossy()) as roost:
        session = await roost.session(harness="in-sandbox")
        rested = await roost.turn(session, "one")
        await until_standing_by(roost, session.id)
        accepted = await elsewhere(roost).accept(session.id, [message("two")])
        assert accepted.begun is None
        with anyio.fail_after(SOON):
            seen = await roost.until(session, "session.status_idle", rested[-1].seq)
        assert "2 user messages" in texts(seen)[0]
        assert len(provider.plans) == 1, "it was not the warm agent that answered"


@pytest.mark.parametrize("cause", ["drain", "memory"])
async def test_a_warm_agent_is_sent_to_sleep_though_the_notification_was_lost(
    tmp_path: Path, cause: str
):
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, sleep_after=LONG, notifier=lossy()) as roost:
        session = await roost.session(harness="in-sandbox")
        await roost.turn(session, "one")
        await until_standing_by(roost, session.id)
        dispatcher = roost.dispatcher
        dispatcher._handover._leave(True) if cause == "drain" else dispatcher._parts.idle.end_one()
        with anyio.fail_after(SOON):
            await provider.until_open(0)


async def test_work_whose_notification_was_lost_is_claimed(tmp_path: Path):
    async with node(tmp_path, notifier=lossy()) as roost:
        for _ in range(2):  # the first one may be found by the look at the start
            session = await roost.session(message("Hello"))
            with anyio.fail_after(SOON):
                assert len(texts(await roost.until(session, "session.status_idle"))) == 1


async def test_work_whose_node_died_in_silence_is_claimed(tmp_path: Path):
    async with node(tmp_path, working=False, notifier=lossy()) as roost:
        session = await roost.session(message("Hello"))
        [lease] = await Stage(roost.store).claim("node_gone")
        async with working(roost):
            await roost.turn(await roost.session(), "So it has looked, and found nothing else.")
            assert (await roost.store.sessions.find(session.id)).state.owner == "node_gone"
            await roost.store.log.renew("node_gone", 0)
            with anyio.fail_after(SOON):
                assert len(texts(await roost.until(session, "session.status_idle"))) == 1
        found = await roost.store.sessions.find(session.id)
        assert found.state.generation == lease.generation + 1


async def test_a_node_drains_though_no_notification_of_it_came(tmp_path: Path):
    async with node(tmp_path, notifier=lossy(), drain_seconds=0.1, lease_seconds=60) as roost:
        session = await roost.session(message(said("in the end", delay=10 * SOON)))
        await at_work(roost)
        await fleet(roost).mark(roost.dispatcher.node, draining=True)
        with anyio.fail_after(SOON):
            await handed_over(roost, session)


async def test_a_node_works_again_though_nobody_told_it_that_it_need_not_drain(tmp_path: Path):
    async with node(tmp_path, notifier=lossy(), drain_seconds=LONG) as roost:
        session = await roost.session(message(said("first", delay=0.5)))
        await at_work(roost)
        await fleet(roost).mark(roost.dispatcher.node, draining=True)
        await handed_over(roost, session)
        late = await roost.session(message(said("late")))
        await fleet(roost).mark(roost.dispatcher.node, draining=False)
        with anyio.fail_after(SOON):
            assert texts(await roost.until(late, "session.status_idle")) == ["late"]


async def test_a_turn_that_waits_for_its_workspace_begins_though_the_ring_was_lost(tmp_path: Path):
    def queue_of(store: SqliteStore, notifier: Notifier) -> WorkspaceQueue:
        return Machine(tmp_path / "a", store, "node_a", notifier).gate

    async with node(tmp_path, working=False, notifier=lossy(), queue_of=queue_of) as roost:
        await setup(roost.store, writers="serialised")
        other = await roost.session(message("first"), workspace=W)
        await Stage(roost.store).claim("node_other")
        assert await roost.store.workspaces.enter(W, other.id, 1)
        async with working(roost):
            session = await waits_in_line(roost)
            await roost.store.workspaces.exit(other.id)
            with anyio.fail_after(SOON):
                assert len(texts(await roost.until(session, "session.status_idle"))) == 1


async def waits_in_line(roost: Node) -> Session:
    session = await roost.session(message("me too"), workspace=W)
    waited = await roost.until(session, "session.error")
    assert "queued behind" in waited[-1].fields["error"]["message"]
    return session


async def test_a_sandbox_that_is_there_again_is_found_though_nobody_notifies(tmp_path: Path):
    provider = FakeProvider(available=False)
    async with sandboxed_node(tmp_path, provider, notifier=lossy()) as roost:
        session = await roost.session(message("Hello?"), harness="in-sandbox")
        await roost.until(session, "session.status_rescheduled")
        provider.available = True
        with anyio.fail_after(SOON):
            assert len(texts(await roost.until(session, "session.status_idle"))) == 1


async def test_waiting_for_a_sandbox_is_interrupted_though_the_notification_was_lost(
    tmp_path: Path,
):
    async with sandboxed_node(tmp_path, FakeProvider(available=False), notifier=lossy()) as roost:
        session = await roost.session(message("Hello?"), harness="in-sandbox")
        await roost.until(session, "session.status_rescheduled")
        await roost.intake.accept(session.id, [new_draft("user.interrupt")])
        with anyio.fail_after(SOON):
            await roost.until(session, "session.status_idle")


async def test_what_a_revoked_key_has_open_ends_though_the_notification_was_lost(tmp_path: Path):
    async with two(tmp_path, lossy()) as (here, there):
        key, _ = await here.keyring.create(tenant="t", name="one")
        there.open = {(key.id, None)}
        await here.keyring.revoke(key.id)
        with anyio.fail_after(SOON):
            await there.changed.wait()
        assert there.closed == [key.id]


async def test_what_a_login_has_open_ends_though_the_notification_was_lost(tmp_path: Path):
    async with two(tmp_path, lossy()) as (here, there):
        key, secret = await here.keyring.create(tenant="t", name="one")
        login, _ = await here.logins.begin(secret)
        there.open = {(key.id, login.id)}
        await here.logins.end(login.id)
        with anyio.fail_after(SOON):
            await there.changed.wait()
        assert there.closed == [login.id]


async def test_a_run_ends_though_every_notification_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.sessions.task_runs.TaskRuns.follow_again", 50_000)
    monkeypatch.setattr("roost.core.sessions.scheduler._LOOK_AGAIN", 0.05)
    async with node(tmp_path, notifier=lossy()) as roost, task_runs_setup(roost) as setup:
        task = await setup.task(said("All done."))
        await setup.runs.start(setup.key, task.id, {}, None)
        with anyio.fail_after(SOON):
            run, _ = await ended(roost, task.id)
        assert run.body["outcome"] == "All done."


async def test_an_agent_is_started_ahead_though_the_notification_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.core.work.prestart._QUIET", 0)
    async with prestart_node(tmp_path, notifier=lossy()) as sandboxed_node:
        await sandboxed_node.create()
        with anyio.fail_after(SOON):
            await sandboxed_node.ready()


@pytest.mark.parametrize("loses", ["every second", "all, and late"])
async def test_ten_sessions_are_answered_once_each_whatever_notifications_are_lost(
    tmp_path: Path, loses: str
):
    notifier = LossyNotifier(LocalNotifier(), every_notification)
    if loses == "every second":
        notified = iter(range(1_000_000))
        notifier.loses = lambda topic: next(notified) % 2 == 0
    async with node(tmp_path, notifier=notifier) as roost:
        sessions = [await roost.session(message(f"{n}")) for n in range(10)]
        for session in sessions:
            seen = await roost.until(session, "session.status_idle")
            notifier.deliver()
            assert len(texts(seen)) == 1
        for session in sessions:
            log = await roost.store.log.read(session.id, 0, 100)
            assert types(log).count("agent.message") == 1
