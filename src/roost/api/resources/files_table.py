"""The operations on files, for the table in `api/operations.py`."""

from __future__ import annotations

from typing import Final

from roost.api.framework.routes import delete, get, upload
from roost.api.resources import files

_FILE = "beta.BetaFileMetadata"

FILES: Final = (
    upload(
        "files.upload",
        "/v1/files",
        files.create,
        "file",
        fields=["expires_in_seconds"],
        reply=_FILE,
    ),
    get("files.list", "/v1/files", files.list_, "beta.FileListParams", reply=_FILE, form="page"),
    get("files.retrieve_metadata", "/v1/files/{file_id}", files.retrieve, reply=_FILE),
    delete("files.delete", "/v1/files/{file_id}", files.delete, reply="beta.BetaDeletedFile"),
    get(
        "files.download",
        "/v1/files/{file_id}/content",
        files.download,
        form="other",
        media="application/octet-stream",
    ),
)
