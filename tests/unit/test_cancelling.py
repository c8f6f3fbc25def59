"""The helper that cancels code at every place where it waits."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from roost.testing.cancelling import cancelled_at_each_step, cancelled_at_step


async def test_each_run_is_cancelled_one_wait_later_and_the_last_not_at_all():
    reached: list[int] = []

    async def work() -> None:
        reached.append(0)
        for number in range(1, 4):
            await anyio.lowlevel.checkpoint()
            reached[-1] = number

    steps = [step async for step in cancelled_at_each_step(work)]
    whole = steps[-1]
    assert steps == list(range(1, whole + 1))
    assert reached[0] == 0
    assert reached[-1] == 3
    assert reached == sorted(reached)
    assert set(reached) == {0, 1, 2, 3}


async def test_what_waits_for_another_task_is_cancelled_there():
    async def work() -> None:
        await anyio.sleep_forever()

    assert await cancelled_at_step(work, 1)


async def test_a_wait_that_is_shielded_ends_first_and_the_next_one_is_cancelled():
    done: list[str] = []

    async def work() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.001)
            done.append("shielded")
        await anyio.sleep(0.001)
        done.append("after")

    assert await cancelled_at_step(work, 1)
    assert done == ["shielded"]


async def test_cleaning_up_is_run_and_its_waits_are_cancelled_too():
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append("begun")
            await anyio.lowlevel.checkpoint()
            cleaned.append("ended")

    assert await cancelled_at_step(work, 1)
    assert cleaned == ["begun"]


async def test_an_error_says_at_which_step_it_came():
    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("left behind")

    with pytest.raises(ValueError, match="left behind") as caught:
        await cancelled_at_step(work, 1)
    assert caught.value.__notes__ == ["cancelled at step 1"]


async def test_a_task_group_inside_is_cancelled_as_a_whole():
    ended: list[str] = []

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("child")

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)
            await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    steps = [step async for step in cancelled_at_each_step(work)]
    assert len(ended) >= len(steps) - 1
