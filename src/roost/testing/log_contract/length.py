"""A long log costs no more than a short one."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio

from roost.domain.ledger import Batch
from roost.domain.session import Lease
from roost.ports.log import EventQuery
from roost.testing.stage import Stage, answer, message, numbers
from roost.testing.store_contract import StoreContract

_LONG: Final = 100_000
_SHORT: Final = 200
_FACTOR: Final = 5
_NOISE: Final = 0.001


_Call = Callable[[], Awaitable[object]]


async def _costs(one: _Call, other: _Call) -> tuple[float, float]:
    """Seconds for one call of each, the quickest of many: what others do on the machine only adds to it.

    All below a threshold is the same.
    """
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(21):
        for call, times in zip((one, other), took, strict=True):
            start = time.perf_counter()
            await call()
            times.append(time.perf_counter() - start)
    return max(min(took[0]), _NOISE), max(min(took[1]), _NOISE)


class Length(StoreContract):
    """Reading, listing, writing and claiming do not look through what is there."""

    async def test_a_log_of_a_hundred_thousand_entries_costs_what_a_short_one_costs(
        self, stage: Stage
    ) -> None:
        short = await self._grown(stage, _SHORT)
        long = await self._grown(stage, _LONG)
        for name, call in _CALLS.items():
            of_short, of_long = await _costs(
                partial(call, stage, short, _SHORT), partial(call, stage, long, _LONG)
            )
            assert of_long < of_short * _FACTOR, (name, of_short, of_long)

    async def test_claiming_one_of_thousands_of_sessions_costs_what_two_writes_cost(
        self, stage: Stage
    ) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(3_000):
                tasks.start_soon(stage.session)
                tasks.start_soon(stage.session, message())
        assert len(await stage.claim("node_busy", 3_000)) == 3_000
        waiting = await stage.session(message())

        async def claim_and_release() -> None:
            [lease] = await stage.claim(limit=5)
            assert lease.session_id == waiting
            await stage.log.release(lease)

        async def write_twice() -> None:
            await stage.say(waiting)
            await stage.say(waiting)

        writing, claiming = await _costs(write_twice, claim_and_release)
        assert claiming < writing * _FACTOR

    async def test_every_place_of_a_long_log_can_be_reached(self, stage: Stage) -> None:
        lease = await self._grown(stage, 20_000)
        for after in range(0, 19_950, 1_949):
            read = await stage.log.read(lease.session_id, after, 50)
            assert numbers(read) == list(range(after + 1, after + 51))

    async def _grown(self, stage: Stage, length: int) -> Lease:
        lease = await stage.running()
        await stage.take_all(lease)
        head = 4
        while head < length:
            size = min(2_000, length - head)
            written = await stage.log.append(lease, Batch(drafts=[answer()] * size))
            head = written[-1].seq
        return lease


async def _read_the_middle(stage: Stage, lease: Lease, length: int) -> None:
    assert len(await stage.log.read(lease.session_id, length // 2, 50)) == 50


async def _follow_the_end(stage: Stage, lease: Lease, length: int) -> None:
    assert len(await stage.log.read(lease.session_id, length - 5, 500)) >= 5


async def _list_the_newest(stage: Stage, lease: Lease, length: int) -> None:
    newest = EventQuery(order="desc", limit=50)
    assert len(await stage.log.page(lease.session_id, newest)) == 50


async def _list_the_oldest(stage: Stage, lease: Lease, length: int) -> None:
    assert len(await stage.log.page(lease.session_id, EventQuery(limit=50))) == 50


async def _list_from_the_middle(stage: Stage, lease: Lease, length: int) -> None:
    middle = EventQuery(after=length // 2, limit=50)
    assert len(await stage.log.page(lease.session_id, middle)) == 50


async def _look_for_inputs(stage: Stage, lease: Lease, length: int) -> None:
    assert await stage.log.inputs(lease.session_id) == []


async def _append_one(stage: Stage, lease: Lease, length: int) -> None:
    await stage.log.append(lease, Batch(drafts=[answer()]))


async def _change_hands(stage: Stage, lease: Lease, length: int) -> None:
    generation = (await stage.state(lease.session_id)).generation
    await stage.log.release(Lease(lease.session_id, lease.node, generation))
    [claimed] = await stage.claim()
    assert claimed.session_id == lease.session_id


_CALLS: Final[dict[str, Callable[[Stage, Lease, int], Awaitable[None]]]] = {
    "read the middle": _read_the_middle,
    "follow the end": _follow_the_end,
    "list the newest": _list_the_newest,
    "list the oldest": _list_the_oldest,
    "list from the middle": _list_from_the_middle,
    "look for inputs": _look_for_inputs,
    "append one": _append_one,
    "change hands": _change_hands,
}
