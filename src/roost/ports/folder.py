"""A session's directory, as people look into it from outside while an agent may be at work in it.

Nothing here believes a path: no link is followed, nothing outside is reached, and only regular files are
read. Paths are relative, with slashes; the empty one is the directory itself. All methods block: call
them in threads. Each raises `NotFound` if there is nothing at the path, and `InvalidRequest` if the path
leads over a link, out of the directory, or to something of another kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO, Literal, Protocol

import msgspec

from roost.domain.events import Micros

Kind = Literal["directory", "file", "symlink", "other"]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Something in a directory. `path` is None if its name is no text: it cannot be asked for."""

    name: str
    path: str | None
    kind: Kind
    size: int
    modified_at: Micros


class ListingPosition(msgspec.Struct, frozen=True, array_like=True):
    """Where an item stands in a listing: directories first, then by name."""

    is_file: bool
    name: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a directory. `more`: where it goes on. `cut`: there is more than anybody looks at."""

    items: Sequence[Item]
    more: ListingPosition | None
    cut: bool


class Content(Protocol):
    """A regular file that is open. Its size is what it was when it was opened."""

    @property
    def item(self) -> Item:
        """The file, as it was when it was opened."""
        ...

    def read(self, start: int, size: int) -> bytes:
        """Bytes from there on; fewer only if the file has become shorter."""
        ...

    def close(self) -> None:
        """Close the file; what was written is in it."""
        ...


class Folder(Protocol):
    """One session's directory, as people see it."""

    def begin(self) -> None:
        """Make the directory itself, unless it is there. Called before anything is put into it."""
        ...

    def list(self, path: str, after: ListingPosition | None, limit: int) -> Listing:
        """A directory's items that come after the position `after`."""
        ...

    def open(self, path: str) -> Content:
        """A regular file, to be read."""
        ...

    def put(self, path: str, data: BinaryIO, *, overwrite: bool) -> Item:
        """Write a file: whole or not at all, the session's own. Directories on the way are made.

        :raises Conflict: something is there, and must not be overwritten, or is a directory
        :raises TooLarge: the disk has no room for it
        """
        ...

    def make(self, path: str) -> Item:
        """Make a directory, and those on the way to it. :raises Conflict: something else is there"""
        ...

    def remove(self, path: str, *, recursive: bool) -> None:
        """Remove a file, a link, or a directory; one that is not empty only if `recursive`.

        :raises Conflict: it is not empty
        """
        ...
