"""The connection under a WebSocket, as the gateway needs it: one that never makes it wait.

The server's protocol class gives it (`serve/sockets.py`): ASGI can neither ping nor say how much a
client has left unread.
"""

from __future__ import annotations

from typing import Final, Protocol

EXTENSION: Final = "roost.connection"
"""Where a WebSocket's scope has its connection, among its extensions."""


class ClientConnection(Protocol):
    """The server's end of one WebSocket."""

    @property
    def last_heard(self) -> float:
        """When the client last sent anything, a pong included, by the loop's clock; now, while it is not
        read from.
        """
        ...

    def write(self, frames: bytes) -> int:
        """Send frames as they are; gives how many bytes wait to be read by the client."""
        ...

    def hang_up(self, code: int, reason: str) -> None:
        """Send a close frame, and cut the connection soon, whether the client answers or not."""
        ...

    def ping(self) -> None:
        """Ask the client for a sign of life."""
        ...

    async def drained(self) -> None:
        """Returns when the client has read most of what was sent."""
        ...


def text(payload: bytes) -> bytes:
    """A text frame. It is made once, and sent to all followers."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65_536:
        return b"\x81\x7e" + size.to_bytes(2) + payload
    return b"\x81\x7f" + size.to_bytes(8) + payload
