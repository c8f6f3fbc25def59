"""An event stream: frames, signs of life, previews, and how it ends.

Plain ASGI: one task writes the tail of the log to the connection, another waits for the client to
hang up. The tail is pulled, so a slow reader holds back only itself. Every frame of a logged event
carries its seq as `id`, so `Last-Event-ID` goes on exactly where a connection broke.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

import anyio
import msgspec
from anyio import CancelScope
from starlette.types import Receive, Scope, Send

from roost.api.framework.errors import envelope
from roost.api.framework.server import ServerState
from roost.core.read.follow import Follow, Pause, Shown
from roost.domain.events import Entry, Preview, iso
from roost.domain.session import Session, Status
from roost.errors import RoostError
from roost.ports.drafts import new_draft

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_ALIVE: Final = b": alive\n\n"


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """What a client asked for when it opened a stream.

    `after`: the seq it begins behind. `resumes`: the client named that seq, because it was here before.
    `openers`: the key and the login that the stream ends with. `until`: waits for what else it ends with.
    """

    session: Session
    after: int
    resumes: bool
    previews: frozenset[str]
    openers: tuple[str, str | None]
    request_id: str
    until: Callable[[], Awaitable[None]] | None = None


class EventStream:
    """The response of a stream: an ASGI application for one connection."""

    def __init__(self, follow: Follow, server: ServerState, asked: StreamRequest) -> None:
        session = asked.session
        self._follow = follow
        self._streams = server.streams
        self._stopping = server.stopping
        self._session_id = session.id  # not the session: 2,000 idle streams would hold its agent
        self._counts = not asked.resumes
        self._after = asked.after
        self._previews = asked.previews
        self._openers = asked.openers
        self._request_id = asked.request_id
        self._until = asked.until
        # A session that has ended says nothing more: the stream ends where its log does.
        ended = session.state.status is Status.TERMINATED
        self._last = session.state.head if ended else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the session, the client or the server ends it."""
        with self._streams.opened(*self._openers) as stream:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await send(_body(_ALIVE))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_hang_up, receive, stream)
                if self._until is not None:
                    tasks.start_soon(_end_after, self._until, stream)
                await self._send_until_it_fails(send)
                tasks.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _send_until_it_fails(self, send: Send) -> None:
        try:
            await self._send_tail(send)
        except RoostError as error:
            await send(_body(self._failure(error)))
        except Exception:  # noqa: BLE001 - the client must be told, in the stream's own words
            _log.exception("stream failed", extra={"session": self._session_id, "action": "stream"})
            await send(_body(self._failure(RoostError())))

    async def _send_tail(self, send: Send) -> None:
        if self._last is not None and self._after >= self._last:
            return
        tail = self._follow.tail(
            self._session_id, self._after, previews=self._previews, counts=self._counts
        )
        async with aclosing(tail) as shown:
            async for item in shown:
                if frame := _frame(item):
                    await send(_body(frame))
                if self._is_over(item):
                    return
                del item, frame  # they may be large, and the next ones long in coming

    def _is_over(self, item: Shown) -> bool:
        if isinstance(item, Entry):
            ended = item.type == "session.status_terminated" or item.seq == self._last
            return ended or self._stopping()
        return item is Pause.GONE or self._stopping()

    def _failure(self, error: RoostError) -> bytes:
        return b"event: error\ndata: %b\n\n" % _encode(envelope(error, self._request_id))


async def _hang_up(receive: Receive, stream: CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.cancel()


async def _end_after(wait: Callable[[], Awaitable[None]], stream: CancelScope) -> None:
    with suppress(RoostError):  # who cannot be asked about the end does not stay
        await wait()
    stream.cancel()


def _body(chunk: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": chunk, "more_body": True}


def _frame(item: Shown) -> bytes:
    if isinstance(item, Entry):
        return b"event: message\nid: %d\ndata: %b\n\n" % (item.seq, item.json())
    if isinstance(item, Preview):
        return _preview_frame(item)
    if item is Pause.GONE:
        return _data(_deleted())
    return _ALIVE


def _preview_frame(preview: Preview) -> bytes:
    if not preview.text:
        start = {"type": preview.type, "id": preview.event_id}
        return _data(_encode({"type": "event_start", "event": start}))
    if preview.type != "agent.message":
        return b""  # of thinking, only that it began is shown
    delta = {
        "type": "content_delta",
        "index": 0,
        "content": {"type": "text", "text": preview.text},
    }
    shown = {"type": "event_delta", "event_id": preview.event_id, "delta": delta}
    return _data(_encode(shown))


def _data(json: bytes) -> bytes:
    return b"event: message\ndata: %b\n\n" % json


def _deleted() -> bytes:
    """The `session.deleted` event, which is in no log, because the log is gone."""
    draft = new_draft("session.deleted")
    now = iso(time.time_ns() // 1000)
    return _encode({"type": draft.type, "id": draft.id, "processed_at": now})
