"""The one shape of concurrency the core needs: something else, while this is done."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
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
