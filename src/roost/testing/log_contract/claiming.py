"""Who runs a session, and until when."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import anyio
import pytest

from roost.domain.ledger import Batch
from roost.domain.session import Lease, Move
from roost.errors import LeaseLost
from roost.testing.stage import END_TURN, NODE, TENANT, Stage, answer, message
from roost.testing.store_contract import StoreContract


class Claiming(StoreContract):
    """One runner at a time; every claim ends the leases before it."""

    async def test_only_sessions_with_work_are_claimed(self, stage: Stage) -> None:
        await stage.session()
        await stage.idle()
        woken = await stage.session(message())
        assert [lease.session_id for lease in await stage.claim()] == [woken]

    async def test_a_claimed_session_is_not_claimed_again_while_its_node_lives(
        self, stage: Stage
    ) -> None:
        lease = await stage.running()
        assert (lease.node, lease.generation) == (NODE, 1)
        assert await stage.claim() == []
        assert await stage.claim("node_2") == []

    async def test_the_longest_wait_comes_first_and_no_more_than_asked_for(
        self, stage: Stage
    ) -> None:
        sessions = [await stage.session() for _ in range(6)]
        order = [sessions[n] for n in (3, 0, 5, 1, 4, 2)]
        for session_id in order:
            await stage.say(session_id)
        claimed = [lease.session_id for lease in await stage.claim(limit=4)]
        assert claimed == order[:4]
        assert [lease.session_id for lease in await stage.claim(limit=4)] == order[4:]

    async def test_the_longest_wait_comes_first_whoever_had_the_session_before(
        self, stage: Stage
    ) -> None:
        sessions = [await stage.session(message()) for _ in range(5)]
        await stage.claim("node_z", 1)
        await stage.claim("node_b", 2)
        await stage.claim("node_a", 1)
        for gone in ("node_z", "node_b", "node_a"):
            await stage.log.renew(gone, 0)
        for part in (sessions[:2], sessions[2:4], sessions[4:]):
            assert [lease.session_id for lease in await stage.claim(limit=2)] == part

    async def test_each_claim_raises_the_generation(self, stage: Stage) -> None:
        lease = await stage.running()
        for generation in (2, 3, 4):
            await stage.log.release(lease)
            [lease] = await stage.claim()
            assert lease.generation == generation

    async def test_a_node_that_never_said_it_lives_claims_nothing(self, stage: Stage) -> None:
        await stage.session(message())
        with pytest.raises(LeaseLost):
            await stage.log.claim("node_never_seen", 10)

    async def test_a_node_whose_time_has_run_out_must_renew_before_it_claims(
        self, stage: Stage
    ) -> None:
        session_id = await stage.session(message())
        await stage.log.renew(NODE, 0.02)
        await anyio.sleep(0.05)
        with pytest.raises(LeaseLost):
            await stage.log.claim(NODE, 10)
        assert [lease.session_id for lease in await stage.claim()] == [session_id]

    async def test_the_sessions_of_a_silent_node_go_to_another_and_its_leases_are_dead(
        self, stage: Stage
    ) -> None:
        old = await stage.running()
        await stage.log.renew(NODE, 0.02)
        await anyio.sleep(0.05)
        [new] = await stage.claim("node_2")
        assert (new.session_id, new.generation) == (old.session_id, old.generation + 1)
        before = await stage.all(old.session_id)
        with pytest.raises(LeaseLost):
            await stage.log.append(old, Batch(drafts=[answer()]))
        with pytest.raises(LeaseLost):
            await stage.log.finish(old, before[-1].seq, Batch(), END_TURN)
        assert await stage.all(old.session_id) == before
        await stage.log.append(new, Batch(drafts=[answer()]))

    async def test_a_silent_node_may_still_write_while_nobody_took_its_session(
        self, stage: Stage
    ) -> None:
        lease = await stage.running()
        await stage.log.renew(NODE, 0.02)
        await anyio.sleep(0.05)
        await stage.log.append(lease, Batch(drafts=[answer()]))

    async def test_a_node_that_says_it_is_gone_gives_up_its_sessions_at_once(
        self, stage: Stage
    ) -> None:
        lease = await stage.running()
        await stage.log.renew(NODE, 0)
        assert [new.session_id for new in await stage.claim("node_2")] == [lease.session_id]

    async def test_a_released_session_is_claimed_by_whoever_asks(self, stage: Stage) -> None:
        lease = await stage.running()
        await stage.log.release(lease)
        with pytest.raises(LeaseLost):
            await stage.log.append(lease, Batch(drafts=[answer()]))
        assert [new.session_id for new in await stage.claim("node_2")] == [lease.session_id]

    async def test_releasing_what_another_has_claimed_changes_nothing(self, stage: Stage) -> None:
        old = await stage.running()
        await stage.log.renew(NODE, 0)
        [new] = await stage.claim("node_2")
        await stage.log.release(old)
        await stage.log.release(Lease("sesn_nowhere", NODE, 1))
        await stage.log.append(new, Batch(drafts=[answer()]))

    async def test_a_session_that_waits_for_a_retry_is_claimed_too(self, stage: Stage) -> None:
        lease = await stage.running()
        await stage.log.append(lease, Batch(move=Move.RETRY))
        await stage.log.release(lease)
        assert [new.session_id for new in await stage.claim()] == [lease.session_id]

    async def test_nodes_that_claim_at_once_share_no_session(self, stage: Stage) -> None:
        sessions = {await stage.session(message()) for _ in range(60)}
        claimed: list[Lease] = []

        async def claim_all(node: str) -> None:
            while leases := await stage.claim(node, 7):
                claimed.extend(leases)

        async with anyio.create_task_group() as tasks:
            for n in range(4):
                tasks.start_soon(claim_all, f"node_{n}")
        assert len(claimed) == 60
        assert {lease.session_id for lease in claimed} == sessions

    async def test_a_warm_runner_keeps_its_session_through_idle_and_waking(
        self, stage: Stage
    ) -> None:
        lease = await stage.running()
        [*_, last] = await stage.take_all(lease)
        assert await stage.log.finish(lease, last.seq, Batch(), END_TURN, keep=True)
        assert (await stage.say(lease.session_id)).woke
        assert await stage.claim("node_2") == []
        await stage.take_all(lease)

    async def test_a_runner_of_a_deleted_session_has_lost_it(self, stage: Stage) -> None:
        lease = await stage.running()
        [*_, last] = await stage.take_all(lease)
        assert await stage.log.finish(lease, last.seq, Batch(), END_TURN, keep=True)
        await stage.store.sessions.delete(TENANT, lease.session_id)
        with pytest.raises(LeaseLost):
            await stage.log.append(lease, Batch(drafts=[answer()]))
        with pytest.raises(LeaseLost):
            await stage.log.finish(lease, last.seq, Batch(), END_TURN)
        await stage.log.release(lease)
