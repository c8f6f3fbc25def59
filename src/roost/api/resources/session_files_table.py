"""The operations on sessions' directories, for the table in `api/operations.py`."""

from __future__ import annotations

from typing import Final

from roost.api.framework.routes import delete, get, post, upload
from roost.api.resources import files, session_files

_FILES: Final = "/roost/v1/sessions/{session_id}/files"

WORKSPACE_FILES: Final = (
    get(
        "roost.sessions.files.list",
        _FILES,
        session_files.list_,
        session_files.WorkspaceFileListParams,
    ),
    upload(
        "roost.sessions.files.upload",
        _FILES,
        session_files.put,
        "files[]",
        fields=["path", "overwrite"],
    ),
    delete(
        "roost.sessions.files.delete",
        _FILES,
        session_files.remove,
        session_files.WorkspaceFileDeleteParams,
    ),
    get(
        "roost.sessions.files.download",
        f"{_FILES}/content",
        session_files.download,
        session_files.WorkspaceFileContentParams,
        form="other",
        media="application/octet-stream",
    ),
    get(
        "roost.sessions.tool_outputs.download",
        "/roost/v1/sessions/{session_id}/tool_outputs/content",
        session_files.download_output,
        session_files.WorkspaceFileContentParams,
        form="other",
        media="application/octet-stream",
    ),
    get(
        "roost.sessions.attachments.download",
        "/roost/v1/sessions/{session_id}/attachments/{file_id}/content",
        files.download_attached,
        form="other",
        media="application/octet-stream",
    ),
    post(
        "roost.sessions.files.make_directory",
        f"{_FILES}/directories",
        session_files.make,
        session_files.DirectoryCreateParams,
    ),
)
