"""What is said to a session whose agent is ready: one commit, and the runner has it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from tests.core.node import TENANT, Node, message, node, texts, types
from tests.core.test_sandboxes import FakeProvider, SandboxedHarness, sandboxed_node
from tests.striking import cancelled

from roost.core.write.standby import StandbyRunners
from roost.domain.events import Entry
from roost.domain.ledger import Batch, Standby, TurnMark
from roost.domain.session import Lease, Session, State
from roost.ports.drafts import new_draft
from roost.ports.harness import Brief, Conversation, Output, Trouble, TurnEnd
from roost.ports.log import Accepted
from roost.ports.notifier import WORK
from roost.ports.sessions import Revised
from roost.testing.stage import END_TURN, spec

LEASE = Lease("sesn_1", "node_1", 1)
SESSION = Session(
    id="sesn_1",
    tenant=TENANT,
    spec=spec(),
    state=State(thread_id="sthr_1", agent_name="helper", head=7, turn=(8,)),
    created_at=0,
    updated_at=0,
)


async def until_standing_by(roost: Node, session_id: str) -> None:
    with anyio.fail_after(60):
        while session_id not in roost.standby._handoffs:  # noqa: ASYNC110 - it has no notifier
            await anyio.sleep(0.005)


async def commits_of_a_turn(roost: Node, session_id: str, text: str) -> list[str]:
    """The types of what the first commit of a turn wrote."""
    before = (await roost.store.sessions.find(session_id)).state.head
    accepted = await roost.intake.accept(session_id, [message(text)])
    assert accepted.begun is not None
    return types(await roost.store.log.read(session_id, before, accepted.begun.head - before))


async def test_a_message_to_a_warm_agent_is_taken_up_by_the_commit_that_accepts_it(tmp_path: Path):
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, sleep_after=60) as roost:
        session = await roost.session(harness="in-sandbox")
        first = await roost.turn(session, "one")
        await until_standing_by(roost, session.id)
        assert await commits_of_a_turn(roost, session.id, "two") == [
            "user.message",
            "session.status_running",
            "session.thread_status_running",
            "user.message",
        ]
        entries = await roost.until(session, "session.status_idle", first[-1].seq)
        (answer,) = texts(entries)
        assert "2 user messages" in answer
        assert len(provider.plans) == 1


async def test_ten_messages_at_once_to_a_warm_agent_are_each_answered_once(tmp_path: Path):
    async with sandboxed_node(tmp_path, FakeProvider(), sleep_after=60) as roost:
        session = await roost.session(harness="in-sandbox")
        await roost.turn(session, "hello")
        await until_standing_by(roost, session.id)
        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(roost.say, session, str(n))
        with anyio.fail_after(60):
            while (await roost.store.sessions.find(session.id)).state.status != "idle":  # noqa: ASYNC110 - until all is done
                await anyio.sleep(0.01)
        log = await roost.store.log.read(session.id, 0, 1000)
        said = [e for e in log if e.type == "user.message"]
        assert len([e for e in said if e.queued]) == len([e for e in said if not e.queued]) == 11
        assert "11 user messages" in texts(log)[-1]


async def test_a_session_that_was_changed_while_its_agent_was_warm_gets_another_agent(
    tmp_path: Path,
):
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, sleep_after=60) as roost:
        session = await roost.session(harness="in-sandbox")
        await roost.turn(session, "one")
        await until_standing_by(roost, session.id)
        said = [new_draft("session.updated", title="new")]
        await roost.store.sessions.revise(
            TENANT, session.id, lambda now: Revised(replace(now.spec, title="new"), said)
        )
        (answer,) = texts(await roost.turn(session, "two"))
        assert "2 user messages" in answer
        assert len(provider.plans) == 2


class Stumbling(SandboxedHarness):
    """An agent that fails at the end of its first turn, and has nothing left to say about it."""

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        async with super().open(brief) as conversation:
            take, stumbles = conversation.turn, [Trouble("unknown_error", "oh", "retrying")]

            async def turn(inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
                async for output in take(inputs, again=again):
                    if isinstance(output, TurnEnd) and stumbles:
                        yield stumbles.pop()
                    yield output

            conversation.turn = turn  # type: ignore[method-assign]
            yield conversation


async def test_an_agent_that_failed_as_its_turn_ended_answers_what_is_said_next(tmp_path: Path):
    async with sandboxed_node(
        tmp_path, FakeProvider(), sleep_after=60, harness_class=Stumbling
    ) as roost:
        session = await roost.session(harness="in-sandbox")
        first = await roost.turn(session, "one")
        assert "session.status_rescheduled" in types(first)
        await until_standing_by(roost, session.id)
        second = await roost.turn(session, "two")
        assert "2 user messages" in texts(second)[0]
        assert "session.error" not in types(second)


@pytest.mark.parametrize("begins", [True, False])
async def test_a_runner_that_leaves_waits_for_what_is_on_its_way_to_it(begins: bool):
    handover = StandbyRunners()
    on_its_way, may_commit = anyio.Event(), anyio.Event()

    async def give() -> None:
        handoff = handover.handoff_of(SESSION.id)
        handoff.expect()
        assert handoff.standby == Standby(LEASE, SESSION.state.head)
        on_its_way.set()
        await may_commit.wait()
        handoff.take(Accepted([], woke=True, begun=SESSION.state if begins else None))
        handoff.end()

    async with anyio.create_task_group() as tasks:
        async with handover.standing_by(LEASE, SESSION) as handoff:
            tasks.start_soon(give)
            await on_its_way.wait()
            assert handoff.begun is None
            may_commit.set()
        assert handoff.begun == (SESSION.state if begins else None)
    assert handover.handoff_of(SESSION.id).standby is None


async def test_nobody_stands_by_in_a_shared_workspace():
    handover = StandbyRunners()
    shared = replace(SESSION, spec=spec(workspace="wksp_1"))
    async with handover.standing_by(LEASE, shared):
        assert handover.handoff_of(shared.id).standby is None


async def test_a_turn_that_was_begun_for_a_server_that_died_is_taken_by_the_next(tmp_path: Path):
    async with node(tmp_path, working=False) as roost:
        log = roost.store.log
        session = await roost.session(message("one"))
        await log.renew("node_gone", 60)
        [lease] = await log.claim("node_gone", 1)
        await log.append(lease, Batch(takes=await log.inputs(session.id), turn=TurnMark.BEGIN))
        head = (await roost.store.sessions.find(session.id)).state.head
        await log.finish(lease, head, Batch(turn=TurnMark.END), END_TURN, keep=True)
        seen = (await roost.store.sessions.find(session.id)).state.head
        standby = Standby(lease, seen)
        accepted = await log.accept(session.id, [message("two")], standby=standby)
        assert accepted.begun is not None
        await log.renew("node_gone", 0)
    async with node(tmp_path) as roost:
        roost.notifier.notify(WORK)
        entries = await roost.until(session, "session.status_idle", accepted.begun.head)
        assert len(texts(entries)) == 1
        assert "user.message" not in types(entries)


async def test_a_sender_who_gives_up_at_any_wait_is_answered_once_or_was_not_heard(tmp_path: Path):
    """Whoever is cancelled as a message is committed has still said it: the agent must not find out late."""
    provider = FakeProvider()
    async with sandboxed_node(tmp_path, provider, sleep_after=60) as roost:
        session = await roost.session(harness="in-sandbox")
        await roost.turn(session, "hello")
        for at in range(1, 50):
            await until_standing_by(roost, session.id)
            head = (await roost.store.sessions.find(session.id)).state.head
            end = await cancelled(
                roost.intake.accept(session.id, [message(f"from {at}")]), at, "scope"
            )
            with anyio.move_on_after(
                0 if end.error else 10
            ) as patience:  # less than it looks again
                entries = await roost.until(session, "session.status_idle", head)
                assert len(texts(entries)) == 1
                said = [e for e in entries if e.type == "user.message" and not e.queued]
                assert [e.fields["content"][0]["text"] for e in said] == [f"from {at}"]
            assert not patience.cancelled_caught, "it was accepted, and its agent not told"
            if not end.struck:
                break
        print(f"{at} histories")
        assert len(provider.plans) == 1
