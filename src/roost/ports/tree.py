"""A workspace's files on this machine, which something inside a sandbox may be changing right now.

Nothing here believes a name: every step is taken from an open directory, no link is followed, only
regular files are read, and nothing is read or written outside. All methods block: call them in threads,
from one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal, Protocol

import msgspec

from roost.domain.snapshot import TreeEntry


class Signature(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a file's status must still be for its content to be the same."""

    size: int
    mtime: int
    ctime: int
    inode: int


class Found(msgspec.Struct, frozen=True):
    """Something met on a walk; good until the next one. `handle` is for the tree that gave it."""

    kind: Literal["directory", "file", "symlink"]
    path: bytes
    mode: int
    mtime: int
    size: int
    owner: tuple[int, int]
    signature: Signature | None
    """None: it was changed so recently that one more change might not show."""
    identity: tuple[int, int] | None
    """Of a file with several names: the same for all of them."""
    handle: int


Why = Literal[
    "socket",
    "fifo",
    "device",
    "mount",
    "unreadable",
    "long_path",
    "moved",
    "changing",
    "scattered",
]
"""Why something is not, or not as it is now, part of a snapshot."""


class Skipped(msgspec.Struct, frozen=True):
    """Something met on a walk that cannot be part of a snapshot."""

    path: bytes
    why: Why


class Root(msgspec.Struct, frozen=True):
    """The tree's own directory. `identity` is another one for another directory in the same place."""

    identity: str
    mode: int
    mtime: int
    owner: tuple[int, int]
    empty: bool


class Changed(Exception):
    """The file is not what it was when reading it began, or is gone."""


class Tree(Protocol):
    """One directory, and what this machine remembers about it."""

    def root(self) -> Root | None:
        """The directory itself; None if there is none."""
        ...

    def walk(self) -> Iterator[Found | Skipped]:
        """Everything in it, in the order of `domain.snapshot.order`. What vanishes is left out."""
        ...

    def read(self, found: Found) -> Iterator[bytes | int]:
        """A file's content in pieces of `PART` bytes, or how long a hole is.

        :raises Changed: not the same file any more, or it was written to meanwhile
        :raises OSError: it cannot be read
        """
        ...

    def link(self, found: Found) -> bytes:
        """Where a symbolic link leads. :raises Changed: it is gone"""
        ...

    def again(self, found: Found) -> Found | Skipped | None:
        """What has this name now; None if nothing has."""
        ...

    def recall(self, what: str) -> bytes | None:
        """What was remembered last under this word; None if nothing was, or it is lost."""
        ...

    def remember(self, what: str, data: bytes) -> None:
        """Keep something beside the tree, not in it: whole, or not at all."""
        ...

    def remove(self) -> None:
        """Remove all of it: the directory, what lies beside it, and what is remembered about it."""
        ...

    def boot(self) -> str:
        """Which start of the machine this is. What was restored in an earlier one may not be on disk."""
        ...

    def make_durable(self) -> None:
        """Returns once all that was restored is on disk, whatever happens to the machine."""
        ...

    def staging(self, name: str, owner: tuple[int, int]) -> AbstractContextManager[Staging]:
        """A directory to restore to, which becomes the tree at the end.

        One that was left under the same name is gone on with, those with other names are removed. On a
        machine that knows nothing of `owner`, its files are the server's own.
        """
        ...


class Staging(Protocol):
    """A tree in the making: directories first, then what is in them."""

    def directory(self, entry: TreeEntry) -> None:
        """Make a directory, or find it made."""
        ...

    def holds(self, entry: TreeEntry) -> bool:
        """Whether this file, hard link or symbolic link was restored before, to the last byte."""
        ...

    def write(self, entry: TreeEntry, at: int, data: bytes, *, last: bool) -> None:
        """Bytes of a file; with the last ones it gets its size, mode and times."""
        ...

    def link(self, entry: TreeEntry) -> None:
        """Make a symbolic or a hard link."""
        ...

    def settle(self, entry: TreeEntry) -> None:
        """Give a directory its mode and times; after everything that is in it."""
        ...

    def finish(self, mode: int, mtime: int) -> Root:
        """Give the tree's own directory its mode and time. Nothing is in its place yet."""
        ...

    def replace(self, *, keep: bool) -> None:
        """Put it in the tree's place. What was there is removed, or set aside to `keep` it."""
        ...
