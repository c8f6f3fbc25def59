"""What is said to a session whose runner stands by for it."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import anyio

from roost.domain.ledger import Batch, Standby
from roost.domain.session import Lease, Status
from roost.ports.drafts import new_draft
from roost.ports.log import Accepted, EventQuery, Receipt
from roost.testing.stage import END_TURN, Stage, message
from roost.testing.store_contract import StoreContract


class StandingBy(StoreContract):
    """One commit takes it in and hands it over; or it waits as any input."""

    async def test_its_turn_begins_with_the_commit_that_accepts(self, stage: Stage) -> None:
        lease, standby = await _at_rest(stage)
        drafts = [message("one"), message("two")]
        accepted = await stage.log.accept(lease.session_id, drafts, standby=standby)
        one, two = (entry.seq for entry in accepted.entries)
        state = await stage.state(lease.session_id)
        assert accepted.begun == state
        assert (state.status, state.turn, state.queued) == (Status.RUNNING, (one, two), 0)
        assert await stage.log.inputs(lease.session_id) == []
        written = await stage.all(lease.session_id)
        assert [entry.seq for entry in written] == list(range(1, state.head + 1))
        assert [entry.id for entry in written[-2:]] == [draft.id for draft in drafts]
        listed = await stage.log.page(lease.session_id, EventQuery(after=standby.seen))
        assert [(e.id, e.queued) for e in listed if e.type == "user.message"] == [
            (draft.id, False) for draft in drafts
        ]
        earlier = EventQuery(order="desc", as_of=two)
        listed = await stage.log.page(lease.session_id, earlier)
        assert [(entry.id, entry.queued) for entry in listed[:2]] == [
            (draft.id, True) for draft in reversed(drafts)
        ]

    async def test_the_turn_goes_on_and_ends_as_any(self, stage: Stage) -> None:
        lease, standby = await _at_rest(stage)
        await stage.log.accept(lease.session_id, [message()], standby=standby)
        await stage.say(lease.session_id, "later")
        assert len(await stage.take_all(lease)) == 1
        assert await stage.finish(lease)
        assert (await stage.state(lease.session_id)).turn is None

    async def test_a_runner_that_dies_over_it_leaves_it_to_the_next(self, stage: Stage) -> None:
        lease, standby = await _at_rest(stage)
        accepted = await stage.log.accept(lease.session_id, [message()], standby=standby)
        await stage.log.renew(lease.node, 0)
        [next_lease] = await stage.claim("node_2")
        assert next_lease.session_id == lease.session_id
        state = await stage.state(lease.session_id)
        assert state.turn == (accepted.entries[0].seq,)

    async def test_it_waits_if_anything_was_written_since(self, stage: Stage) -> None:
        lease, standby = await _at_rest(stage)
        await stage.log.append(lease, Batch(drafts=[new_draft("session.error")]))
        accepted = await stage.log.accept(lease.session_id, [message()], standby=standby)
        assert accepted.begun is None
        assert accepted.woke
        assert len(await stage.log.inputs(lease.session_id)) == 1

    async def test_of_many_at_once_one_begins_and_the_others_wait(self, stage: Stage) -> None:
        lease, standby = await _at_rest(stage)
        done: list[Accepted] = []

        async def say(text: str) -> None:
            drafts = [message(text)]
            done.append(await stage.log.accept(lease.session_id, drafts, standby=standby))

        async with anyio.create_task_group() as tasks:
            for n in range(8):
                tasks.start_soon(say, str(n))
        [begun] = [accepted for accepted in done if accepted.begun]
        [first] = begun.entries
        assert first.seq == standby.seen + 1
        waiting = await stage.log.inputs(lease.session_id)
        assert {e.id for e in waiting} == {a.entries[0].id for a in done} - {first.id}

    async def test_what_is_repeated_begins_nothing(self, stage: Stage) -> None:
        lease, standby = await _at_rest(stage)
        session_id, receipts = lease.session_id, [Receipt("k", "f")]
        first = await stage.log.accept(session_id, [message()], receipts=receipts, standby=standby)
        assert first.begun is not None
        assert await stage.finish(lease)
        now = Standby(lease, (await stage.state(session_id)).head)
        again = await stage.log.accept(session_id, [message()], receipts=receipts, standby=now)
        assert (again.repeated, again.begun) == (True, None)
        assert again.entries == first.entries


async def _at_rest(stage: Stage) -> tuple[Lease, Standby]:
    """A session that has had a turn, and whose runner keeps it."""
    lease = await stage.running()
    await stage.take_all(lease)
    head = (await stage.state(lease.session_id)).head
    assert await stage.log.finish(lease, head, Batch(), END_TURN, keep=True)
    return lease, Standby(lease, (await stage.state(lease.session_id)).head)
