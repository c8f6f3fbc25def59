"""What `session_status` says of a session's files when its agent is started.

Its files are on this machine and nothing has to be brought: restoring is skipped. Whoever brings them
from elsewhere says how that went here.
"""

from __future__ import annotations

from typing import Literal

from roost.domain.session import Session

RestoreStatus = Literal[
    "restore_started",
    "restoring",
    "restored",
    "restore_skipped",
    "restore_failed",
    "sync_recovered",
]


def restore_status(session: Session) -> RestoreStatus:
    """How it stands now, for a socket that has just started."""
    return "restore_skipped"
