"""`/v1/files`.

Clients from before files left the beta send its header, and get lists in the form it had.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from msgspec.structs import replace
from pydantic import Field
from starlette.types import ASGIApp

from roost.api.access.auth import MANAGED_AGENTS, OLD_FILES, asks_for_agents, betas_in
from roost.api.framework.bounds import ID
from roost.api.framework.call import ApiCall
from roost.api.framework.downloads import Download, range_in, safe_headers
from roost.api.framework.paging import DEFAULT_PAGE, record_page, record_query
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.api.framework.uploads import parts_of
from roost.core.access.permissions import may_see
from roost.core.files.store import FileStore, Reader
from roost.domain.events import iso
from roost.domain.file import StoredFile, file_of, lifetime, named
from roost.errors import InvalidRequest, NotFound
from roost.ports.catalog import Record, RecordQuery

_FILE = "beta.BetaFileMetadata"
_PAGE: Final = "page_"
_NEW = ("page", "ids")
_OLD = ("after_id", "before_id")

RESOURCE: Final = Resource(
    bounds={
        "FileListParams.ids": Field(max_length=100),
        "FileListParams.scope_id": ID,
        "FileListParams.after_id": ID,
        "FileListParams.before_id": ID,
        "*.file_id": ID,
    },
    fields={"FileListParams": {"after_id": str, "before_id": str}},
    beta=False,
)


@RESOURCE.upload("files.upload", "/v1/files", "file", fields=["expires_in_seconds"], reply=_FILE)
async def create(call: ApiCall, filestore: FileStore) -> ASGIApp:
    """A file, kept until it is deleted or its time is up."""
    limit = call.deps.settings.max_file_bytes
    known = ("expires_in_seconds",)
    async with parts_of(call, ("file",), known, most_bytes=limit, most_files=1) as parts:
        if len(parts.files) != 1:
            raise InvalidRequest("file: send one file")
        sent = parts.files[0]
        filename, kind = named(sent.filename or "", sent.content_type)
        seconds = lifetime(parts.fields.get("expires_in_seconds"))
        file = StoredFile(filename=filename, mime_type=kind)
        record = await filestore.add(
            call.tenant, file, sent.file, created_by=call.key.principal, seconds=seconds
        )
    return reply(_view(record))


@RESOURCE.get("files.list", "/v1/files", "beta.FileListParams", reply=_FILE, form="page")
async def list_(call: ApiCall, filestore: FileStore) -> ASGIApp:
    """Files, newest first; with `scope_id`, those of a session."""
    old = OLD_FILES in betas_in(call.headers)
    for name in _NEW if old else _OLD:
        if name in call.query:
            raise InvalidRequest(f"{name}: not with this version of the API")
    _check_scope(call)
    if "ids" in call.query:
        return reply({"data": await _by_id(call, filestore), "next_page": None})
    return reply(await (_old_page(call, filestore) if old else _page(call, filestore)))


@RESOURCE.get("files.retrieve_metadata", "/v1/files/{file_id}", reply=_FILE)
async def retrieve(call: ApiCall, filestore: FileStore) -> ASGIApp:
    """What is known of a file."""
    return reply(_view(await filestore.seen(call.key, call.params["file_id"])))


@RESOURCE.delete("files.delete", "/v1/files/{file_id}", reply="beta.BetaDeletedFile")
async def delete(call: ApiCall, filestore: FileStore) -> ASGIApp:
    """A file, gone."""
    file_id = call.params["file_id"]
    await filestore.seen(call.key, file_id, "tell")
    await filestore.delete(call.tenant, file_id)
    return reply({"id": file_id, "type": "file_deleted"})


@RESOURCE.get(
    "files.download", "/v1/files/{file_id}/content", form="other", media="application/octet-stream"
)
async def download(call: ApiCall, filestore: FileStore) -> ASGIApp:
    """A file's bytes, or those that `Range` asks for."""
    return await sent(call, filestore, await filestore.seen(call.key, call.params["file_id"]))


async def sent(call: ApiCall, filestore: FileStore, record: Record) -> Download:
    """The response that sends a stored file, or the range of it that is asked for."""
    file, reader = file_of(record.body), Reader(filestore, record)
    start, end = range_in(call.headers, file.size)
    if start < end:
        await reader.read(start, 1)  # an answer that has begun cannot say that there are no bytes
    headers = safe_headers(file.filename) | {"content-type": file.mime_type}
    return Download(reader.read, lambda: None, (start, end), file.size, headers)


async def _page(call: ApiCall, filestore: FileStore) -> dict[str, Any]:
    asked = dict(call.query)
    if "page" in asked:
        asked["page"] = asked["page"].removeprefix(_PAGE)
    query = _scoped(call, record_query(asked, "file", call.tenant))
    made = await record_page(filestore.page, query, lambda record: {"record": record})
    shown = [each["record"] for each in made["data"]]
    more = made["next_page"]
    data = [_view(record) for record in await filestore.shown(call.key, shown)]
    return {"data": data, "next_page": None if more is None else f"{_PAGE}{more}"}


async def _by_id(call: ApiCall, filestore: FileStore) -> list[dict[str, Any]]:
    if {"page", "limit"} & call.query.keys():
        raise InvalidRequest("ids: not together with `page` or `limit`")
    found = []
    for file_id in dict.fromkeys(call.query["ids"]):
        try:
            record = await filestore.seen(call.key, file_id)
        except NotFound:
            continue
        if call.query.get("scope_id") in (None, record.body["name"]):
            found.append(_view(record))
    return found


async def _old_page(call: ApiCall, filestore: FileStore) -> dict[str, Any]:
    limit = call.query.get("limit", DEFAULT_PAGE)
    if _OLD[0] in call.query and _OLD[1] in call.query:
        raise InvalidRequest("after_id: not together with `before_id`")
    query = RecordQuery(kind="file", tenant=call.tenant, after=call.query.get("after_id"))
    before = call.query.get("before_id")
    if before is None:
        found = await filestore.page(_scoped(call, query, limit + 1))
        shown, more = found[:limit], len(found) > limit
    else:
        shown, more = await _up_to(call, filestore, query, before, limit)
    data = [_view(each) for each in await filestore.shown(call.key, shown)]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": more, "first_id": first, "last_id": last}


async def _up_to(
    call: ApiCall, filestore: FileStore, query: RecordQuery, before: str, limit: int
) -> tuple[list[Record], bool]:
    """The last few before a file, and whether there are more before those."""
    await filestore.seen(call.key, before)
    seen: deque[Record] = deque(maxlen=limit + 1)
    async for record in filestore.walk(_scoped(call, query)):
        if record.id == before:
            break
        seen.append(record)
    return list(seen)[-limit:], len(seen) > limit


def _scoped(call: ApiCall, query: RecordQuery, limit: int | None = None) -> RecordQuery:
    scope = call.query.get("scope_id")
    # Of a session, all that it has; else what is the caller's, unless it sees others' too.
    own = call.key.principal if scope is None and not may_see(call.key, "") else None
    return replace(query, name=scope, created_by=own, limit=limit or query.limit)


def _check_scope(call: ApiCall) -> None:
    scope = call.query.get("scope_id")
    if scope is None:
        return
    if not asks_for_agents(call.headers):
        raise InvalidRequest(
            "scope_id: only with the beta of managed agents",
            hint=f"Send `anthropic-beta: {MANAGED_AGENTS}`.",
        )
    if not scope.startswith("sesn_"):
        raise InvalidRequest("scope_id: give the id of a session, which begins with `sesn_`")


def _view(record: Record) -> dict[str, Any]:
    """The `file` object, as clients see it."""
    found = file_of(record.body)
    return {
        "type": "file",
        "id": record.id,
        "filename": found.filename,
        "mime_type": found.mime_type,
        "size_bytes": found.size,
        "created_at": iso(record.created_at),
        "downloadable": found.origin is not None,  # what an agent made, not what a client sent
        "expires_at": None if found.expires_at is None else iso(found.expires_at),
        "scope": None if found.name is None else {"type": "session", "id": found.name},
    }
