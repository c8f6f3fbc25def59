"""The log under everything at once: many writers, claims and interrupts."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import random

import anyio

from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease, Status
from roost.errors import LeaseLost
from roost.testing.stage import END_TURN, Stage, answer, message, numbers, types
from roost.testing.store_contract import StoreContract


class Races(StoreContract):
    """What holds for one holds for many at the same time."""

    async def test_many_writers_leave_no_gap_and_no_double(self, stage: Stage) -> None:
        sessions = [await stage.session(message()) for _ in range(64)]
        leases = {lease.session_id: lease for lease in await stage.claim()}
        accepted: dict[str, set[tuple[int, str]]] = {id: set() for id in sessions}

        async def client(session_id: str) -> None:
            for n in range(10):
                answered = await stage.say(session_id, str(n))
                accepted[session_id] |= {(e.seq, e.id) for e in answered.entries}

        async def runner(lease: Lease) -> None:
            for n in range(10):
                written = await stage.log.append(lease, Batch(drafts=[answer(str(n)), answer()]))
                accepted[lease.session_id] |= {(e.seq, e.id) for e in written}

        async with anyio.create_task_group() as tasks:
            for session_id in sessions:
                for _ in range(3):
                    tasks.start_soon(client, session_id)
                tasks.start_soon(runner, leases[session_id])
        for session_id in sessions:
            log = await stage.all(session_id)
            assert numbers(log) == list(range(1, 3 + 3 * 10 + 20 + 1))
            assert accepted[session_id] == {(e.seq, e.id) for e in log[3:]}
            assert len(await stage.log.inputs(session_id)) == 31

    async def test_a_session_is_never_idle_with_a_message_that_waits(self, stage: Stage) -> None:
        chance = random.Random(1)
        sessions = [await stage.session(message()) for _ in range(16)]
        for _ in range(12):
            async with anyio.create_task_group() as tasks:
                for lease in await stage.claim():
                    tasks.start_soon(self._go_idle, stage, lease)
                for session_id in chance.sample(sessions, 12):
                    tasks.start_soon(stage.say, session_id, "race")
            for session_id in sessions:
                state = await stage.state(session_id)
                waiting = types(await stage.log.inputs(session_id))
                assert state.status is Status.RUNNING or waiting == []
                assert state.queued == len(waiting)

    async def _go_idle(self, stage: Stage, lease: Lease) -> None:
        """As a runner does: what it has seen is older than what it found waiting."""
        while True:
            seen = (await stage.state(lease.session_id)).head
            waiting = await stage.log.inputs(lease.session_id)
            if waiting:
                await stage.log.append(lease, Batch(takes=waiting, turn=TurnMark.BEGIN))
            elif await stage.log.finish(lease, seen, Batch(), END_TURN) is not None:
                return

    async def test_a_stale_runner_never_writes_between_the_lines_of_the_new_one(
        self, stage: Stage
    ) -> None:
        lease = await stage.running()
        refused = 0

        async def write(mine: Lease) -> None:
            nonlocal refused
            try:
                while True:
                    await stage.log.append(mine, Batch(drafts=[answer(str(mine.generation))]))
            except LeaseLost:
                refused += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, lease)
            for n in range(2, 8):
                await anyio.sleep(0.01)
                await stage.log.renew(lease.node, 0)
                [lease] = await stage.claim(f"node_{n}")
                tasks.start_soon(write, lease)
            await stage.log.release(lease)
        assert refused == 7
        log = await stage.all(lease.session_id)
        said = [e.fields["content"][0]["text"] for e in log if e.type == "agent.message"]
        generations = [int(text) for text in said]
        assert len(set(generations)) > 3
        assert generations == sorted(generations)
