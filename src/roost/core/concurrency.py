"""The shapes of concurrency the core needs: something else while this is done, and a few at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar, TypeVarTuple

import anyio

T = TypeVar("T")
Args = TypeVarTuple("Args")


async def in_time(awaitable: Awaitable[T], seconds: float) -> T:
    """What it gives, without the cost of a deadline if that is there already. :raises TimeoutError:"""
    steps = awaitable.__await__()
    try:
        waits_for = next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    with anyio.fail_after(seconds):
        return await _Begun(steps, waits_for)


class _Begun(Generic[T]):
    """What was awaited up to its first wait; the rest is awaited by the same task, before anything else."""

    def __init__(self, steps: Generator[Any, Any, T], waits_for: object) -> None:
        self._steps = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        while True:
            step: Callable[[Any], object] = self._steps.send
            try:
                given = yield self._waits_for
            except BaseException as error:  # noqa: BLE001 - it is told, whatever that is
                step, given = self._steps.throw, error
            try:
                self._waits_for = step(given)
            except StopIteration as end:
                result: T = end.value
                return result


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


@asynccontextmanager
async def done_first(
    background: Callable[[*Args], Coroutine[Any, Any, object]], *args: *Args
) -> AsyncGenerator[None, None]:
    """Run `background` while the body runs, and wait for it before what follows: a failure of the body, too.

    If `background` itself fails, the body is cancelled, and that failure is raised plainly, without a group.
    """
    failure = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(background, *args)
            try:
                yield
            except Exception as error:  # noqa: BLE001 - raised below
                failure = error
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    if failure is not None:
        raise failure


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
