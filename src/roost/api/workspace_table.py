"""The operations on sessions' directories, for the table in `api/operations.py`."""

from __future__ import annotations

from typing import Final

from roost.api import files, workspace
from roost.api.routes import delete, get, post, upload

_FILES: Final = "/roost/v1/sessions/{session_id}/files"

WORKSPACE_FILES: Final = (
    get("roost.sessions.files.list", _FILES, workspace.list_, workspace.WorkspaceFileListParams),
    upload(
        "roost.sessions.files.upload",
        _FILES,
        workspace.put,
        "files[]",
        fields=["path", "overwrite"],
    ),
    delete(
        "roost.sessions.files.delete", _FILES, workspace.remove, workspace.WorkspaceFileDeleteParams
    ),
    get(
        "roost.sessions.files.download",
        f"{_FILES}/content",
        workspace.download,
        workspace.WorkspaceFileContentParams,
        form="other",
        media="application/octet-stream",
    ),
    get(
        "roost.sessions.tool_outputs.download",
        "/roost/v1/sessions/{session_id}/tool_outputs/content",
        workspace.download_output,
        workspace.WorkspaceFileContentParams,
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
        workspace.make,
        workspace.DirectoryCreateParams,
    ),
)
