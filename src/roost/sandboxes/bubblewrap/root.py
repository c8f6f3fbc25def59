"""A root that can be written to: each command has an overlay over the machine's `/usr`, and room in `/opt` and `/var`.

What is written there lies in a directory of the sandbox's, on disk, where it counts against the limit of the disk, and
goes with the command. No two commands share one: an overlay may be mounted only once, and whatever a command
might have planted there (a link instead of a directory, say) is never met by the next bwrap.

Of an overlay that a user without rights mounts, only those directories can be written to that belong to that
user. So the sandbox has directories of its own under the names of the machine's, in a layer between. pip's are not
among them: what an agent installs with pip goes to its home, and stays with the session.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from roost import disk
from roost.sandboxes import sandbox_names
from roost.sandboxes.bubblewrap.identity import SandboxIdentity

ROOMS: Final = ("/opt", "/var")
"""What is empty and writable besides the overlay."""

_SYSTEM: Final = Path("/usr")
_DEEPER: Final = (
    "lib/node_modules",
    "local/lib/node_modules",
    *("local/share/man", "local/share/man/man1", "share/man", "share/man/man1"),
)


class CommandRoot(msgspec.Struct, frozen=True):
    """Where one command's writes go, and the layers below them, the lowest first; as bwrap finds them."""

    lower: Sequence[str]
    directory: str


class WritableRoot:
    """What one sandbox has for the roots of its commands. All of it blocks for some hundred microseconds.

    :raises OSError: it cannot be made
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._numbers = itertools.count(1)
        self._owner: tuple[int, int] | None = None

    def prepare(self, who: SandboxIdentity) -> None:
        """Make the layer of directories."""
        self._owner = (who.uid, who.gid) if who.dropped else None
        self.directory.mkdir(mode=0o755)
        for name in ("usr", *(f"usr/{name}" for name in writable_directories())):
            self._make(self.directory / name)
        self._own(self.directory)

    def command(self) -> Path:
        """Room for one more command."""
        directory = self.directory / str(next(self._numbers))
        self._make(directory)
        for name in ("usr", "work", *(room.removeprefix("/") for room in ROOMS)):
            self._make(directory / name)
        return directory

    def _make(self, directory: Path) -> None:
        os.mkdir(directory, 0o755)  # noqa: PTH102 - some thirty of them, whenever a sandbox is opened
        self._own(directory)

    def _own(self, directory: Path) -> None:
        if self._owner is not None:
            os.chown(directory, *self._owner)


def writable_directories(system: Path = _SYSTEM) -> Iterator[str]:
    """The directories below `/usr` that a command may write to, each before what is in it."""
    for top in filter(lambda top: (system / top).is_dir(), ("", "local/")):
        with os.scandir(system / top) as entries:
            yield from (f"{top}{e.name}" for e in entries if e.is_dir(follow_symlinks=False))
    for name in _DEEPER:
        path = system / name
        if path.resolve() == path and path.is_dir():
            yield name


def remove(directory: Path) -> None:
    """Remove what a command, or a sandbox, has written. What cannot be removed now is swept later. Blocks."""
    with suppress(OSError):
        disk.remove(directory)


def sweep(roots: Path) -> None:
    """Remove what the sandboxes of dead servers have left. Blocks."""
    for left in roots.iterdir() if roots.is_dir() else ():
        name = sandbox_names.read(left.name)
        if name is not None and name.orphaned:
            remove(left)
