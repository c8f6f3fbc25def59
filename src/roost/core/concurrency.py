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
    begun = _Begun(awaitable)
    if not begun.done:
        with anyio.fail_after(seconds):
            await begun
    return begun.result


class _Begun(Generic[T]):
    """Something to await, run up to its first wait; what is left of it is awaited by the same task, next."""

    __slots__ = ("_steps", "_waits_for", "done", "result")

    result: T

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self._steps = awaitable.__await__()
        self.done = False
        self._waits_for = self._go_on(next, self._steps)

    def __await__(self) -> Generator[Any, Any, None]:
        while not self.done:
            try:
                sent = yield self._waits_for
            except BaseException as error:  # noqa: BLE001 - it is told, whatever that is
                self._waits_for = self._go_on(self._steps.throw, error)
            else:
                self._waits_for = self._go_on(self._steps.send, sent)

    def _go_on(self, step: Callable[[Any], Any], given: object) -> Any:
        """What it waits for next."""
        try:
            return step(given)
        except StopIteration as end:
            self.done, self.result = True, end.value
            return None


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
