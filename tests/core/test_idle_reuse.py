"""A runner at rest that is cancelled at any wait: nothing of it is left to the next one of its session."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.core.node import message, node
from tests.striking import cancelled

from roost.core.work.idle import IdleAgents
from roost.core.work.inputs import Work, handed_over
from roost.domain.ledger import Batch, TurnMark
from roost.domain.session import Lease, Session
from roost.testing.stage import END_TURN


@pytest.mark.parametrize("speaks", [False, True])
async def test_a_runner_at_rest_that_is_cancelled_leaves_nothing_to_the_next(
    tmp_path: Path, speaks: bool
):
    """`speaks`: somebody says something in the same moment, which then is for the next runner."""
    async with node(tmp_path, working=False) as roost:
        standby = roost.standby
        idle = IdleAgents(roost.store.sessions, roost.notifier, standby, seconds=60, most=9)
        for at in range(1, 50):
            lease, session = await _at_rest(roost.store)
            async with anyio.create_task_group() as tasks:
                if speaks:
                    tasks.start_soon(roost.intake.accept, session.id, [message(f"number {at}")])
                else:
                    tasks.start_soon(anyio.sleep, 0.01)
                with anyio.move_on_after(1):
                    end = await cancelled(idle.until_work(lease, session, 60), at, "scope")
            assert (len(idle), standby._handoffs) == (0, {})
            work = end.value or await _next(idle, roost, lease, session, at, said=speaks)
            begun = work.session.state.turn is not None and not work.begun  # for who was cancelled
            inputs = await handed_over(roost.store.log, work.session) if begun else work.inputs
            assert [e.fields["content"][0]["text"] for e in inputs] == [f"number {at}"]
            if not end.struck:
                break
            if at > 3:
                break  # it rests: what follows is the same wait again
        print(f"{at} histories")


async def _at_rest(store) -> tuple[Lease, Session]:  # type: ignore[no-untyped-def]
    from roost.ids import mint
    from roost.testing.stage import spec

    made = await store.sessions.create("t", mint("sesn"), spec(), [message("first")])
    await store.log.renew("node", 60)
    leases = await store.log.claim("node", 50)
    [lease] = [lease for lease in leases if lease.session_id == made.id]
    inputs = await store.log.inputs(made.id)
    await store.log.append(lease, Batch(takes=inputs, turn=TurnMark.BEGIN))
    now = await store.sessions.find(made.id)
    await store.log.finish(lease, now.state.head, Batch(turn=TurnMark.END), END_TURN, keep=True)
    return lease, await store.sessions.find(made.id)


async def _next(  # type: ignore[no-untyped-def]
    idle: IdleAgents, roost, lease: Lease, session: Session, at: int, *, said: bool
) -> Work:
    found: list[Work | None] = []

    async def wait() -> None:
        found.append(await idle.until_work(lease, session, 60))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            if not said:
                await anyio.sleep(0.01)
                await roost.intake.accept(session.id, [message(f"number {at}")])
    [work] = found
    assert work is not None
    return work
