"""Showing the sandbox's uid what lies where it cannot go.

A root server's files may be below a directory that only root may enter (`/root`, say). bwrap runs as
the session's uid and could not even find them. So the shell that starts it, still root, mounts them at
a place everybody can reach, in a mount namespace of its own, which goes away with the sandbox.
"""

from __future__ import annotations

import re
import shlex
import stat
from pathlib import Path


def make_stage(state: Path, *, everybody: bool) -> Path:
    """The place to mount at; `everybody` must be able to get there if the server is root.

    :raises OSError: it cannot be made
    """
    place = state / "stage"
    place.mkdir(parents=True, exist_ok=True)
    if everybody:
        for directory in (state, place):  # whatever the umask was
            directory.chmod(0o755)
        if not is_reachable(place.resolve()):
            raise PermissionError(f"other users cannot get to {state}")
    return place


class Stage:
    """What has to be mounted within reach first; `active` only if the uid changes on the way."""

    def __init__(self, place: Path, *, active: bool) -> None:
        self._place = place
        self._active = active
        self._staged: dict[Path, str] = {}

    def shown(self, source: Path) -> str:
        """Where bwrap finds a path of the host."""
        source = source.resolve()
        if not self._active or is_reachable(source):
            return str(source)
        return self._staged.setdefault(source, f"{self._place}/{len(self._staged)}")

    def script(self, mount: str) -> str | None:
        """What the shell does for that; None if there is nothing to do.

        All is mounted by one process, from a table: one for each would take as long as bwrap itself.
        """
        if not self._staged:
            return None
        pairs = self._staged.items()
        place = shlex.quote(str(self._place))
        folders = [shlex.quote(target) for source, target in pairs if source.is_dir()]
        files = [shlex.quote(target) for source, target in pairs if not source.is_dir()]
        lines = [f"{_escaped(source)} {_escaped(target)} none rbind" for source, target in pairs]
        steps = [
            f"{mount} -t tmpfs -o mode=755,size=1m,nosuid,nodev roost {place}",
            *([f"mkdir {' '.join(folders)}"] if folders else []),
            *(f": >{file}" for file in files),
            f"printf '%s\\n' {shlex.join(lines)} >{place}/table",
            f"{mount} --all --fstab {place}/table",
        ]
        return " && ".join(steps)


def _escaped(path: Path | str) -> str:
    """As a field of such a table: a blank would end it."""
    return re.sub(r"[ \t\r\n\\#]", lambda found: f"\\{ord(found[0]):03o}", str(path))


def is_reachable(path: Path) -> bool:
    """Whether everybody may go through every directory above it."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
