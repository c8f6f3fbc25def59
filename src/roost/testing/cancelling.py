"""Cancels code at every place where it waits.

A promise such as "a connection is closed, whatever happens" has to hold wherever a cancellation arrives.
`cancelled_at_each_step` tries all of those places, one after another:

    async def work() -> None:
        async with pool.connection() as connection:
            await connection.execute("select 1")

    async for step in cancelled_at_each_step(work):
        assert pool.in_use == 0, f"a connection was kept after the cancellation at step {step}"

Cancellation is anyio's, as in the server: once it was asked for, every later wait that is not shielded is
cancelled too. What other tasks do (a task group of `work`, a server in the test) is not counted, and goes on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from itertools import count
from types import coroutine
from typing import Any

import anyio

Work = Callable[[], Coroutine[Any, Any, object]]


async def cancelled_at_each_step(
    work: Work, *, first: int = 1, apart: int = 1
) -> AsyncGenerator[int, None]:
    """Run `work()` again and again; the run with the number N is cancelled where it waits the Nth time.

    Yields N after each run, so that the caller can check what was left behind. The last N is that of the
    run that ended before it had waited so often: it was not cancelled. An exception of `work` other than
    the cancellation is raised, with a note that says N. Where a run takes long, N may grow by `apart`.
    """
    for step in count(first, apart):
        cancelled = await cancelled_at_step(work, step)
        yield step
        if not cancelled:
            return


async def cancelled_at_step(work: Work, step: int) -> bool:
    """Run `work()` once, cancelled where it waits for the Nth time; whether it waited so often."""
    with anyio.CancelScope() as scope:
        try:
            await counted(work(), step, scope.cancel)
        except Exception as error:
            error.add_note(f"cancelled at step {step}")
            raise
    return scope.cancel_called


@coroutine
def counted(
    work: Coroutine[Any, Any, object], step: int, cancel: Callable[[], None]
) -> Generator[Any, Any, object]:
    """Drives a coroutine by hand, because only its driver sees each time it waits."""
    thrown: BaseException | None = None
    waited = 0
    while True:
        try:
            waits_for = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as end:
            return end.value
        waited += 1
        if waited == step:
            cancel()
        try:
            thrown = None
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - it belongs to the coroutine, also a cancellation
            thrown = error
