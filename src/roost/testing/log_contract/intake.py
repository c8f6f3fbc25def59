"""Accepting what clients send."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import anyio
import pytest

from roost.domain.events import Draft
from roost.domain.session import Status
from roost.errors import InvalidRequest, NotFound, QueueFull, RoostError, SessionClosed
from roost.ports.drafts import new_draft
from roost.ports.log import Accepted
from roost.testing.stage import TENANT, Stage, allow, message, numbers, types
from roost.testing.store_contract import StoreContract


class AcceptedInputs(StoreContract):
    """Accepted means committed; refused means nothing happened."""

    async def test_a_message_wakes_an_idle_session_and_waits_for_its_agent(
        self, stage: Stage
    ) -> None:
        session_id = await stage.session()
        draft = message("build it")
        accepted = await stage.log.accept(session_id, [draft])
        [entry] = accepted.entries
        assert (entry.seq, entry.id, entry.type, entry.body) == (
            1,
            draft.id,
            "user.message",
            draft.body,
        )
        assert entry.queued
        assert accepted.woke
        assert not accepted.repeated
        assert await stage.log.inputs(session_id) == [entry]
        session, waiting = await stage.store.sessions.with_inputs(session_id)
        assert (session.id, session.state.head, waiting) == (session_id, 3, [entry])
        assert types(await stage.all(session_id)) == [
            "user.message",
            "session.status_running",
            "session.thread_status_running",
        ]
        state = await stage.state(session_id)
        assert (state.status, state.head, state.queued) == (Status.RUNNING, 3, 1)

    async def test_a_message_to_a_running_session_is_one_entry_and_wakes_nobody(
        self, stage: Stage
    ) -> None:
        session_id = await stage.session(message())
        accepted = await stage.say(session_id, "and also this")
        assert not accepted.woke
        assert numbers(accepted.entries) == [4]
        assert (await stage.state(session_id)).head == 4

    async def test_who_asked_is_told_the_end_before_the_answer(self, stage: Stage) -> None:
        session_id = await stage.session()
        told: list[Accepted | None] = []
        accepted = await stage.log.accept(session_id, [message("one")], ended=told.append)
        assert told == [accepted]
        with pytest.raises(NotFound):
            await stage.log.accept("sesn_none", [message("two")], ended=told.append)
        assert told == [accepted, None]

    async def test_the_end_is_told_although_the_sender_gave_up(self, stage: Stage) -> None:
        session_id = await stage.session()
        told: list[Accepted | None] = []
        ended = anyio.Event()

        def tell(accepted: Accepted | None) -> None:
            told.append(accepted)
            ended.set()

        with anyio.CancelScope() as scope:
            scope.cancel()
            await stage.log.accept(session_id, [message("one")], ended=tell)
        with anyio.fail_after(30):
            await ended.wait()
        [accepted] = told
        assert accepted is not None
        assert await stage.log.inputs(session_id) == accepted.entries

    async def test_each_draft_is_answered_with_its_own_entry_in_order(self, stage: Stage) -> None:
        session_id = await stage.session()
        drafts = [message(str(n)) for n in range(5)]
        accepted = await stage.log.accept(session_id, drafts)
        assert [entry.id for entry in accepted.entries] == [draft.id for draft in drafts]
        assert numbers(accepted.entries) == [1, 2, 3, 4, 5]

    async def test_first_inputs_are_accepted_with_the_session_itself(self, stage: Stage) -> None:
        session_id = await stage.session(message("one"), message("two"))
        assert [e.fields["content"][0]["text"] for e in await stage.log.inputs(session_id)] == [
            "one",
            "two",
        ]
        assert [lease.session_id for lease in await stage.claim()] == [session_id]

    async def test_one_bad_input_refuses_the_whole_request(self, stage: Stage) -> None:
        session_id = await stage.session()
        with pytest.raises(InvalidRequest, match="not waiting"):
            await stage.log.accept(session_id, [message(), allow("sevt_never_asked"), message()])
        assert await stage.all(session_id) == []
        assert await stage.log.inputs(session_id) == []
        assert (await stage.state(session_id)).status is Status.IDLE
        assert numbers((await stage.say(session_id)).entries) == [1]

    async def test_a_full_queue_refuses_aloud_and_keeps_what_it_has(self, stage: Stage) -> None:
        session_id = await stage.session()
        for _ in range(3):
            await stage.log.accept(session_id, [message()], max_queued=3)
        before = await stage.all(session_id)
        with pytest.raises(QueueFull):
            await stage.log.accept(session_id, [message()], max_queued=3)
        assert await stage.all(session_id) == before

    async def test_a_queue_that_was_worked_off_takes_more(self, stage: Stage) -> None:
        lease = await stage.running(message(), message())
        await stage.take_all(lease)
        await stage.log.accept(lease.session_id, [message(), message()], max_queued=2)

    async def test_a_session_that_is_not_there_accepts_nothing(self, stage: Stage) -> None:
        with pytest.raises(NotFound):
            await stage.say("sesn_nowhere")

    async def test_an_archived_session_accepts_nothing(self, stage: Stage) -> None:
        session_id = await stage.session()
        await stage.store.sessions.archive(TENANT, session_id)
        before = await stage.all(session_id)
        with pytest.raises(SessionClosed):
            await stage.say(session_id)
        assert await stage.all(session_id) == before

    async def test_refused_requests_do_not_disturb_those_committed_with_them(
        self, stage: Stage
    ) -> None:
        sessions = [await stage.session() for _ in range(20)]
        closed = await stage.session()
        await stage.store.sessions.archive(TENANT, closed)
        refused: list[type[RoostError]] = []

        async def bother(session_id: str, draft: Draft) -> None:
            try:
                await stage.log.accept(session_id, [draft])
            except RoostError as error:
                refused.append(type(error))

        async with anyio.create_task_group() as tasks:
            for session_id in sessions:
                tasks.start_soon(bother, "sesn_nowhere", message())
                tasks.start_soon(bother, session_id, message())
                tasks.start_soon(bother, closed, message())
                tasks.start_soon(bother, session_id, allow("sevt_never_asked"))
        assert sorted(error.__name__ for error in refused) == sorted(
            ["NotFound", "SessionClosed", "InvalidRequest"] * 20
        )
        for session_id in sessions:
            assert numbers(await stage.all(session_id)) == [1, 2, 3]

    async def test_an_interrupt_at_idle_is_shown_as_done_and_wakes_nobody(
        self, stage: Stage
    ) -> None:
        session_id = await stage.session()
        accepted = await stage.log.accept(session_id, [new_draft("user.interrupt")])
        assert not accepted.woke
        assert not accepted.entries[0].queued
        assert await stage.log.inputs(session_id) == []
        assert await stage.claim() == []

    async def test_waiting_inputs_can_be_asked_for_by_type(self, stage: Stage) -> None:
        lease = await stage.running()
        await stage.take_all(lease)
        await stage.log.accept(lease.session_id, [new_draft("user.interrupt"), message()])
        [interrupt] = await stage.log.inputs(lease.session_id, ["user.interrupt"])
        assert interrupt.type == "user.interrupt"
        assert await stage.log.inputs(lease.session_id, ["user.custom_tool_result"]) == []

    async def test_a_body_comes_back_byte_for_byte(self, stage: Stage) -> None:
        session_id = await stage.session()
        text = "zero \x00, quotes \"', a line\nand a smile 🙂 " + "long " * 50_000
        [entry] = (await stage.say(session_id, text)).entries
        [waiting] = await stage.log.inputs(session_id)
        assert waiting == entry
        assert waiting.fields["content"][0]["text"] == text
