"""The files of an identifier: those of its session's workspace, which its code finds in `/mnt/data`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message

from roost.api.access.headers import RequestHeaders
from roost.api.framework.call import ApiCall
from roost.api.framework.downloads import DownloadSource, download_of
from roost.api.framework.replies import reply
from roost.api.framework.uploads import parts_of
from roost.domain.session import Session
from roost.errors import InvalidRequest, NotFound
from roost.pool import shapes
from roost.pool.call import PoolCall, PoolError
from roost.ports.folder import Item, ListingPosition

ROOT: Final = "/mnt/data"
_MOST_LISTED: Final = 10_000
_PAGE: Final = 1000
_MOST_AT_ONCE: Final = 20
_LARGEST: Final = 128 * 1024 * 1024
_FORM: Final = ("file", "files", "files[]")
_BOUNDARY: Final = re.compile(rb"--([!-~]{1,70})\r\n")


def path_in(given: str) -> str:
    """A path that a client gave, from the workspace on. :raises InvalidRequest:"""
    path = given.strip()
    if path == ROOT or path.startswith(f"{ROOT}/"):
        path = path[len(ROOT) :]
    path = path.strip("/")
    parts = path.split("/") if path else []
    if any(part in ("", ".", "..") for part in parts) or not path.isprintable():
        raise InvalidRequest(f"path: {given[:100]!r} is not a path below {ROOT}")
    return path


async def listed(pool_call: PoolCall) -> ASGIApp:
    """`GET files`. The older generation shows all files, the newer one those of a directory."""
    session = await pool_call.session()
    folder = path_in(pool_call.one("path"))
    everything = not pool_call.is_flat or pool_call.one("recursive").lower() == "true"
    items = await _items(pool_call, session, folder, everything=everything)
    shown = [item for item in items if pool_call.is_flat or item.kind == "file"]
    return reply({"value": [shapes.file_of(item, is_flat=pool_call.is_flat) for item in shown]})


async def _items(
    pool_call: PoolCall, session: Session, folder: str, *, everything: bool
) -> list[Item]:
    found: list[Item] = []
    folders = [folder]
    while folders and len(found) < _MOST_LISTED:
        here = folders.pop()
        for item in await _directory(pool_call, session, here):
            if item.path is None or (not here and item.name.startswith(".")):
                continue  # what programs keep in the home, which is the same directory
            found.append(item)
            if everything and item.kind == "directory":
                folders.append(item.path)
    return found[:_MOST_LISTED]


async def _directory(pool_call: PoolCall, session: Session, path: str) -> list[Item]:
    found: list[Item] = []
    after: ListingPosition | None = None
    while len(found) < _MOST_LISTED:
        try:
            page = await pool_call.parts.browse.list(session, path, after, _PAGE)
        except NotFound:
            if path:
                raise
            return []  # nothing was put there yet
        found += page.items
        if page.more is None:
            break
        after = page.more
    return found


async def uploaded(pool_call: PoolCall) -> ASGIApp:
    """`POST files` or `POST files/upload`: a form with files."""
    session = await pool_call.session()
    folder = path_in(pool_call.one("path"))
    call = pool_call.call
    limit = min(_LARGEST, call.deps.settings.max_file_bytes)
    await _with_boundary(call)
    async with parts_of(call, _FORM, (), most_bytes=limit, most_files=_MOST_AT_ONCE) as parts:
        if not parts.files:
            raise InvalidRequest("file: send a file, in a part of this name")
        named = []
        for part in parts.files:
            name = path_in(part.filename or "")
            if not name:
                raise InvalidRequest("file: its part has no filename")
            named.append((f"{folder}/{name}" if folder else name, part.file))
        made = await pool_call.parts.browse.put(session, named, overwrite=True)
    told = [shapes.file_of(item, is_flat=pool_call.is_flat) for item in made]
    if pool_call.is_flat and len(told) == 1:
        return reply(told[0])
    return reply({"value": told})


async def _with_boundary(call: ApiCall) -> None:
    """Some clients send a form and call it JSON; then the boundary is the body's first line."""
    if call.headers.get("content-type", "").lower().startswith("multipart/"):
        return
    receive = call.receive
    assert receive is not None
    first = await receive()
    boundary = _BOUNDARY.match(first.get("body", b""))
    if boundary is not None:
        kind = b"multipart/form-data; boundary=" + boundary[1]
        others = [pair for pair in call.scope["headers"] if pair[0] != b"content-type"]
        call.headers = RequestHeaders([*others, (b"content-type", kind)])
    call.receive = _again(first, receive)


def _again(
    first: Message, receive: Callable[[], Awaitable[Message]]
) -> Callable[[], Awaitable[Message]]:
    """The messages from the first one on, which was looked at."""
    waiting = [first]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


async def downloaded(pool_call: PoolCall, path: str) -> ASGIApp:
    """The bytes of a file."""
    session = await pool_call.session()
    content = await pool_call.parts.browse.open(session, _file(pool_call, path))
    item = content.item
    source = DownloadSource(item.name, item.size, content.read, content.close)
    return download_of(source, pool_call.call.headers)


async def described(pool_call: PoolCall, path: str) -> ASGIApp:
    """What there is to know of a file."""
    session = await pool_call.session()
    name = _file(pool_call, path)
    content = await pool_call.parts.browse.open(session, name)
    content.close()
    item = content.item
    whole = Item(
        name=item.name, path=name, kind=item.kind, size=item.size, modified_at=item.modified_at
    )
    return reply(shapes.file_of(whole, is_flat=pool_call.is_flat))


async def deleted(pool_call: PoolCall, path: str) -> ASGIApp:
    """Remove a file."""
    session = await pool_call.session()
    name = _file(pool_call, path)
    try:
        await pool_call.parts.browse.remove(session, name, recursive=False)
    except NotFound as missing:
        raise PoolError(404, "DeleteFileError", missing.message) from None
    return Response(status_code=204)


def _file(pool_call: PoolCall, path: str) -> str:
    folder, name = path_in(pool_call.one("path")), path_in(path)
    if not name:
        raise InvalidRequest("the path has no name of a file")
    return f"{folder}/{name}" if folder else name
