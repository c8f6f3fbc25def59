"""How many threads a server has."""

from __future__ import annotations

import threading

import anyio
from anyio import to_thread

from roost.serve.main import _MOST_THREADS, bound_threads


async def test_blocking_work_waits_for_a_thread() -> None:
    bound_threads()
    lock, go = threading.Lock(), threading.Event()
    running = most = 0

    def block() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == _MOST_THREADS:
                go.set()
        go.wait(60)
        with lock:
            running -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(3 * _MOST_THREADS):
            tasks.start_soon(to_thread.run_sync, block)
    assert most == _MOST_THREADS
