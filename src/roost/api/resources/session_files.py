"""`/roost/v1/sessions/{session_id}/files`: the session's own directory, for people to look into."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Final, Required, TypedDict

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall
from roost.api.framework.downloads import DownloadSource, download_of
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.api.framework.uploads import parts_of
from roost.api.resources import files
from roost.core.files.attachments import Attachments
from roost.core.files.store import FileStore
from roost.core.workspaces.browse import Browse
from roost.domain.events import iso
from roost.domain.session import Session
from roost.errors import InvalidRequest
from roost.ports.folder import Content, Item, Listing, ListingPosition

_FILES = "/roost/v1/sessions/{session_id}/files"
_PATH = Field(max_length=4096)
_Path = Annotated[str, Field(min_length=1, max_length=4096)]
_PAGE = 200
_MOST_AT_ONCE = 200
_FORM = ("file", "files", "files[]")

RESOURCE: Final = Resource(
    bounds={
        "WorkspaceFileListParams.path": _PATH,
        "WorkspaceFileContentParams.path": _PATH,
        "WorkspaceFileDeleteParams.path": _PATH,
    },
)


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


@RESOURCE.get("roost.sessions.files.list", _FILES, WorkspaceFileListParams)
async def list_(call: ApiCall, browse: Browse) -> ASGIApp:
    """What is in a directory: directories first, then by name."""
    session = await _session(call)
    path, limit = call.query.get("path", "").strip("/"), call.query.get("limit", _PAGE)
    after = _place_in(call.query)
    listing = await browse.list(session, path, after, limit)
    return reply(_page(path, listing) | {"behind": await browse.is_behind(session)})


@RESOURCE.upload("roost.sessions.files.upload", _FILES, "files[]", fields=["path", "overwrite"])
async def put(call: ApiCall, browse: Browse) -> ASGIApp:
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
        made = await browse.put(session, named, overwrite=overwrite)
    return reply({"data": [_entry(item) for item in made]})


@RESOURCE.delete("roost.sessions.files.delete", _FILES, WorkspaceFileDeleteParams)
async def remove(call: ApiCall, browse: Browse) -> ASGIApp:
    """Something, gone from a directory."""
    session = await _session(call)
    path, recursive = _path_in(call.query), call.query.get("recursive", False)
    await browse.remove(session, path, recursive=recursive)
    return reply({"type": "workspace_entry_deleted", "path": path})


@RESOURCE.get(
    "roost.sessions.files.download",
    f"{_FILES}/content",
    WorkspaceFileContentParams,
    form="other",
    media="application/octet-stream",
)
async def download(call: ApiCall, browse: Browse) -> ASGIApp:
    """A file's bytes, or those that `Range` asks for."""
    session = await _session(call)
    return _sent(call, await browse.open(session, _path_in(call.query)))


@RESOURCE.get(
    "roost.sessions.tool_outputs.download",
    "/roost/v1/sessions/{session_id}/tool_outputs/content",
    WorkspaceFileContentParams,
    form="other",
    media="application/octet-stream",
)
async def download_output(call: ApiCall, browse: Browse) -> ASGIApp:
    """A tool's output that was too long for the log."""
    session = await _session(call)
    return _sent(call, await browse.open_output(session, _path_in(call.query)))


def _sent(call: ApiCall, content: Content) -> ASGIApp:
    item = content.item
    source = DownloadSource(item.name, item.size, content.read, content.close)
    return download_of(source, call.headers, inline=call.query.get("inline", False))


@RESOURCE.get(
    "roost.sessions.attachments.download",
    "/roost/v1/sessions/{session_id}/attachments/{file_id}/content",
    form="other",
    media="application/octet-stream",
)
async def download_attached(
    call: ApiCall, attachments: Attachments, filestore: FileStore
) -> ASGIApp:
    """The same, of the copy that a session keeps of a file which a message names."""
    session = await call.session("see")
    return await files.sent(
        call, filestore, await attachments.copy(session, call.params["file_id"])
    )


@RESOURCE.post(
    "roost.sessions.files.make_directory", f"{_FILES}/directories", DirectoryCreateParams
)
async def make(call: ApiCall, browse: Browse) -> ASGIApp:
    """A directory, with those on the way to it."""
    session = await _session(call)
    return reply(_entry(await browse.make(session, call.body["path"].strip("/"))))


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
    more = None if listing.more is None else _encoded(listing.more)
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


def _encoded(place: ListingPosition) -> str:
    """The cursor of a page. Names need not be text, so it contains their bytes."""
    name = place.name.encode(errors="surrogateescape")
    return base64.urlsafe_b64encode(bytes([place.is_file]) + name).rstrip(b"=").decode()


def _place_in(query: dict[str, Any]) -> ListingPosition | None:
    word = query.get("page")
    if word is None:
        return None
    try:
        data = base64.urlsafe_b64decode(word.encode("ascii") + b"=" * (-len(word) % 4))
    except (ValueError, binascii.Error):
        data = b""
    if len(data) < 2 or data[0] > 1:
        raise InvalidRequest("page: not a cursor that this server gave out")
    return ListingPosition(bool(data[0]), data[1:].decode(errors="surrogateescape"))
