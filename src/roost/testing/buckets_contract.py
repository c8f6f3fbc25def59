"""The contract of buckets: subclass, give the fixture `store`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import anyio

from roost.ports.buckets import TokensTaken
from roost.testing.stage import Stage
from roost.testing.store_contract import StoreContract


class BucketsContract(StoreContract):
    """What rates rely on, whichever database is behind them."""

    async def test_a_bucket_is_full_at_first_and_then_has_what_is_left(self, stage: Stage) -> None:
        buckets = stage.store.buckets
        assert await buckets.take("a", 10, 4) == TokensTaken(4, 6.0)
        second = await buckets.take("a", 10, 4)
        assert second.tokens == 4
        assert 2 <= second.left < 6
        assert (await buckets.take("a", 10, 40)).tokens >= 2
        assert await buckets.take("b", 3, 40) == TokensTaken(3, 0.0)

    async def test_whole_tokens_only_and_they_come_in_with_time(self, stage: Stage) -> None:
        buckets = stage.store.buckets
        assert (await buckets.take("a", 600, 600)).tokens == 600
        with anyio.fail_after(30):
            again = TokensTaken(0, 0.0)
            while not again.tokens:
                again = await buckets.take("a", 600, 600)
        assert 1 <= again.tokens < 600
        assert 0 <= again.left < 1

    async def test_who_takes_at_the_same_time_never_gets_the_same_token(self, stage: Stage) -> None:
        got: list[int] = []

        async def take() -> None:
            got.append((await stage.store.buckets.take("a", 60, 7)).tokens)

        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(take)
        # One comes in each second: a slow machine may see some of these.
        assert 60 <= sum(got) < 120

    async def test_a_smaller_limit_holds_at_once(self, stage: Stage) -> None:
        buckets = stage.store.buckets
        await buckets.take("a", 1000, 1)
        assert (await buckets.take("a", 5, 100)).tokens == 5
