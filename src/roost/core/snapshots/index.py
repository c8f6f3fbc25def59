"""What this machine remembers of the last snapshot: which files it need not read again.

Disposable: without it, a snapshot reads every file and stores only what is new all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import zstandard

from roost.domain.snapshot import Manifest, SnapshotPart, TreeEntry, order
from roost.ports.tree import Signature, Tree

_NOTE = "index"
_MOST_KNOWN = 500_000  # parts that are looked up; more are stored again rather than kept in memory

Row = tuple[TreeEntry, Signature | None]


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """`base` is the digest of the snapshot, `root` the identity of the directory it was taken of.

    `segments` are compressed lists of entries, each with the status its file had.
    """

    base: bytes
    root: str
    manifest: Manifest
    segments: Sequence[bytes]

    def rows(self) -> Iterator[Row]:
        """Every entry, in order."""
        for segment in self.segments:
            yield from _decoder.decode(zstandard.decompress(segment))


_decoder = msgspec.msgpack.Decoder(list[Row])


def compress_rows(rows: Sequence[Row]) -> bytes:
    """A segment for the index."""
    return zstandard.compress(msgspec.msgpack.encode(rows), 1)


def recall(tree: Tree, base: bytes, root: str) -> Index | None:
    """The index of this snapshot and this directory, if there is one. Blocks."""
    data = tree.recall(_NOTE)
    if data is None:
        return None
    try:
        index = msgspec.msgpack.decode(data, type=Index)
    except msgspec.DecodeError:
        return None
    return index if (index.base, index.root) == (base, root) else None


def remember(tree: Tree, index: Index) -> None:
    """For the next snapshot. Blocks."""
    tree.remember(_NOTE, msgspec.msgpack.encode(index))


class Known:
    """Where parts lie that an earlier snapshot has stored. Entries given are looked at when needed."""

    def __init__(self, entries: Iterator[TreeEntry] | None = None) -> None:
        self._entries = entries
        self._parts: dict[bytes, SnapshotPart] = {}

    def find(self, digest: bytes) -> SnapshotPart | None:
        """The part with this content."""
        if self._entries is not None:
            for entry in self._entries:
                self.add(entry.parts)
            self._entries = None
        return self._parts.get(digest)

    def add(self, parts: Sequence[SnapshotPart]) -> None:
        """Note where more parts are stored, as far as there is room for it."""
        if len(self._parts) < _MOST_KNOWN:
            self._parts.update((part.digest, part) for part in parts if part.digest)


class Previous:
    """The entries of the last snapshot, asked for in their order."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._next = next(rows, None)

    def find(self, path: bytes) -> Row | None:
        """What was there; paths before the last one asked for are not found any more."""
        while self._next is not None:
            row = self._next
            if row[0].path != path and order(row[0].path) > order(path):
                return None
            self._next = next(self._rows, None)
            if row[0].path == path:
                return row
        return None
