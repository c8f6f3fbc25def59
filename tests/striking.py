"""Strikes a coroutine when it waits for the nth time: cancels it, or breaks something that it uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal, NamedTuple

import anyio

from roost.testing.cancelling import counted

Way = Literal["scope", "task"]
WAYS: Final[tuple[Way, ...]] = ("scope", "task")
"""How something is cancelled: by a cancel scope around it, for good; or once, as a task is."""


class End(NamedTuple):
    """How it ended. `struck`: it did wait so often. Cancelled, it has neither a value nor an error."""

    struck: bool
    value: Any = None
    error: Exception | None = None


async def struck(work: Coroutine[Any, Any, Any], at: int, strike: Callable[[], object]) -> End:
    """Run `work`, and call `strike` when it waits for the `at`th time."""
    strikes: list[int] = []

    def once() -> None:
        strikes.append(at)
        strike()

    try:
        value = await counted(work, at, once)
    except Exception as error:  # noqa: BLE001 - how it ended is what is asked
        return End(bool(strikes), error=error)
    return End(bool(strikes), value)


async def cancelled(work: Coroutine[Any, Any, Any], at: int, way: Way) -> End:
    """Run `work`, and cancel it when it waits for the `at`th time."""
    if way == "scope":
        with anyio.CancelScope() as scope:
            return await struck(work, at, scope.cancel)
        return End(struck=True)
    task = asyncio.current_task()
    assert task is not None
    try:
        return await struck(work, at, task.cancel)
    except asyncio.CancelledError:
        return End(struck=True)
    finally:
        while task.cancelling():
            task.uncancel()
