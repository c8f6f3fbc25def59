"""A sandbox that is opened when it is needed: once, by one task, whoever asks and whoever gives up."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from roost.core.sandbox.on_demand import Open, on_demand
from roost.errors import SandboxFailed, SandboxUnavailable
from roost.ports.sandbox import Stats


class Opened:
    """The real sandbox, which notes what becomes of it. It cannot be opened `failures` times."""

    has_ports = True

    def __init__(self, failures: int = 0, seconds: float = 0.0) -> None:
        self.log: list[str] = []
        self._failures = failures
        self._seconds = seconds
        self._task: object = None

    async def ready(self) -> Open:
        return self.open

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Opened, None]:
        self.log.append("opening")
        self._task = anyio.get_current_task().id
        await anyio.sleep(self._seconds)
        if self._failures:
            self._failures -= 1
            raise SandboxUnavailable("not now")
        self.log.append("open")
        try:
            yield self
        finally:
            assert self._task == anyio.get_current_task().id, "whoever opens it closes it"
            self.log.append("closed")

    async def spawn(
        self, argv: Sequence[str], *, environ: Mapping[str, str] | None = None, cwd: str = "/"
    ) -> Any:
        self.log.append(argv[0])

    async def stats(self) -> Stats:
        return Stats(memory_bytes=7, processes=1, cpu_seconds=0.0)

    async def stop(self) -> None:
        self.log.append("stopped")


async def test_it_is_opened_once_by_the_first_command_and_closed_at_the_end() -> None:
    real = Opened(seconds=0.01)
    async with on_demand(real.ready, anyio.Semaphore(1)) as sandbox:
        assert (await sandbox.stats()).memory_bytes == 0
        await sandbox.stop()
        assert real.log == []
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(sandbox.spawn, ["run"])
        assert real.log == ["opening", "open", *["run"] * 5]
        assert (await sandbox.stats()).memory_bytes == 7
    assert real.log[-1] == "closed"


async def test_one_that_is_never_needed_is_never_opened() -> None:
    real = Opened()
    async with on_demand(real.ready, anyio.Semaphore(1)):
        await anyio.lowlevel.checkpoint()
    assert real.log == []


async def test_one_that_cannot_be_opened_is_tried_again_by_the_next_who_asks() -> None:
    real = Opened(failures=2)
    async with on_demand(real.ready, anyio.Semaphore(1)) as sandbox:
        for _ in range(2):
            with pytest.raises(SandboxUnavailable, match="not now"):
                await sandbox.spawn(["run"])
        await sandbox.spawn(["run"])
    assert real.log == ["opening", "opening", "opening", "open", "run", "closed"]


async def test_whoever_gives_up_waiting_leaves_it_to_the_next() -> None:
    real = Opened(seconds=0.05)
    async with on_demand(real.ready, anyio.Semaphore(1)) as sandbox:
        with anyio.move_on_after(0.01):
            await sandbox.spawn(["given up"])
        await sandbox.spawn(["run"])
    assert real.log == ["opening", "open", "run", "closed"]


async def test_it_is_closed_also_if_its_user_fails_or_is_cancelled() -> None:
    real = Opened()
    with pytest.raises(SandboxFailed, match="my own"):
        async with on_demand(real.ready, anyio.Semaphore(1)) as sandbox:
            await sandbox.spawn(["run"])
            raise SandboxFailed("my own")
    with anyio.CancelScope() as scope:
        async with on_demand(real.ready, anyio.Semaphore(1)) as sandbox:
            await sandbox.spawn(["run"])
            scope.cancel()
            await anyio.sleep_forever()
    assert real.log == ["opening", "open", "run", "closed"] * 2


async def test_so_many_are_opened_at_once() -> None:
    real, turns = [Opened(seconds=0.02) for _ in range(4)], anyio.Semaphore(2)
    most = 0

    async def use(each: Opened) -> None:
        nonlocal most
        async with on_demand(each.ready, turns) as sandbox:
            await sandbox.spawn(["run"])
            await anyio.sleep(0.2)

    async def watch() -> None:
        nonlocal most
        for _ in range(40):
            most = max(most, sum(each.log[-1:] == ["opening"] for each in real))
            await anyio.sleep(0.002)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        for each in real:
            tasks.start_soon(use, each)
    assert most == 2


async def test_whoever_waits_for_what_it_lacks_has_no_turn_yet() -> None:
    lacking, other, turns = Opened(), Opened(), anyio.Semaphore(1)
    may_go_on = anyio.Event()

    async def ready() -> Open:
        lacking.log.append("waiting")
        await may_go_on.wait()
        return lacking.open

    async with (
        on_demand(ready, turns) as first,
        on_demand(other.ready, turns) as second,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(first.spawn, ["run"])
        await anyio.wait_all_tasks_blocked()
        await second.spawn(["run"])
        assert (lacking.log, other.log) == (["waiting"], ["opening", "open", "run"])
        may_go_on.set()
    assert lacking.log == ["waiting", "opening", "open", "run", "closed"]
