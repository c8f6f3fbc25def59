"""The operations that take a session back, or elsewhere."""

from __future__ import annotations

from roost.api import forks, transfer
from roost.api.routes import get, post, upload

FORKS = (
    get("roost.sessions.turns", "/roost/v1/sessions/{session_id}/turns", forks.list_turns),
    post(
        "roost.sessions.fork", "/roost/v1/sessions/{session_id}/fork", forks.fork, forks.ForkParams
    ),
    post(
        "roost.sessions.rewind",
        "/roost/v1/sessions/{session_id}/rewind",
        forks.rewind,
        forks.RewindParams,
    ),
    get(
        "roost.sessions.export",
        "/roost/v1/sessions/{session_id}/export",
        transfer.export,
        transfer.ExportParams,
        form="other",
        media="application/octet-stream",
    ),
    upload(
        "roost.sessions.import",
        "/roost/v1/sessions/import",
        transfer.import_,
        "archive",
        fields=["agent", "environment_id", "title", "trust_level"],
    ),
)
