"""Which sandboxes are open on a node."""

from __future__ import annotations

from typing import cast

from roost.core.sandbox.running import RunningSandboxes
from roost.ports.sandbox import Sandbox, Stats


class Idle:
    """Uses something."""

    def __init__(self, processes: int) -> None:
        self.processes = processes

    async def stats(self) -> Stats:
        return Stats(memory_bytes=0, processes=self.processes, cpu_seconds=0.0)


async def test_the_end_of_an_older_one_does_not_hide_a_newer_one() -> None:
    running = RunningSandboxes()
    older = running.having("sesn_1", cast(Sandbox, Idle(1)))
    newer = running.having("sesn_1", cast(Sandbox, Idle(2)))
    older.__enter__()
    newer.__enter__()
    older.__exit__(None, None, None)
    found = await running.stats("sesn_1")
    assert found is not None
    assert found.processes == 2
    newer.__exit__(None, None, None)
    assert await running.stats("sesn_1") is None
