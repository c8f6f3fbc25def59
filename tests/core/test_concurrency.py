"""Deadlines that cost nothing while there is nothing to wait for; and what is done before what follows it."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from roost.core.concurrency import done_first, in_time
from roost.testing.cancelling import cancelled_at_each_step


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_is_there_already_is_given_without_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def there() -> int:
        return 7

    def no_deadline(seconds: float) -> None:
        raise AssertionError("a deadline was made")

    monkeypatch.setattr(anyio, "fail_after", no_deadline)
    assert await in_time(there(), 0) == 7


async def test_what_takes_several_waits_is_given_whole() -> None:
    async def slowly() -> list[int]:
        said = []
        for n in range(3):
            await anyio.lowlevel.checkpoint()
            said.append(n)
        return said

    assert await in_time(slowly(), 60) == [0, 1, 2]


async def test_a_failure_is_its_own_before_and_after_a_wait() -> None:
    async def fails(waits: int) -> None:
        for _ in range(waits):
            await anyio.lowlevel.checkpoint()
        raise KeyError("mine")

    for waits in (0, 1, 2):
        with pytest.raises(KeyError):
            await in_time(fails(waits), 60)


async def test_what_does_not_come_in_time_is_told_to_stop() -> None:
    ended = []

    async def never() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError):
        await in_time(never(), 0.01)
    assert ended


async def test_an_event_that_comes_while_it_is_waited_for_is_in_time() -> None:
    event = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(in_time, event.wait(), 60)
        await anyio.lowlevel.checkpoint()
        event.set()


async def test_cancelled_wherever_it_waits_nothing_is_left_running() -> None:
    running = 0

    async def work() -> None:
        nonlocal running
        running += 1
        try:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
        finally:
            running -= 1

    async for step in cancelled_at_each_step(lambda: in_time(work(), 60)):
        assert running == 0, step


async def test_what_runs_beside_a_body_is_done_before_the_failure_of_the_body() -> None:
    told = []

    async def tell() -> None:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        told.append("logged")

    async with done_first(tell):
        pass
    assert told == ["logged"]
    with pytest.raises(KeyError, match="mine"):
        async with done_first(tell):
            raise KeyError("mine")
    assert told == ["logged", "logged"]


async def test_a_body_beside_which_something_fails_is_cancelled() -> None:
    ended = []

    async def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        async with done_first(fails):
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(True)
    assert ended == [True]
