"""Where a server keeps what its sandboxes are made with: small files, which it can make again at any time."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

_log = logging.getLogger(__name__)


def default_state() -> Path:
    """Below `/run` for root; else a folder that is surely ours, as others may write where it lies.

    :raises OSError: there is none
    """
    if os.geteuid() == 0:
        return Path("/run/roost")
    state = Path(tempfile.gettempdir(), f"roost-{os.geteuid()}")
    try:
        state.mkdir(mode=0o700)
    except FileExistsError:
        if not is_own(state):
            return _another(state)
        state.chmod(0o700)  # nobody else has written there, and nobody will
    return state


def is_own(directory: Path) -> bool:
    """Whether it is a directory, no link to one, that belongs to this user and that no other may write to."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache  # one for each process, however many sandboxes ask
def _another(taken: Path) -> Path:
    state = Path(tempfile.mkdtemp(prefix=f"{taken.name}-"))
    _log.warning("%s is not ours alone: using %s instead", taken, state, extra={"action": "start"})
    return state


def write_whole(file: Path, text: str) -> None:
    """Make sure that a file has this content, whole or not at all, whoever else is writing the same.

    A power cut may have left it empty, so it is read even if it is there. :raises OSError: it cannot be
    """
    try:
        if file.read_text() == text and not file.is_symlink():
            return
    except (OSError, UnicodeDecodeError):
        pass
    descriptor, part = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as writing:
            writing.write(text)
        Path(part).chmod(0o644)
        Path(part).rename(file)
    except OSError:
        Path(part).unlink()
        raise
