"""A root that can be written to: each command has an overlay over the machine's `/usr`, and room in `/opt` and `/var`.

What is written there lies in a directory of the sandbox's, on disk, where it counts against the limit of the disk, and
goes with the command. No two commands share one: an overlay may be mounted only once, and whatever a command
might have planted there (a link instead of a directory, say) is never met by the next bwrap.

Of an overlay that a user without rights mounts, only those directories can be written to that belong to that
user. So the sandbox has directories of its own under the names of the machine's, in a layer between. pip's are not
among them: what an agent installs with pip goes to its home, and stays with the session.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from roost import disk
from roost.sandboxes import sandbox_names
from roost.sandboxes.bubblewrap.identity import SandboxIdentity, Uids, hand_over

ROOMS: Final = ("/opt", "/var")
"""What is empty and writable besides the overlay."""

_SYSTEM: Final = Path("/usr")
_SECONDS_TO_HOLD: Final = 60.0
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPER: Final = (
    "lib/node_modules",
    "local/lib/node_modules",
    *("local/share/man", "local/share/man/man1", "share/man", "share/man/man1"),
)


class CommandRoot(msgspec.Struct, frozen=True):
    """Where one command's writes go, as bwrap finds it, and the layers below, the lowest first.

    `below` has those of each directory of the root. `builds`: it is the superuser of a layer that is being built.
    """

    directory: str
    below: Mapping[str, Sequence[str]]
    builds: bool = False


class WritableRoot:
    """What one sandbox has for the roots of its commands. All of it blocks for some hundred microseconds.

    `layer` has packages, over the machine's own system.

    :raises OSError: it cannot be made
    """

    builds = False

    def __init__(self, directory: Path, layer: Path | None = None) -> None:
        self.directory = directory
        self._layer = layer
        self._numbers = itertools.count(1)
        self._owner: tuple[int, int] | None = None

    def prepare(self, who: SandboxIdentity) -> None:
        """Make the layer of directories."""
        self._owner = (who.uid, who.gid) if who.dropped else None
        self.directory.mkdir(mode=0o755)
        for name in ("usr", *(f"usr/{name}" for name in writable_directories())):
            self._make(self.directory / name)
        self._own(self.directory)

    def hold(self) -> int:
        """A descriptor to be closed with the sandbox. As long as it is open, no server takes the directory for one that
        was left behind: of servers in other containers that cannot be seen by their pids.
        """
        descriptor = os.open(self.directory, _DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def command(self) -> Path:
        """Room for one more command."""
        directory = self.directory / str(next(self._numbers))
        self._make(directory)
        for name in ("usr", *(room.removeprefix("/") for room in ROOMS)):
            self._make(directory / name)
            self._make(directory / f"work-{name}")
        return directory

    def below(self) -> dict[str, list[Path]]:
        """What is below, by the directory of the root; the lowest first."""
        layers = {"/usr": [_SYSTEM], **{room: [] for room in ROOMS}}
        for part, lower in layers.items():
            found = self._layer and self._layer / part.removeprefix("/")
            if found and found.is_dir() and any(found.iterdir()):
                lower.append(found)
        layers["/usr"].append(self.directory / "usr")
        return layers

    def etc(self, usual: Path) -> Path:
        """What it has as `/etc`: a layer's, which was made of the usual one."""
        return usual if self._layer is None else self._layer / "etc"

    def _make(self, directory: Path) -> None:
        os.mkdir(directory, 0o755)  # noqa: PTH102 - some thirty of them, whenever a sandbox is opened
        self._own(directory)

    def _own(self, directory: Path) -> None:
        if self._owner is not None:
            os.chown(directory, *self._owner)


class BuildRoot:
    """The root of a layer that is being built: all of it is kept. It is made by `layers`, for one command."""

    builds = True

    def __init__(self, directory: Path, uids: Uids) -> None:
        self.directory = directory
        self._uids = uids

    def prepare(self, who: SandboxIdentity) -> None:
        """Make it the build's own. Blocks for some hundred milliseconds. :raises OSError:"""
        if who.dropped:
            hand_over(self.directory, who, self._uids, shared=False)

    def command(self) -> Path:
        """Where the command writes."""
        return self.directory

    def below(self) -> dict[str, list[Path]]:
        """The machine's own system."""
        return {"/usr": [_SYSTEM]}

    def etc(self, usual: Path) -> Path:
        """Its own."""
        return self.directory / "etc"


Root = WritableRoot | BuildRoot


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
        if name is not None and (name.orphaned or _is_held_by_nobody(left)):
            remove(left)


def _is_held_by_nobody(directory: Path) -> bool:
    try:
        if time.time() < directory.stat().st_mtime + _SECONDS_TO_HOLD:
            return False  # it was made just now, and will be
        descriptor = os.open(directory, _DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
