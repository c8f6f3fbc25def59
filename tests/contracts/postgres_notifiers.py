"""Two notifiers that hear each other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from roost.stores.postgres import PostgresNotifier


@asynccontextmanager
async def two_notifiers(url: str) -> AsyncGenerator[tuple[PostgresNotifier, PostgresNotifier]]:
    """Both connected: each has heard the other."""
    async with PostgresNotifier.open(url) as here, PostgresNotifier.open(url) as there:
        await _heard(here, there)
        await _heard(there, here)
        yield here, there


async def _heard(one: PostgresNotifier, other: PostgresNotifier) -> None:
    with one.subscribe("hello") as subscription:
        for _ in range(300):
            other.notify("hello")
            if await subscription.wait(0.1):
                return
    raise AssertionError("the notifiers do not hear each other")
