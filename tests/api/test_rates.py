"""Rates that several servers count together."""

from __future__ import annotations

from typing import Any

import pytest

from roost.api.access.rates import RateLimiter
from roost.config import Settings
from roost.errors import RateLimited
from roost.ports.buckets import TokensTaken
from roost.ports.keys import Key, UsageLimits
from roost.stores.local import LocalBuckets

KEY = Key(id="key_1", tenant="t", name="k", role="user", digest=b"", hint="", created_at=0)


class Counted(LocalBuckets):
    """Buckets that count how often they are asked, at a time that stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def take(self, name: str, limit: int, most: int) -> TokensTaken:
        self.asked += 1
        return await super().take(name, limit, most)


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    for clock in ("roost.api.access.rates.monotonic", "roost.stores.local.anyio.current_time"):
        monkeypatch.setattr(clock, lambda: 1000.0)


def server(buckets: LocalBuckets, **limits: Any) -> RateLimiter:
    return RateLimiter(buckets, writes_per_minute=limits.get("writes", 0), reads_per_minute=600)


async def spent(rates: RateLimiter, times: int) -> int:
    """How many of so many requests were let through."""
    passed = 0
    for _ in range(times):
        try:
            await rates.count(KEY, "reads", {})
            passed += 1
        except RateLimited:
            pass
    return passed


async def test_servers_share_one_limit_and_ask_for_a_second_s_worth_at_a_time():
    buckets = Counted()
    red, blue = server(buckets), server(buckets)
    assert await spent(red, 305) == 305
    assert await spent(blue, 400) == 290, "what one server has taken, the other has not"
    assert await spent(red, 400) == 5
    assert buckets.asked <= 2 + 600 / 10
    asked = buckets.asked
    assert await spent(red, 100) + await spent(blue, 100) == 0
    assert buckets.asked == asked, "who is refused costs the database nothing"


async def test_what_is_left_counts_what_the_server_holds():
    rates, headers = server(LocalBuckets()), {}
    for left in range(599, 575, -1):
        await rates.count(KEY, "reads", headers)
        assert headers["anthropic-ratelimit-requests-remaining"] == str(left)
    await rates.count(KEY, "writes", headers := {})
    assert headers == {}, "there is no limit"


async def test_a_key_s_own_limit_that_was_changed_holds_at_once():
    buckets = LocalBuckets()
    rates = server(buckets)
    assert await spent(rates, 1) == 1
    own = Key(
        id="key_1",
        tenant="t",
        name="k",
        role="user",
        digest=b"",
        hint="",
        created_at=0,
        limits=UsageLimits(reads_per_minute=1),
    )
    await rates.count(own, "reads", {})
    with pytest.raises(RateLimited) as refused:
        await rates.count(own, "reads", {})
    assert 59 <= refused.value.retry_after <= 60
    rates.forget("key_1")
    with pytest.raises(RateLimited):
        await rates.count(own, "reads", {})


async def test_writes_have_a_bound_by_default():
    limit = Settings().writes_per_minute
    rates = server(LocalBuckets(), writes=limit)
    for _ in range(limit):
        await rates.count(KEY, "writes", {})
    with pytest.raises(RateLimited):
        await rates.count(KEY, "writes", {})
