"""Sends files that nobody has checked to browsers that would trust them.

A page or a drawing from a sandbox must never run as this server's own: everything is sent as an
attachment, with a policy that runs nothing, and is taken for what it is called, not for what it looks
like. Only kinds that cannot carry a program may be asked for inline.

It is not Starlette's `FileResponse`, which opens a path when it answers. A file in a sandbox is opened once,
without following links; opened again by its path, it could be another one that the agent has put there. Other
downloads have no path: they are in a blob store, or in a file without a name. And here a refused range is
answered like every error, and only one range is sent, so that a request cannot ask for the same bytes often.
"""

from __future__ import annotations

import logging
import mimetypes
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from anyio import CancelScope, create_task_group, to_thread
from starlette.types import Receive, Scope, Send

from roost.errors import InvalidRequest, RangeRefused

_log = logging.getLogger(__name__)
_PIECE: Final = 256 * 1024
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_HARMLESS: Final = frozenset(
    {
        "text/plain",
        "application/pdf",
        "application/json",
        *(f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp", "avif", "bmp")),
        *(f"audio/{kind}" for kind in ("mpeg", "ogg", "wav")),
        *(f"video/{kind}" for kind in ("mp4", "webm")),
    }
)
_GUARD: Final = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, no-store",
    "accept-ranges": "bytes",
}


@dataclass(frozen=True)
class DownloadSource:
    """A file to be sent: `read(start, size)` blocks and gives bytes; `close` is called at the end."""

    name: str
    size: int
    read: Callable[[int, int], bytes]
    close: Callable[[], None]


def download_of(
    source: DownloadSource, headers: Mapping[str, str], *, inline: bool = False
) -> Download:
    """The response that sends the bytes which are asked for. :raises InvalidRequest: :raises RangeRefused:"""
    try:
        span = range_in(headers, source.size)
    except BaseException:
        source.close()
        raise

    async def read(at: int, size: int) -> bytes:
        return await to_thread.run_sync(source.read, at, size)

    kind = mimetypes.guess_type(source.name)[0] or "application/octet-stream"
    added = safe_headers(source.name, inline=inline and kind in _HARMLESS) | {"content-type": kind}
    return Download(read, source.close, span, source.size, added)


def safe_headers(name: str, *, inline: bool = False) -> dict[str, str]:
    """The headers that keep a browser from running what is sent."""
    how = "inline" if inline else "attachment"
    return {**_GUARD, "content-disposition": f"{how}; filename*=UTF-8''{quote(name, safe='')}"}


def range_in(headers: Mapping[str, str], size: int) -> tuple[int, int]:
    """The first byte that is asked for, and the one behind the last. :raises RangeRefused: :raises InvalidRequest: several ranges"""
    asked = headers.get("range")
    if asked is None:
        return 0, size
    found = _RANGE.fullmatch(asked.strip())
    if found is None or found[1] == found[2] == "":
        raise InvalidRequest("range: ask for one range of bytes, such as `bytes=0-1023`")
    if not found[1]:  # the last so many
        start, end = max(0, size - int(found[2])), size
    else:
        start, end = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
    if start >= end:
        raise RangeRefused(f"range: there are {size} bytes")
    return start, end


class Download:
    """A response that reads and sends a piece at a time, until the client hangs up, and then closes its source."""

    def __init__(
        self,
        read: Callable[[int, int], Awaitable[bytes]],
        close: Callable[[], None],
        span: tuple[int, int],
        size: int,
        headers: Mapping[str, str],
    ) -> None:
        self._read = read
        self._close = close
        self._span = span
        start, end = span
        self._status = 200 if span == (0, size) else 206
        self._headers = {**headers, "content-length": str(end - start)}
        if self._status == 206:
            self._headers["content-range"] = f"bytes {start}-{end - 1}/{size}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, in pieces."""
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        try:
            await send({"type": "http.response.start", "status": self._status, "headers": headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            async with create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                await self._send_pieces(send)
                tasks.cancel_scope.cancel()
        finally:
            self._close()

    async def _send_pieces(self, send: Send) -> None:
        at, end = self._span
        while at < end:
            piece = await self._read(at, min(_PIECE, end - at))
            if not piece:  # it became shorter; an answer that is not complete says so
                _log.warning("a file became shorter while it was sent", extra={"action": "send"})
                return
            at += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": at < end})
        if self._span[0] == end:
            await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive, scope: CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
