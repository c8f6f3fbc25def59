"""What an interrupt does to inputs that no agent has got yet."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from roost.domain.events import Draft, Entry
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease, Move, Session, Status
from roost.errors import NotWaiting
from roost.ports.drafts import new_draft
from roost.ports.log import Accepted, EventQuery, Receipt
from roost.ports.sessions import Revised
from roost.testing.stage import END_TURN, TENANT, Stage, allow, message, numbers, types
from roost.testing.store_contract import StoreContract


def interrupt() -> Draft:
    """An interrupt, as a client sends it."""
    return new_draft("user.interrupt")


async def stop(stage: Stage, session_id: str) -> None:
    """A client sends one."""
    await stage.log.accept(session_id, [interrupt()])


class Withdrawing(StoreContract):
    """One commit decides: each input was taken up before the interrupt, or never is."""

    async def test_an_interrupt_withdraws_what_nobody_has_taken_up(self, stage: Stage) -> None:
        session_id = await stage.session()
        said = await stage.say(session_id, "one", "two")
        stopped = await stage.log.accept(session_id, [interrupt()])
        assert [entry.queued for entry in stopped.entries] == [False]
        await self._rests(stage, session_id, [entry.id for entry in said.entries])
        assert await stage.claim() == []

    async def _rests(self, stage: Stage, session_id: str, withdrawn: list[str]) -> None:
        state = await stage.state(session_id)
        assert (state.status, state.queued, state.turn) == (Status.IDLE, 0, None)
        assert (state.pending, state.active_since) == ((), 0)
        assert await stage.log.inputs(session_id) == []
        log = await stage.all(session_id)
        assert numbers(log) == list(range(1, state.head + 1))
        assert log[-1].fields["stop_reason"] == END_TURN
        await self._are_withdrawn(stage, session_id, withdrawn)

    async def _are_withdrawn(self, stage: Stage, session_id: str, ids: list[str]) -> None:
        listed = await stage.log.page(session_id, EventQuery())
        assert [entry.id for entry in listed if entry.withdrawn] == ids
        assert all(
            not entry.queued and entry.fields["withdrawn_at"] for entry in listed if entry.id in ids
        )
        told = [e.fields["event_ids"] for e in listed if e.type == "roost.withdrawn"]
        assert [id for some in told for id in some] == ids

    async def test_what_comes_after_it_in_the_same_request_runs(self, stage: Stage) -> None:
        session_id = await stage.session()
        waits = await stage.say(session_id, "waits")
        before, after = message("before"), message("after")
        accepted = await stage.log.accept(session_id, [before, interrupt(), after])
        assert accepted.woke
        assert [entry.id for entry in accepted.entries][::2] == [before.id, after.id]
        assert [entry.queued for entry in accepted.entries] == [True, False, True]
        await self._are_withdrawn(stage, session_id, [waits.entries[0].id, before.id])
        assert [entry.id for entry in await stage.log.inputs(session_id)] == [after.id]
        state = await stage.state(session_id)
        assert (state.status, state.queued) == (Status.RUNNING, 1)
        assert state.first_input == accepted.entries[2].seq
        [lease] = await stage.claim()
        assert len(await stage.take_all(lease)) == 1

    async def test_a_runner_that_is_about_to_begin_finds_nothing(self, stage: Stage) -> None:
        lease = await stage.running()
        waiting = await stage.log.inputs(lease.session_id)
        seen = (await stage.state(lease.session_id)).head
        await stage.log.accept(lease.session_id, [interrupt()])
        before = await stage.all(lease.session_id)
        with pytest.raises(NotWaiting):
            await stage.log.append(lease, Batch(takes=waiting, turn=TurnMark.BEGIN))
        assert await stage.all(lease.session_id) == before
        assert await stage.log.finish(lease, seen, Batch(), END_TURN, keep=True) is None
        assert await stage.finish(lease) == []
        await self._rests(stage, lease.session_id, [entry.id for entry in waiting])
        assert (await stage.state(lease.session_id)).owner is None

    async def test_what_its_runner_says_of_a_session_at_rest_does_not_wake_it(
        self, stage: Stage
    ) -> None:
        lease = await stage.running()
        await stage.log.accept(lease.session_id, [interrupt()])
        error = new_draft("session.error", error={"type": "unknown_error"})
        for move in (Move.RETRY, Move.RECOVER):
            written = await stage.log.append(lease, Batch(drafts=[error], move=move))
            assert types(written) == ["session.error"]
        assert (await stage.state(lease.session_id)).status is Status.IDLE

    async def test_a_turn_that_has_begun_is_left_to_its_runner(self, stage: Stage) -> None:
        lease = await stage.running()
        await stage.take_all(lease)
        behind = await stage.say(lease.session_id, "behind")
        stopped = await stage.log.accept(lease.session_id, [interrupt()])
        assert not stopped.woke
        state = await stage.state(lease.session_id)
        assert (state.status, state.queued) == (Status.RUNNING, 1)
        assert state.turn
        [waits] = await stage.log.inputs(lease.session_id)
        assert waits.id == stopped.entries[0].id
        await self._are_withdrawn(stage, lease.session_id, [behind.entries[0].id])
        await stage.log.append(lease, Batch(takes=[waits], turn=TurnMark.END))
        assert await stage.finish(lease)
        assert (await stage.state(lease.session_id)).queued == 0

    async def test_a_turn_that_nobody_has_any_more_ends_at_once(self, stage: Stage) -> None:
        lease = await stage.running()
        await stage.take_all(lease)
        await stage.log.accept(lease.session_id, [interrupt()])
        await stage.log.release(lease)
        await stage.log.accept(lease.session_id, [interrupt()])
        await self._rests(stage, lease.session_id, [])
        listed = await stage.log.page(lease.session_id, EventQuery(types=["user.interrupt"]))
        assert [entry.queued for entry in listed] == [False, False]

    async def test_questions_are_closed_with_what_waited_behind_them(self, stage: Stage) -> None:
        session_id = await stage.asking("sevt_a", "sevt_b")
        behind = await stage.say(session_id, "behind")
        yes = allow("sevt_a")
        await stage.log.accept(session_id, [yes])
        assert not (await stage.log.accept(session_id, [interrupt()])).woke
        await self._rests(stage, session_id, [behind.entries[0].id, yes.id])

    async def test_an_answer_that_was_not_given_yet_is_withdrawn(self, stage: Stage) -> None:
        session_id = await stage.asking("sevt_a")
        yes = allow("sevt_a")
        assert (await stage.log.accept(session_id, [yes])).woke
        await stage.log.accept(session_id, [interrupt()])
        await self._rests(stage, session_id, [yes.id])

    async def test_a_turn_that_ends_with_it_leaves_its_place(self, stage: Stage) -> None:
        """Its files are the end of that turn; where no turn began, they are still the end of the last."""
        asking = await stage.asking("sevt_a")
        answered = await stage.asking("sevt_b")
        await stage.log.accept(answered, [allow("sevt_b")])
        for session_id in (asking, answered):
            await stage.log.accept(session_id, [interrupt()])
            state = await stage.state(session_id)
            assert state.turned == state.head
        session_id = await stage.idle()
        before = await stage.state(session_id)
        await stage.say(session_id)
        await stage.log.accept(session_id, [interrupt()])
        assert (await stage.state(session_id)).turned == before.turned

    async def test_a_runner_that_leaves_before_a_turn_begins_changes_no_place(
        self, stage: Stage
    ) -> None:
        """The last turn is still the last one, also if an interrupt comes before another runner."""
        session_id = await stage.idle()
        before = await stage.state(session_id)
        await stage.say(session_id)
        [lease] = await stage.claim()
        await stage.log.append(lease, Batch(turn=TurnMark.END))
        await stage.log.release(lease)
        await stage.log.accept(session_id, [interrupt()])
        assert before.turned
        assert (await stage.state(session_id)).turned == before.turned

    async def test_the_account_at_rest_has_the_budget(self, stage: Stage) -> None:
        budget = {"max_tokens": 7}
        session_id = await stage.session(message(), budget=budget)
        await stage.log.accept(session_id, [interrupt()])
        assert await self._budgets(stage, session_id) == [budget]
        raised = {"max_tokens": 9}

        def raise_it(before: Session) -> Revised:
            after = replace(before.spec, budget=raised)
            return Revised(after, [new_draft("session.updated")])

        await stage.store.sessions.revise(TENANT, session_id, raise_it)
        await stage.say(session_id)
        await stage.log.accept(session_id, [interrupt()])
        assert await self._budgets(stage, session_id) == [budget, raised]

    async def _budgets(self, stage: Stage, session_id: str) -> list[object]:
        query = EventQuery(types=["session.usage"])
        return [entry.fields["budget"] for entry in await stage.log.page(session_id, query)]

    async def test_a_withdrawn_message_that_is_sent_again_is_answered_as_the_first_was(
        self, stage: Stage
    ) -> None:
        session_id = await stage.session()
        receipts = [Receipt("c:m-1", "mark")]
        first = await stage.log.accept(session_id, [message()], receipts=receipts)
        await stage.log.accept(session_id, [interrupt()])
        before = await stage.all(session_id)
        again = await stage.log.accept(session_id, [message()], receipts=receipts)
        assert again == Accepted(first.entries, woke=False, repeated=True)
        assert await stage.all(session_id) == before

    async def test_a_full_queue_has_room_again(self, stage: Stage) -> None:
        lease = await stage.running()
        await stage.take_all(lease)
        await stage.log.accept(lease.session_id, [message()], max_queued=1)
        drafts = [interrupt(), message()]
        await stage.log.accept(lease.session_id, drafts, max_queued=2)
        assert (await stage.state(lease.session_id)).queued == 2

    async def test_a_listing_shows_it_once(self, stage: Stage) -> None:
        session_id = await stage.session()
        said = await stage.say(session_id)
        await stage.log.accept(session_id, [interrupt()])
        [listed] = await stage.log.page(session_id, EventQuery(types=["user.message"]))
        assert (listed.id, listed.withdrawn) == (said.entries[0].id, True)

    async def test_of_messages_and_an_interrupt_at_once_each_is_withdrawn_or_runs(
        self, stage: Stage
    ) -> None:
        """They may be committed together: then the batch withdraws what it has just written itself."""
        for round in range(12):
            session_id = await stage.session()
            async with anyio.create_task_group() as tasks:
                for n in range(4):
                    tasks.start_soon(stage.say, session_id, f"{round}.{n}")
                tasks.start_soon(stop, stage, session_id)
                for n in range(4):
                    tasks.start_soon(stage.say, session_id, f"{round}.{n}")
            await self._all_or_nothing(stage, session_id)

    async def _all_or_nothing(self, stage: Stage, session_id: str) -> None:
        log = await stage.all(session_id)
        [at] = [entry.seq for entry in log if entry.type == "user.interrupt"]
        first: dict[str, Entry] = {}
        for entry in log:
            first.setdefault(entry.id, entry)
        said = [entry for entry in first.values() if entry.type == "user.message"]
        assert len(said) == 8
        await self._are_withdrawn(stage, session_id, [e.id for e in said if e.seq < at])
        waiting = await stage.log.inputs(session_id)
        assert [e.id for e in waiting] == [e.id for e in said if e.seq > at]
        state = await stage.state(session_id)
        assert state.queued == len(waiting)
        assert (state.status is Status.RUNNING) == bool(waiting)

    async def test_against_a_runner_that_begins_each_input_has_one_fate(self, stage: Stage) -> None:
        for round in range(12):
            lease = await stage.running()
            fates: list[bool] = []
            async with anyio.create_task_group() as tasks:
                if round % 2:
                    tasks.start_soon(stop, stage, lease.session_id)
                tasks.start_soon(self._begin, stage, lease, fates)
                if not round % 2:
                    tasks.start_soon(stop, stage, lease.session_id)
            [listed] = await stage.log.page(lease.session_id, EventQuery(types=["user.message"]))
            [began] = fates
            assert listed.withdrawn is not began
            state = await stage.state(lease.session_id)
            assert (state.turn is not None) is began
            waiting = await stage.log.inputs(lease.session_id)
            assert types(waiting) == (["user.interrupt"] if began else [])
            if began:
                await stage.log.append(lease, Batch(takes=waiting, turn=TurnMark.END))
            assert await stage.finish(lease) is not None

    async def _begin(self, stage: Stage, lease: Lease, fates: list[bool]) -> None:
        """As a runner does: with nothing to hand over, no turn begins."""
        waiting = await stage.log.inputs(lease.session_id)
        try:
            if waiting:
                await stage.log.append(lease, Batch(takes=waiting, turn=TurnMark.BEGIN))
        except NotWaiting:
            fates.append(False)
        else:
            fates.append(bool(waiting))
