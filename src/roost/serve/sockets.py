"""The server's end of a WebSocket: uvicorn's, with what the gateway needs beyond ASGI."""

from __future__ import annotations

from typing import Final, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import SecurityError
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from roost.errors import HeadTooLarge, InvalidRequest
from roost.gateway.connection import EXTENSION
from roost.serve.connections import CountedConnection, answer

_UPGRADE: Final = 101
_POLICY: Final = 1008
_MOST_PARTS: Final = 1024  # frames of one message
_MOST_PONGS: Final = 8 * 1024 * 1024  # bytes that wait to be read when another ping comes
_PATIENCE: Final = (
    3.0  # seconds for a client to answer a goodbye, or to read what it has left unread
)


class WebSocketConnection(CountedConnection, WebSocketsSansIOProtocol):
    """A `gateway.connection.ClientConnection`. Built on uvicorn's inside: the version is pinned, and tests hold it."""

    _heard = 0.0

    @property
    def last_heard(self) -> float:
        """While the server does not read, because of what it was sent before, nobody can be silent."""
        return self.loop.time() if self.read_paused else self._heard

    async def receive(self) -> ASGIReceiveEvent:
        """The client has until now to be heard again: from here on it may be read from."""
        message = await super().receive()
        self._heard = self.loop.time()
        return message

    def data_received(self, data: bytes) -> None:
        """Any sign of life counts. A handshake that cannot be read is answered, too."""
        self._heard = self.loop.time()
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse(self.conn.handshake_exc)

    def _refuse(self, reason: Exception) -> None:
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        message = f"this WebSocket handshake cannot be read: {reason}"
        large = isinstance(reason, SecurityError)
        self.transport.write(answer(HeadTooLarge(message) if large else InvalidRequest(message)))
        self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """The application finds its connection in the scope."""
        self._heard = self.loop.time()
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
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # it was: uvicorn would write an error line for each
        if message["type"] == "websocket.accept":
            del self.request, self.response
            self.scope["headers"] = []

    def write(self, frames: bytes) -> int:
        """Without waiting; whoever sends more than is read learns it from the number."""
        if self.close_sent or self.transport.is_closing():
            return 0
        self.transport.write(frames)
        if not self.writable.is_set():
            self.all_connections.filled(self)
        return self.transport.get_write_buffer_size()

    def handle_cont(self, event: Frame) -> None:
        """A message does not come in any number of parts: each costs more than what is in it."""
        if len(self.frames) >= _MOST_PARTS:
            self.frames = []
            self.hang_up(_POLICY, "a message of too many parts")
        elif not self.close_sent:
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Whoever asks whether we are there has to read the answers."""
        super().handle_ping()
        if self.transport.get_write_buffer_size() > _MOST_PONGS:
            self.all_connections.drop(self)

    def hang_up(self, code: int, reason: str) -> None:
        """A second call does nothing: the first one has closed it."""
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
