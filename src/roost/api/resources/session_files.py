"""`/roost/v1/sessions/{session_id}/files`: the session's own directory, for people to look into."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Required, TypedDict

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall, reply
from roost.api.framework.downloads import DownloadSource, download_of
from roost.api.framework.uploads import parts_of
from roost.domain.events import iso
from roost.domain.session import Session
from roost.errors import InvalidRequest
from roost.ports.folder import Content, Item, Listing, Place

_Path = Annotated[str, Field(min_length=1, max_length=4096)]
_PAGE = 200
_MOST_AT_ONCE = 200
_FORM = ("file", "files", "files[]")


class WorkspaceFileListParams(TypedDict, total=False):
    """Which directory to list."""

    path: str
    limit: int
    page: str


class WorkspaceFileContentParams(TypedDict, total=False):
    """Which file to send."""

    path: str
    inline: bool


class WorkspaceFileDeleteParams(TypedDict, total=False):
    """What to remove."""

    path: str
    recursive: bool


class DirectoryCreateParams(TypedDict):
    """Which directory to make."""

    path: Required[_Path]


async def list_(call: ApiCall) -> ASGIApp:
    """What is in a directory: directories first, then by name."""
    session = await _session(call)
    path, limit = call.query.get("path", "").strip("/"), call.query.get("limit", _PAGE)
    after = _place_in(call.query)
    listing = await call.deps.browse.list(session, path, after, limit)
    return reply(_page(path, listing) | {"behind": await call.deps.browse.is_behind(session)})


async def download(call: ApiCall) -> ASGIApp:
    """A file's bytes, or those that `Range` asks for."""
    session = await _session(call)
    return _sent(call, await call.deps.browse.open(session, _path_in(call.query)))


async def download_output(call: ApiCall) -> ASGIApp:
    """A tool's output that was too long for the log."""
    session = await _session(call)
    return _sent(call, await call.deps.browse.open_output(session, _path_in(call.query)))


def _sent(call: ApiCall, content: Content) -> ASGIApp:
    item = content.item
    source = DownloadSource(item.name, item.size, content.read, content.close)
    return download_of(source, call.headers, inline=call.query.get("inline", False))


async def put(call: ApiCall) -> ASGIApp:
    """Files, put into a directory. Each is there whole or not at all."""
    session = await _session(call)
    limit = call.deps.settings.max_file_bytes
    known = ("path", "overwrite")
    async with parts_of(call, _FORM, known, most_bytes=limit, most_files=_MOST_AT_ONCE) as parts:
        if not parts.files:
            raise InvalidRequest("files[]: send at least one file")
        folder = parts.fields.get("path", "").strip("/")
        named = [
            (f"{folder}/{file.filename}" if folder else file.filename or "", file.file)
            for file in parts.files
        ]
        overwrite = _flag(parts.fields.get("overwrite", "false"), "overwrite")
        made = await call.deps.browse.put(session, named, overwrite=overwrite)
    return reply({"data": [_entry(item) for item in made]})


async def make(call: ApiCall) -> ASGIApp:
    """A directory, with those on the way to it."""
    session = await _session(call)
    return reply(_entry(await call.deps.browse.make(session, call.body["path"].strip("/"))))


async def remove(call: ApiCall) -> ASGIApp:
    """Something, gone from a directory."""
    session = await _session(call)
    path, recursive = _path_in(call.query), call.query.get("recursive", False)
    await call.deps.browse.remove(session, path, recursive=recursive)
    return reply({"type": "workspace_entry_deleted", "path": path})


async def _session(call: ApiCall) -> Session:
    """Whoever sees or changes a session's files acts with its trust."""
    return await call.session("tell")


def _path_in(query: dict[str, Any]) -> str:
    path: str = query.get("path", "").strip("/")
    if not path:
        raise InvalidRequest("path: Field required")
    return path


def _flag(word: str, name: str) -> bool:
    if word not in ("true", "false"):
        raise InvalidRequest(f"{name}: send `true` or `false`")
    return word == "true"


def _page(path: str, listing: Listing) -> dict[str, Any]:
    more = None if listing.more is None else _word(listing.more)
    return {
        "path": path,
        "data": [_entry(item) for item in listing.items],
        "next_page": more,
        "truncated": listing.cut,
    }


def _entry(item: Item) -> dict[str, Any]:
    return {
        "type": "workspace_entry",
        "name": item.name,
        "path": item.path,
        "kind": item.kind,
        "size_bytes": item.size,
        "modified_at": iso(item.modified_at),
    }


def _word(place: Place) -> str:
    """A cursor. Names need not be text, so it has their bytes."""
    name = place.name.encode(errors="surrogateescape")
    return base64.urlsafe_b64encode(bytes([place.is_file]) + name).rstrip(b"=").decode()


def _place_in(query: dict[str, Any]) -> Place | None:
    word = query.get("page")
    if word is None:
        return None
    try:
        data = base64.urlsafe_b64decode(word.encode("ascii") + b"=" * (-len(word) % 4))
    except (ValueError, binascii.Error):
        data = b""
    if len(data) < 2 or data[0] > 1:
        raise InvalidRequest("page: not a cursor that this server gave out")
    return Place(bool(data[0]), data[1:].decode(errors="surrogateescape"))
