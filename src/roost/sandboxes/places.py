"""Which session's place is open, so that an older generation is gone before a newer one is; and how it ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

import anyio

from roost.errors import SandboxUnavailable
from roost.ports.sandbox import Plan


class _Stoppable(Protocol):
    async def stop(self) -> None: ...


T = TypeVar("T", bound=_Stoppable)


class Ending:
    """The end of a place: brought about once, however many ask for it, and waited for by all of them."""

    def __init__(self) -> None:
        self._gone = anyio.Event()
        self.begun = False

    async def reach(self, kill: Callable[[], Awaitable[None]]) -> None:
        """Not to be broken off: half a kill would leave something running that nobody knows of."""
        if self.begun:
            await self._gone.wait()
            return
        self.begun = True
        with anyio.CancelScope(shield=True):
            try:
                await kill()
            finally:
                self._gone.set()


class Seat(Generic[T]):
    """A place that is open, or is being opened."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.settled = anyio.Event()
        self._place: T | None = None

    def take(self, place: T) -> None:
        """It is open now."""
        self._place = place
        self.settled.set()

    async def empty(self) -> None:
        """Stop what is open, or is about to be."""
        await self.settled.wait()
        if self._place is not None:
            await self._place.stop()


class Places(Generic[T]):
    """The places of one provider in this process; those of others are found by `leftovers`."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat[T]] = {}

    @asynccontextmanager
    async def seat(self, plan: Plan) -> AsyncGenerator[Seat[T], None]:
        """The session's, once an older generation's place is gone.

        :raises SandboxUnavailable: the same or a newer generation is open
        """
        older = self._seats.get(plan.session_id)
        if older is not None and older.generation >= plan.generation:
            raise SandboxUnavailable(
                f"generation {older.generation} of {plan.session_id} is open",
                hint="Claim the session again: each claim raises its generation.",
            )
        seat: Seat[T] = Seat(plan.generation)
        self._seats[plan.session_id] = seat
        try:
            if older is not None:
                await older.empty()
            yield seat
        finally:
            seat.settled.set()
            if self._seats.get(plan.session_id) is seat:
                del self._seats[plan.session_id]
