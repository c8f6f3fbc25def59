"""Two bells that hear each other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from roost.stores.postgres import PostgresBell


@asynccontextmanager
async def two_bells(url: str) -> AsyncGenerator[tuple[PostgresBell, PostgresBell]]:
    """Both connected: each has heard the other."""
    async with PostgresBell.open(url) as here, PostgresBell.open(url) as there:
        await _heard(here, there)
        await _heard(there, here)
        yield here, there


async def _heard(listening: PostgresBell, ringing: PostgresBell) -> None:
    with listening.listen("hello") as ear:
        for _ in range(300):
            ringing.ring("hello")
            if await ear.wait(0.1):
                return
    raise AssertionError("the bells do not hear each other")
