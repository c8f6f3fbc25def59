"""The server's end of a WebSocket: uvicorn's, with what the gateway needs beyond ASGI."""

from __future__ import annotations

from typing import Final, cast

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from roost.gateway.line import EXTENSION

_UPGRADE: Final = 101
_PATIENCE: Final = (
    3.0  # seconds for a client to answer a goodbye, or to read what it has left unread
)


class WebSocketLine(WebSocketsSansIOProtocol):
    """A `gateway.line.Line`. Built on uvicorn's inside: the version is pinned, and tests hold it."""

    heard = 0.0

    def data_received(self, data: bytes) -> None:
        """Any sign of life counts."""
        self.heard = self.loop.time()
        super().data_received(data)

    def handle_connect(self, event: Request) -> None:
        """The application finds its line in the scope."""
        self.heard = self.loop.time()
        super().handle_connect(event)
        if self.response.status_code == _UPGRADE:
            self._extensions()[EXTENSION] = self

    def connection_lost(self, exc: Exception | None) -> None:
        """Without the circle from the scope back to here, which the garbage collector would find late."""
        if hasattr(self, "scope"):
            self._extensions().pop(EXTENSION, None)
        super().connection_lost(exc)

    def _extensions(self) -> dict[str, object]:
        return cast(dict[str, object], self.scope["extensions"])

    async def send(self, message: ASGISendEvent) -> None:
        """Once it is open, nobody looks at how it was opened."""
        await super().send(message)
        if message["type"] == "websocket.accept":
            del self.request, self.response
            self.scope["headers"] = []

    def write(self, frames: bytes) -> int:
        """Without waiting; whoever sends more than is read learns it from the number."""
        if self.close_sent or self.transport.is_closing():
            return 0
        self.transport.write(frames)
        return self.transport.get_write_buffer_size()

    def hang_up(self, code: int, reason: str) -> None:
        """Twice: once."""
        if self.close_sent or self.conn.state is not State.OPEN or self.transport.is_closing():
            return
        self.close_sent = True
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(_PATIENCE, self.transport.abort)

    def ping(self) -> None:
        """Its answer is a sign of life like any other."""
        if not (self.close_sent or self.transport.is_closing()):
            self.conn.send_ping(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))

    async def drained(self) -> None:
        """Returns at once when the connection is gone."""
        await self.writable.wait()
