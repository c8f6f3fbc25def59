"""What a runner writes, and how a session comes to rest."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import pytest

from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Move, Pending, Status
from roost.domain.usage import Usage
from roost.errors import InvalidRequest
from roost.ports.drafts import new_draft
from roost.testing.stage import END_TURN, Stage, allow, answer, message, numbers, types
from roost.testing.store_contract import StoreContract


class Running(StoreContract):
    """Shown means committed; idle means that nothing waits."""

    async def test_an_input_that_the_agent_gets_is_written_again_as_taken_up(
        self, stage: Stage
    ) -> None:
        lease = await stage.running(message("one"), message("two"))
        waiting = await stage.log.inputs(lease.session_id)
        batch = Batch(takes=waiting, turn=TurnMark.BEGIN, drafts=[answer()])
        written = await stage.log.append(lease, batch)
        assert [entry.id for entry in written[:2]] == [entry.id for entry in waiting]
        assert [entry.queued for entry in written] == [False, False, False]
        assert numbers(written) == [5, 6, 7]
        assert await stage.log.inputs(lease.session_id) == []
        state = await stage.state(lease.session_id)
        assert (state.queued, state.turn, state.head) == (0, (1, 2), 7)

    async def test_inputs_may_be_taken_out_of_order_and_the_rest_still_waits(
        self, stage: Stage
    ) -> None:
        lease = await stage.running(*(message(str(n)) for n in range(5)))
        waiting = await stage.log.inputs(lease.session_id)
        await stage.log.append(lease, Batch(takes=[waiting[3], waiting[1]]))
        await stage.say(lease.session_id, "newest")
        left = await stage.log.inputs(lease.session_id)
        assert [e.fields["content"][0]["text"] for e in left] == ["0", "2", "4", "newest"]

    async def test_an_input_is_taken_once(self, stage: Stage) -> None:
        lease = await stage.running(message("one"), message("two"))
        one, two = await stage.log.inputs(lease.session_id)
        await stage.log.append(lease, Batch(takes=[one]))
        before = await stage.all(lease.session_id)
        for takes in ([one], [two, one], [two, two]):
            with pytest.raises(InvalidRequest):
                await stage.log.append(lease, Batch(takes=takes, drafts=[answer()]))
        assert await stage.all(lease.session_id) == before
        assert await stage.log.inputs(lease.session_id) == [two]

    async def test_what_an_answer_brought_is_handed_over_without_a_second_entry(
        self, stage: Stage
    ) -> None:
        lease = await stage.running()
        await stage.take_all(lease)
        asked = new_draft("agent.custom_tool_use", name="ask")
        assert await stage.finish(lease, drafts=[asked], blocks=[Pending(asked.id, "custom_tool")])
        result = new_draft("user.custom_tool_result", custom_tool_use_id=asked.id, content=[])
        accepted = await stage.log.accept(lease.session_id, [result])
        assert accepted.woke
        assert not accepted.entries[0].queued
        [lease] = await stage.claim()
        assert await stage.log.inputs(lease.session_id) == accepted.entries
        assert await stage.log.append(lease, Batch(takes=accepted.entries)) == []
        assert await stage.log.inputs(lease.session_id) == []

    async def test_what_was_spent_adds_up(self, stage: Stage) -> None:
        lease = await stage.running()
        for _ in range(3):
            await stage.log.append(lease, Batch(spent=Usage(10, 2, 1)))
        assert (await stage.state(lease.session_id)).usage == Usage(30, 6, 3)

    async def test_a_retry_and_a_recovery_are_steps_that_are_kept(self, stage: Stage) -> None:
        lease = await stage.running()
        await stage.log.append(lease, Batch(move=Move.RETRY))
        assert (await stage.state(lease.session_id)).status is Status.RESCHEDULING
        await stage.log.append(lease, Batch(move=Move.RECOVER))
        assert (await stage.state(lease.session_id)).status is Status.RUNNING

    async def test_a_finished_session_is_idle_nobody_s_and_says_so(self, stage: Stage) -> None:
        lease = await stage.running()
        await stage.take_all(lease)
        written = await stage.finish(lease, drafts=[answer()])
        assert written is not None
        assert types(written) == [
            "agent.message",
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
        ]
        assert written[-1].fields["stop_reason"] == END_TURN
        state = await stage.state(lease.session_id)
        assert (state.status, state.owner, state.turn) == (Status.IDLE, None, None)
        assert (await stage.all(lease.session_id))[-4:] == written

    async def test_a_message_that_lands_while_going_idle_is_not_stranded(
        self, stage: Stage
    ) -> None:
        lease = await stage.running()
        [*_, last] = await stage.take_all(lease)
        late = await stage.say(lease.session_id, "wait!")
        before = await stage.all(lease.session_id)
        assert await stage.log.finish(lease, last.seq, Batch(), END_TURN) is None
        assert await stage.all(lease.session_id) == before
        assert (await stage.state(lease.session_id)).status is Status.RUNNING
        assert await stage.log.inputs(lease.session_id) == late.entries
        await stage.take_all(lease)
        assert await stage.finish(lease)

    async def test_a_failure_that_no_retry_mends_ends_the_session(self, stage: Stage) -> None:
        lease = await stage.running()
        await stage.log.append(lease, Batch(move=Move.END))
        assert (await stage.state(lease.session_id)).status is Status.TERMINATED
        assert await stage.claim("node_2") == []

    async def test_a_session_that_asked_rests_until_everything_is_answered(
        self, stage: Stage
    ) -> None:
        session_id = await stage.asking("sevt_a", "sevt_b")
        first = await stage.log.accept(session_id, [allow("sevt_b")])
        assert not first.woke
        last = (await stage.all(session_id))[-1]
        assert last.type == "session.status_idle"
        assert last.fields["stop_reason"] == {"type": "requires_action", "event_ids": ["sevt_a"]}
        assert await stage.claim() == []
        second = await stage.log.accept(session_id, [allow("sevt_a")])
        assert second.woke
        [lease] = await stage.claim()
        assert [entry.fields["tool_use_id"] for entry in await stage.log.inputs(session_id)] == [
            "sevt_b",
            "sevt_a",
        ]
        await stage.take_all(lease)

    async def test_a_question_is_answered_once(self, stage: Stage) -> None:
        session_id = await stage.asking("sevt_a", "sevt_b")
        await stage.log.accept(session_id, [allow("sevt_a")])
        before = await stage.all(session_id)
        with pytest.raises(InvalidRequest):
            await stage.log.accept(session_id, [allow("sevt_a")])
        assert await stage.all(session_id) == before

    async def test_a_message_does_not_answer_a_question(self, stage: Stage) -> None:
        session_id = await stage.asking("sevt_a")
        assert not (await stage.say(session_id)).woke
        assert await stage.claim() == []
        assert (await stage.log.accept(session_id, [allow("sevt_a")])).woke
        assert len(await stage.log.inputs(session_id)) == 2
