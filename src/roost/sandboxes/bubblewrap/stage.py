"""Showing the sandbox's uid what lies where it cannot go.

A root server's files may be below a directory that only root may enter (`/root`, say). bwrap runs as
the session's uid and could not even find them. So they are mounted where everybody can reach, in a
mount namespace that the sandbox's commands are started in, and that goes away with the sandbox.

A namespace belongs to a thread, so a thread is made for it: five system calls and two programs less for
each command, and they were a third of what a start takes.
"""

from __future__ import annotations

import ctypes
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_MOUNTS_OF_ITS_OWN: Final = 0x00020000  # CLONE_NEWNS
_NOSUID, _NODEV, _BIND, _ALL_BELOW, _SLAVE = 2, 4, 0x1000, 0x4000, 0x80000
_libc = ctypes.CDLL(None, use_errno=True)


def make_stage(state: Path, *, everybody: bool) -> Path:
    """The directory to mount in; `everybody` must be able to get there if the server is root.

    :raises OSError: it cannot be made
    """
    stage = state / "stage"
    stage.mkdir(parents=True, exist_ok=True)
    if everybody:
        for directory in (state, stage):  # whatever the umask was
            directory.chmod(0o755)
        if not is_reachable(stage.resolve()):
            raise PermissionError(f"other users cannot get to {state}")
    return stage


class MountStage:
    """What has to be mounted within reach first; `active` only if the uid changes on the way."""

    def __init__(self, directory: Path, *, active: bool) -> None:
        self._directory = directory
        self._active = active
        self._staged: dict[Path, str] = {}

    def shown(self, source: Path) -> str:
        """Where bwrap finds a path of the host."""
        source = source.resolve()
        if not self._active or is_reachable(source):
            return str(source)
        return self._staged.setdefault(source, f"{self._directory}/{len(self._staged)}")

    def build(self) -> int | None:
        """A descriptor of the namespace where all of it is mounted; None if nothing has to be. Blocks.

        :raises OSError: it cannot be mounted
        """
        if not self._staged:
            return None
        with ThreadPoolExecutor(1) as apart:
            return apart.submit(self._mount_all).result()

    def _mount_all(self) -> int:
        if _libc.unshare(_MOUNTS_OF_ITS_OWN):
            raise _refused("a mount namespace")
        _mount("none", "/", _SLAVE | _ALL_BELOW)
        _mount("roost", str(self._directory), _NOSUID | _NODEV, "tmpfs", "mode=755,size=1m")
        for source, target in self._staged.items():
            if source.is_dir():
                Path(target).mkdir()
            else:
                Path(target).touch()
            _mount(str(source), target, _BIND | _ALL_BELOW)
        return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def _mount(source: str, target: str, flags: int, kind: str = "", options: str = "") -> None:
    words = [os.fsencode(word) or None for word in (source, target, kind, options)]
    if _libc.mount(*words[:3], ctypes.c_ulong(flags), words[3]):
        raise _refused(target)


def _refused(what: str) -> OSError:
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error), what)


def is_reachable(path: Path) -> bool:
    """Whether everybody may go through every directory above it."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
