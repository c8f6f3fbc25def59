"""Room for what a workspace hides: a real directory under each name, for an empty one to be mounted over.

A mount point that is not there would be made by whoever mounts, and a link would lead it elsewhere.
Called when nothing of the session runs any more, so what is found stays as it is until the mount is there;
and from then on the kernel lets nobody inside move or remove the directory.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from roost.ports.sandbox_provider import Plan

_TOP = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def make_mount_points(plan: Plan) -> None:
    """Have a directory under each name that is hidden; what is none is removed. Blocks.

    The names are the agent's own: what somebody has put there instead of a directory is of no use to it, and
    whatever a link there leads to is left alone. An agent that has closed its own home, or these, to itself
    finds them open again; else it could never be started any more.

    :raises OSError: it cannot be made
    """
    _open_to_owner(plan.home.path)
    if not plan.hidden:
        return
    top = os.open(plan.workspace.path, _TOP)
    try:
        for name in plan.hidden:
            if _is_directory(top, name):
                _open_to_owner(name, top)
            else:
                os.mkdir(name, 0o700, dir_fd=top)
    finally:
        os.close(top)


def _is_directory(top: int, name: str) -> bool:
    try:
        status = os.stat(name, dir_fd=top, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(status.st_mode):
        return True
    os.unlink(name, dir_fd=top)
    return False


def _open_to_owner(path: str | Path, at: int | None = None) -> None:
    mode = stat.S_IMODE(os.stat(path, dir_fd=at, follow_symlinks=False).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(path, mode | stat.S_IRWXU, dir_fd=at)
