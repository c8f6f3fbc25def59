"""A request to the model that begins in this process: carried as one of a sandbox, without a connection in between.

It is answered by a task of the egress, as a connection is: it counts as one, ends with the grant, and what it used
is accounted for, whatever becomes of whoever has asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import anyio
import h11
from anyio.streams.memory import MemoryObjectReceiveStream

from roost.egress.wire import Headers, Holding, in_time, too_large

_AHEAD: Final = 16
"""How many pieces of an answer are held for whoever reads it; then the model's server has to wait."""


class DirectPeer:
    """Who has asked, as the proxy sees it: the other side of a `DirectAnswer`."""

    def __init__(self, body: bytes, send_seconds: float) -> None:
        self.is_unanswered = True
        self._body = body
        self._seconds = send_seconds
        self._scope = anyio.CancelScope()
        self._events, received = anyio.create_memory_object_stream[h11.Event](_AHEAD)
        self.answer = DirectAnswer(received, self._scope)

    async def held_body(self, holding: Holding, most: int) -> bytes:
        """All of the body. :raises Refusal: it is too large, or there is no room for it"""
        if len(self._body) > most:
            raise too_large(most)
        holding.add(len(self._body))
        return self._body

    async def unless_gone(self, answer: Callable[[], Awaitable[None]]) -> None:
        """Answer, until whoever has asked gives up: then the far side need not go on for it."""
        with self._scope:
            await answer()

    async def send(self, *events: h11.Event) -> None:
        """The next of the answer. :raises TimeoutError: nobody reads it :raises anyio.BrokenResourceError: or ever will"""
        for event in events:
            try:
                self._events.send_nowait(event)
            except anyio.WouldBlock:
                await in_time(self._seconds, self._events.send(event))
            self.is_unanswered = False

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer."""
        if self.is_unanswered:
            head = h11.Response(status_code=status, headers=headers)
            await self.send(head, h11.Data(data=body), h11.EndOfMessage())

    def close(self) -> None:
        """Nothing more comes: what was not answered to its end by now is cut off."""
        self._events.close()


class DirectAnswer:
    """`ports.egress.ModelReply`: the answer, as it comes."""

    def __init__(
        self, events: MemoryObjectReceiveStream[h11.Event], asked: anyio.CancelScope
    ) -> None:
        self.status = 0
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self._events = events
        self._asked = asked

    async def begun(self) -> None:
        """Wait for its head. :raises ConnectionError: there is none"""
        head = await self._next()
        if isinstance(head, h11.Response):
            self.status, self.headers = head.status_code, list(head.headers)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def _next(self) -> h11.Event:
        try:
            return await self._events.receive()
        except anyio.EndOfStream:
            raise ConnectionResetError("the answer was cut off") from None

    async def aclose(self) -> None:
        self.give_up()

    def give_up(self) -> None:
        """End the request, if it still goes on."""
        self._asked.cancel()
        self._events.close()
