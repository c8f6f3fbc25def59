"""Which session's sandbox is open, so that an older generation is gone before a newer one is; and how it ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

import anyio

from roost.errors import SandboxUnavailable
from roost.ports.sandbox_provider import Plan


class _Stoppable(Protocol):
    async def stop(self) -> None: ...


T = TypeVar("T", bound=_Stoppable)


class Ending:
    """The end of a sandbox: it is killed once, however many ask for it, and all of them wait for that."""

    def __init__(self) -> None:
        self._gone = anyio.Event()
        self.begun = False

    async def reach(self, kill: Callable[[], Awaitable[None]]) -> None:
        """Kill it, and wait until it is gone. This is not cancelled: half a kill would leave something running that nobody knows of."""
        if self.begun:
            await self._gone.wait()
            return
        self.begun = True
        with anyio.CancelScope(shield=True):
            try:
                await kill()
            finally:
                self._gone.set()


class SandboxSlot(Generic[T]):
    """A sandbox that is open, or is being opened."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.settled = anyio.Event()
        self._sandbox: T | None = None

    def take(self, sandbox: T) -> None:
        """The sandbox is open now, and can be stopped."""
        self._sandbox = sandbox
        self.settled.set()

    async def empty(self) -> None:
        """Stop what is open, or is about to be."""
        await self.settled.wait()
        if self._sandbox is not None:
            await self._sandbox.stop()


class OpenSandboxes(Generic[T]):
    """The sandboxes of one provider in this process; those of others are found by `leftovers`."""

    def __init__(self) -> None:
        self._slots: dict[str, SandboxSlot[T]] = {}

    @asynccontextmanager
    async def slot(self, plan: Plan) -> AsyncGenerator[SandboxSlot[T], None]:
        """The session's, once an older generation's sandbox is gone.

        :raises SandboxUnavailable: the same or a newer generation is open
        """
        older = self._slots.get(plan.session_id)
        if older is not None and older.generation >= plan.generation:
            raise SandboxUnavailable(
                f"generation {older.generation} of {plan.session_id} is open",
                hint="Claim the session again: each claim raises its generation.",
            )
        slot: SandboxSlot[T] = SandboxSlot(plan.generation)
        self._slots[plan.session_id] = slot
        try:
            if older is not None:
                await older.empty()
            yield slot
        finally:
            slot.settled.set()
            if self._slots.get(plan.session_id) is slot:
                del self._slots[plan.session_id]
