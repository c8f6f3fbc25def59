"""What the API knows of the server it is part of: whether it serves, and the streams that are open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from anyio import CancelScope

from roost.errors import TooManyStreams


class OpenStreams:
    """The streams that are open now, so that a stopping server can end them.

    `others` are told, too: whoever else has connections that end with the server, a key or a login.
    """

    def __init__(self) -> None:
        self._open: dict[CancelScope, tuple[str, str | None]] = {}
        self.others: list[Callable[[str | None], None]] = []
        self.openers_of_others: list[Callable[[], Iterable[tuple[str, str | None]]]] = []

    def __len__(self) -> int:
        return len(self._open)

    def openers(self) -> set[tuple[str, str | None]]:
        """The keys and logins that have something open."""
        found = set(self._open.values())
        for openers in self.openers_of_others:
            found.update(openers())
        return found

    def check(self, key_id: str, most: int) -> None:
        """Whether a key may open another one. :raises TooManyStreams: it has `most`, if not 0"""
        if most and sum(key == key_id for key, _ in self._open.values()) >= most:
            raise TooManyStreams(f"this key has {most} event streams open already")

    def close(self, opener: str | None = None) -> None:
        """End all of them, or those of one key or login: each client sees a clean end."""
        for scope, openers in self._open.items():
            if opener is None or opener in openers:
                scope.cancel()
        for close in self.others:
            close(opener)

    @contextmanager
    def opened(
        self, key_id: str, login_id: str | None = None
    ) -> Generator[CancelScope, None, None]:
        """A scope for one stream; it is cancelled when the stream has to end."""
        with CancelScope() as scope:
            self._open[scope] = key_id, login_id
            try:
                yield scope
            finally:
                del self._open[scope]


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """Whether the server can serve, and whether it is about to leave.

    `ready` tells more about it, or raises a RoostError if it cannot serve. `draining`: it hands its work over,
    and clients had better go to another node. `stopping`: it will be gone soon, and calls `streams.close()`.
    """

    ready: Callable[[], Awaitable[dict[str, Any]]]
    draining: Callable[[], bool]
    stopping: Callable[[], bool]
    streams: OpenStreams = field(default_factory=OpenStreams)
