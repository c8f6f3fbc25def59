"""A sandbox that is opened by the first command that is spawned in it, and not before."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import anyio

from roost.ports.sandbox import Process, Sandbox, Stats

Open = Callable[[], AbstractAsyncContextManager[Sandbox]]
Ready = Callable[[], Awaitable[Open]]

_NOTHING = Stats(memory_bytes=0, processes=0, cpu_seconds=0.0)


@asynccontextmanager
async def on_demand(ready: Ready, opening: anyio.Semaphore) -> AsyncGenerator[Sandbox, None]:
    """A sandbox for as long as the context lasts. Once it is needed, `ready` waits for what it lacks, however long
    that takes; what it returns opens the real one, once it is its turn among those that are `opening`.
    """
    sandbox = OnDemandSandbox(ready, opening)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.hold)
            yield sandbox
            sandbox.over()
            if not sandbox.is_open:  # nobody waits for what it lacks any more
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:  # callers look for their own errors, not for groups
        raise group.exceptions[0] from None


class OnDemandSandbox:
    """`ports.sandbox.Sandbox`. One task opens and closes the real one, whoever asks for it: what is opened in a
    task has to be closed in it.
    """

    has_ports = True  # the real one has, however it gets them

    def __init__(self, ready: Ready, opening: anyio.Semaphore) -> None:
        self._ready = ready
        self._opening = opening
        self._asking = anyio.Lock()
        self._wanted = anyio.Event()
        self._told = anyio.Event()
        self._over = anyio.Event()
        self._sandbox: Sandbox | None = None
        self._error: Exception | None = None

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
    ) -> Process:
        """As the sandbox does, which is opened first if it is not.

        :raises RoostError: it cannot be opened; see `core.sandbox.Sandboxes.open`
        """
        sandbox = self._sandbox or await self._asked_for()
        return await sandbox.spawn(argv, environ=environ, cwd=cwd)

    async def stats(self) -> Stats:
        """What the sandbox uses now: nothing, as long as there is none."""
        return _NOTHING if self._sandbox is None else await self._sandbox.stats()

    async def stop(self) -> None:
        """Kill everything inside the sandbox, if there is one."""
        if self._sandbox is not None:
            await self._sandbox.stop()

    @property
    def is_open(self) -> bool:
        """Whether there is a sandbox."""
        return self._sandbox is not None

    async def _asked_for(self) -> Sandbox:
        async with self._asking:
            while self._sandbox is None:
                self._wanted.set()
                await self._told.wait()
                self._told, error, self._error = anyio.Event(), self._error, None
                if error is not None:
                    raise error
            return self._sandbox

    def over(self) -> None:
        """It is not needed any more: the sandbox is closed, if there is one."""
        self._over.set()
        self._wanted.set()

    async def hold(self) -> None:
        """Open the sandbox when it is asked for, and keep it until it is over. One that cannot be opened is an
        error for whoever asked; the next one to ask has it tried again.
        """
        while True:
            await self._wanted.wait()
            if self._over.is_set():
                return
            self._wanted = anyio.Event()
            try:
                opened = await self._ready()
                async with AsyncExitStack() as stack:
                    async with self._opening:
                        self._sandbox = await stack.enter_async_context(opened())
                    self._told.set()
                    await self._over.wait()
            except Exception as error:
                if self._sandbox is not None:  # it was open: whoever holds it has to know
                    raise
                self._error = error
                self._told.set()
            else:
                return
