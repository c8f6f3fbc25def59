"""The operations that take a session back, or elsewhere."""

from __future__ import annotations

from roost.api.framework.routes import get, post, upload
from roost.api.resources import session_archives, session_forks

FORKS = (
    get("roost.sessions.turns", "/roost/v1/sessions/{session_id}/turns", session_forks.list_turns),
    post(
        "roost.sessions.fork",
        "/roost/v1/sessions/{session_id}/fork",
        session_forks.fork,
        session_forks.ForkParams,
    ),
    post(
        "roost.sessions.rewind",
        "/roost/v1/sessions/{session_id}/rewind",
        session_forks.rewind,
        session_forks.RewindParams,
    ),
    get(
        "roost.sessions.export",
        "/roost/v1/sessions/{session_id}/export",
        session_archives.export,
        session_archives.ExportParams,
        form="other",
        media="application/octet-stream",
    ),
    upload(
        "roost.sessions.import",
        "/roost/v1/sessions/import",
        session_archives.import_,
        "archive",
        fields=["agent", "environment_id", "title", "trust_level"],
    ),
)
