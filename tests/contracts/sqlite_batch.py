"""Operations of tests, and calls that end up in one batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio

from roost.stores.sqlite import SqliteStore
from roost.stores.sqlite.transaction import SqliteTransaction


@dataclass(frozen=True)
class Doing:
    """An operation that does whatever a test wants on the writer's thread."""

    work: Callable[[SqliteTransaction], Any]

    def on(self, tx: SqliteTransaction) -> Any:
        return self.work(tx)


async def together(store: SqliteStore, *calls: Any) -> list[Any]:
    """The outcomes of calls that are committed in one batch: the writer is held while they gather."""
    gate = threading.Event()
    outcomes: list[Any] = [None] * len(calls)

    async def call(n: int) -> None:
        try:
            outcomes[n] = await calls[n]
        except Exception as error:  # noqa: BLE001 - the outcome is what the test looks at
            outcomes[n] = error

    async with anyio.create_task_group() as tasks:
        store._writer.do(Doing(lambda tx: gate.wait(60)))
        await anyio.sleep(0.02)
        for n in range(len(calls)):
            tasks.start_soon(call, n)
        await anyio.sleep(0.02)
        gate.set()
    return outcomes
