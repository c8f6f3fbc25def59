"""A session's log from a cursor on, over as many connections as it takes.

Each stored event's frame carries its position as id. A new connection begins after the last one
that was given out, so nothing is lost and nothing comes twice, whatever breaks in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from roost.cli.client import ApiClient, Json, at, pauses
from roost.errors import RateLimited, Unavailable

_PREVIEWS = {"event_deltas[]": ["agent.message"]}
BEGINNING = "0"
ENDS = frozenset({"session.status_terminated", "session.deleted"})


class Following:
    """Where a reader stands in one session's log.

    `on_loss` and `on_return` are told when the connection goes and comes back. After `patience`
    seconds without one, reading gives up.
    """

    def __init__(
        self,
        client: ApiClient,
        session_id: str,
        *,
        previews: bool = False,
        patience: float = float("inf"),
        on_loss: Callable[[], None] = lambda: None,
        on_return: Callable[[], None] = lambda: None,
    ) -> None:
        self.cursor = BEGINNING
        self._client = client
        self._path = at("v1", "sessions", session_id, "events", "stream")
        self._params = _PREVIEWS if previews else {}
        self._patience = patience
        self._on_loss = on_loss
        self._on_return = on_return
        self._lost_at: float | None = None
        self._waits = pauses()

    def events(self) -> Iterator[Json]:
        """Every event after the cursor, for ever; ends with the session.

        May be abandoned and called again: the cursor moves before an event is given out.

        :raises RoostError: the server refuses, or stays away for longer than `patience`
        """
        while True:
            try:
                for event in self._connection():
                    self._connected()
                    if event:
                        yield event
                    if event.get("type") in ENDS:
                        return
            except (Unavailable, RateLimited):
                if self._away() > self._patience:
                    raise
            self._wait()

    def _connection(self) -> Iterator[Json]:
        """What one connection brings; first an empty event, which says that it is open."""
        with self._client.stream(self._path, self._params, self.cursor) as source:
            yield {}
            for frame in source:
                if frame.event == "error":
                    raise Unavailable(f"the server ended the stream: {frame.data}")
                if not frame.data:
                    continue
                event = frame.json()
                if isinstance(event, dict):
                    self.cursor = frame.id or self.cursor
                    yield event

    def _connected(self) -> None:
        if self._lost_at is not None:
            self._on_return()
            self._lost_at, self._waits = None, pauses()

    def _away(self) -> float:
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    def _wait(self) -> None:
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._on_loss()
        time.sleep(next(self._waits))


def newest(client: ApiClient, session_id: str, count: int) -> list[Json]:
    """The last few events, in order. An event that was queued and then taken up is there once."""
    path = at("v1", "sessions", session_id, "events")
    listed: list[Json] = client.get(path, {"order": "desc", "limit": count})["data"]
    return listed[::-1]


def past(client: ApiClient, session_id: str, log: Following) -> Iterator[Json]:
    """The log up to what is its end right now; nothing if it is empty yet."""
    last = newest(client, session_id, 1)
    if not last:
        return
    for event in log.events():
        yield event
        if int(log.cursor) >= last[0]["seq"]:
            return
