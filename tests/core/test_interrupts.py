"""An interrupt before anything has begun: nothing begins, wherever the session waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from msgspec.structs import replace
from tests.core.node import TENANT, Node, message, node, texts
from tests.core.test_sandboxes import FakeProvider, FakeSandbox, sandboxed_node

from roost.domain.events import Draft
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Session, Status
from roost.ports.drafts import new_draft
from roost.ports.log import EventQuery
from roost.ports.sandbox_provider import Plan
from roost.ports.sessions import Revised


def stop() -> Draft:
    return new_draft("user.interrupt")


class Slow(FakeProvider):
    """Its doors open when somebody says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.begins = anyio.Event()
        self.opens = anyio.Event()

    @asynccontextmanager
    async def open(self, plan: Plan) -> AsyncGenerator[FakeSandbox, None]:
        self.asked += 1
        self.begins.set()
        await self.opens.wait()
        async with super().open(plan) as room:
            yield room


async def asleep(roost: Node, session: Session) -> None:
    """Until no runner has it."""
    with anyio.fail_after(60):
        while True:
            if (await roost.store.sessions.find(session.id)).state.owner is None:
                return
            await anyio.sleep(0.02)


async def withdrawn(roost: Node, session: Session) -> list[str]:
    listed = await roost.store.log.page(session.id, EventQuery(types=["user.message"]))
    return [entry.fields["content"][0]["text"] for entry in listed if entry.withdrawn]


async def rests(roost: Node, session: Session) -> None:
    await asleep(roost, session)
    state = (await roost.store.sessions.find(session.id)).state
    assert (state.status, state.queued, state.turn) == (Status.IDLE, 0, None)


async def until_asked(provider: Slow) -> None:
    with anyio.fail_after(60):
        await provider.begins.wait()


async def test_while_its_sandbox_is_made_ready_the_session_rests_at_once(tmp_path: Path):
    provider = Slow()
    async with sandboxed_node(tmp_path, provider) as roost:
        session = await roost.session(message("rm -rf big"), harness="in-sandbox")
        await until_asked(provider)
        accepted = await roost.intake.accept(session.id, [stop()])
        state = (await roost.store.sessions.find(session.id)).state
        assert state.status is Status.IDLE, "with the very commit that accepts it"
        await rests(roost, session)
        assert await withdrawn(roost, session) == ["rm -rf big"]
        provider.opens.set()
        entries = await roost.turn(session, "Hello")
        assert "1 user message " in texts(entries)[0], "the other one is never told"
        assert accepted.entries[0].seq < entries[0].seq


async def test_what_is_said_with_the_interrupt_or_after_it_runs(tmp_path: Path):
    provider = Slow()
    async with sandboxed_node(tmp_path, provider) as roost:
        session = await roost.session(message("one"), harness="in-sandbox")
        await until_asked(provider)
        await roost.intake.accept(session.id, [message("two"), stop(), message("three")])
        after = await roost.say(session, "four")
        provider.opens.set()
        entries = await roost.until(session, "session.status_idle", after)
        assert await withdrawn(roost, session) == ["one", "two"]
        assert "2 user messages" in texts(entries)[-1]


async def test_waiting_for_a_room_can_be_interrupted(tmp_path: Path):
    provider = FakeProvider(available=False)
    async with sandboxed_node(tmp_path, provider) as roost:
        session = await roost.session(message("Hello?"), harness="in-sandbox")
        await roost.until(session, "session.status_rescheduled")
        await roost.intake.accept(session.id, [stop()])
        entries = await roost.until(session, "session.status_idle")
        assert entries[-1].fields["stop_reason"] == {"type": "end_turn"}
        await rests(roost, session)
        assert await withdrawn(roost, session) == ["Hello?"]
        assert provider.plans == []


async def test_where_nobody_can_work_at_present_the_session_rests_all_the_same(tmp_path: Path):
    async with node(tmp_path, working=False) as roost:
        session = await roost.session(message("Hello?"))
        await roost.intake.accept(session.id, [stop()])
        await rests(roost, session)
        assert await withdrawn(roost, session) == ["Hello?"]


async def test_a_turn_that_a_dead_server_left_ends_without_an_agent(tmp_path: Path):
    async with node(tmp_path, working=False) as gone:
        session = await gone.session(message("cut off"), harness="in-sandbox")
        log = gone.store.log
        await log.renew("node_gone", 60)
        [lease] = await log.claim("node_gone", 1)
        await log.append(lease, Batch(takes=await log.inputs(session.id), turn=TurnMark.BEGIN))
        await gone.say(session, "behind it")
    provider = Slow()
    async with sandboxed_node(tmp_path, provider) as roost:
        await until_asked(provider)
        await roost.intake.accept(session.id, [stop()])
        await rests(roost, session)
        assert await withdrawn(roost, session) == ["behind it"]
        assert provider.plans == [], "nothing was opened"


async def test_killed_after_any_write_of_an_interrupt_nothing_begins(tmp_path: Path):
    """There is one write: what is after it is at rest, whoever looks next."""
    async with node(tmp_path, working=False) as roost:
        session = await roost.session(message("one"))
        await roost.intake.accept(session.id, [stop()])
    async with node(tmp_path) as roost:
        entries = await roost.turn(session, "two")
        assert "1 user message " in texts(entries)[0]
        assert await withdrawn(roost, session) == ["one"]


async def test_an_agent_that_is_opened_for_a_session_that_became_another_is_opened_again(
    tmp_path: Path,
):
    provider = Slow()
    async with sandboxed_node(tmp_path, provider) as roost:
        session = await roost.session(message("one"), harness="in-sandbox")
        await until_asked(provider)
        # Nobody notifies: the runner finds out when it has opened the agent.
        await roost.store.log.accept(session.id, [stop()])
        await roost.store.sessions.revise(TENANT, session.id, retitled)
        await roost.store.log.accept(session.id, [message("two")])
        provider.opens.set()
        entries = await roost.until(session, "agent.message")
        assert "1 user message " in texts(entries)[0]
        assert provider.asked == 2


def retitled(session: Session) -> Revised:
    spec = replace(session.spec, title="another")
    return Revised(spec, [new_draft("session.updated", title="another")])
