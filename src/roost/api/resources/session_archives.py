"""`/roost/v1/sessions`: sessions as archives, to be taken to another server."""

from __future__ import annotations

import os
from typing import Annotated, Final, TypedDict

from pydantic import Field
from starlette.types import ASGIApp

from roost.api.framework.call import ApiCall
from roost.api.framework.downloads import DownloadSource, download_of
from roost.api.framework.replies import reply
from roost.api.framework.resource import Resource
from roost.api.framework.uploads import parts_of
from roost.api.resources import sessions
from roost.core.sessions.transfer import Transfer
from roost.errors import InvalidRequest

_FIELDS = ("agent", "environment_id", "title", "trust_level", "mount_scope")

RESOURCE: Final = Resource()


class ExportParams(TypedDict, total=False):
    """Which turn: its number, or the id of an event in it. By default the newest that has ended."""

    at: Annotated[str, Field(min_length=1, max_length=128)]


@RESOURCE.get(
    "roost.sessions.export",
    "/roost/v1/sessions/{session_id}/export",
    ExportParams,
    form="other",
    media="application/octet-stream",
)
async def export(call: ApiCall, transfer: Transfer) -> ASGIApp:
    """An archive of a session."""
    session_id, at = call.params["session_id"], call.query.get("at")
    place = int(at) if at is not None and at.isdecimal() and len(at) < 10 else at
    archive = await transfer.export(call.key, session_id, place)
    size = os.fstat(archive.fileno()).st_size

    def read(start: int, length: int) -> bytes:
        return os.pread(archive.fileno(), length, start)

    source = DownloadSource(f"{session_id}.roost", size, read, archive.close)
    return download_of(source, call.headers)


@RESOURCE.upload(
    "roost.sessions.import",
    "/roost/v1/sessions/import",
    "archive",
    fields=["agent", "environment_id", "title", "trust_level"],
)
async def import_(call: ApiCall, transfer: Transfer) -> ASGIApp:
    """A session, made of an archive."""
    limit = call.deps.settings.max_file_bytes
    async with parts_of(call, ("archive",), _FIELDS, most_bytes=limit, most_files=1) as parts:
        if len(parts.files) != 1:
            raise InvalidRequest("archive: send one archive")
        session = await transfer.taken_in(call.key, parts.files[0].file, parts.fields)
    return reply(sessions.view(session))
