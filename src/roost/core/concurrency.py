"""The shapes of concurrency the core needs: something else while this is done, and a few at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVarTuple

import anyio

Args = TypeVarTuple("Args")


@asynccontextmanager
async def alongside(
    background: Callable[[*Args], Coroutine[Any, Any, object]], *args: *Args
) -> AsyncGenerator[None, None]:
    """Run `background` while the body runs; whichever fails, fails plainly, without a group."""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(background, *args)
            yield
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


Work = Callable[[], Awaitable[object]]


@asynccontextmanager
async def a_few_at_once(most: int) -> AsyncGenerator[Callable[[Work], Awaitable[None]], None]:
    """A way to start work, which waits while `most` are under way; all is done when the body ends.

    The first failure ends the others and the body, and is raised plainly, without a group.
    """
    slots = anyio.Semaphore(most)

    async def run(work: Work) -> None:
        try:
            await work()
        finally:
            slots.release()

    async def start(work: Work) -> None:
        await slots.acquire()
        tasks.start_soon(run, work)

    try:
        async with anyio.create_task_group() as tasks:
            yield start
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
