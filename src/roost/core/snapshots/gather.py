"""Reading a tree: what is new in it goes into loads, and everything into a list of entries.

Blocks, and is given to threads a load at a time. However large the tree, no more is held than a load, a
segment and the compressed index.
"""

from __future__ import annotations

from binascii import crc32
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from typing import Final

import msgspec

from roost.core.snapshots.index import Known, Previous, compress_rows
from roost.core.snapshots.packs import Load, encode_entries
from roost.domain.snapshot import Manifest, SnapshotPart, Totals, TreeEntry, digest_of
from roost.errors import WorkspaceTooLarge
from roost.ports.tree import Changed, Found, Root, Signature, Skipped, Tree, Why

_TRIES: Final = 3  # to read a file that is being written to
_MOST_PARTS: Final = 1_000_000  # of one file
_MOST_IN_A_SEGMENT: Final = 1 << 20  # bytes, about
_CUT: Final = 0xFF  # a segment ends after one name in 256, whatever is before and behind it


_Row = tuple[TreeEntry, Signature | None]


class GatherLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot may hold; a workspace with more is refused."""

    entries: int = 1_000_000
    bytes: int = 256 << 30


class Report:
    """What a walk left out: how much of each kind, and the first few by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: list[Skipped] = []

    def note(self, path: bytes, why: Why) -> None:
        """Something was left out."""
        self.counts[why] += 1
        if len(self.examples) < 20:
            self.examples.append(Skipped(path, why))


class Earlier(msgspec.Struct, frozen=True):
    """What is known of earlier snapshots: entries by path, parts by content, segments by content."""

    previous: Previous
    known: Known
    segments: Mapping[bytes, SnapshotPart]


def weight_of(entry: TreeEntry) -> int:
    """How many bytes it takes in a segment, about."""
    return len(entry.path) + len(entry.target) + 100 * len(entry.parts) + 50


def ends_segment(path: bytes, weight: int) -> bool:
    """Whether a segment that has this weight by now ends after this name."""
    return not crc32(path) & _CUT or weight > _MOST_IN_A_SEGMENT


class Gatherer:
    """One reading of one tree. `key` names the packs: it is called with 0, 1, 2 …"""

    def __init__(
        self,
        tree: Tree,
        root: Root,
        earlier: Earlier,
        key: Callable[[int], str],
        limits: GatherLimits,
    ) -> None:
        self.report = Report()
        self.segments: list[SnapshotPart] = []
        self.index: list[bytes] = []
        self.packs: set[str] = set()
        self._tree = tree
        self._root = root
        self._earlier = earlier
        self._key = key
        self._limits = limits
        self._entries = self._bytes = self._numbered = self._weight = 0
        self._load = Load(key(0))
        self._rows: list[_Row] = []
        self._names: dict[tuple[int, int], bytes] = {}

    @property
    def totals(self) -> Totals:
        """How much there was."""
        return Totals(self._entries, self._bytes)

    def manifest(self, workspace: str, sequence: int) -> Manifest:
        """What was read, as a snapshot, once all loads are taken."""
        return Manifest(
            workspace=workspace,
            sequence=sequence,
            mode=self._root.mode,
            mtime=self._root.mtime,
            owner=self._root.owner,
            segments=tuple(self.segments),
            packs=tuple(sorted(self.packs - {""})),
            totals=self.totals,
        )

    def loads(self) -> Generator[Load, None, None]:
        """What has to be stored, as it comes up. :raises WorkspaceTooLarge:"""
        for found in self._tree.walk():
            if isinstance(found, Skipped):
                self.report.note(found.path, found.why)
                continue
            row = yield from self._row(found)
            if row is not None:
                self._add(*row)
            if ends_segment(found.path, self._weight):
                yield from self._end_segment()
        yield from self._end_segment()
        if self._load.size:
            yield self._load

    def _row(self, found: Found) -> Generator[Load, None, _Row | None]:
        if found.kind == "directory":
            return self._entry(found), None
        if found.identity is not None:
            first = self._names.setdefault(found.identity, found.path)
            if first != found.path:
                return TreeEntry("link", found.path, target=first), None
        if found.kind == "symlink":
            return self._symlink(found)
        before = self._earlier.previous.find(found.path)
        if before is not None and before[1] is not None and before[1] == found.signature:
            return self._entry(found, before[0].parts), found.signature
        row = yield from self._read(found, before[0] if before else None)
        if row is None and found.identity is not None:
            del self._names[found.identity]  # its other name stands for itself
        return row

    def _symlink(self, found: Found) -> _Row | None:
        try:
            return self._entry(found, target=self._tree.link(found)), None
        except Changed:
            return None

    def _entry(
        self, found: Found, parts: tuple[SnapshotPart, ...] = (), target: bytes = b""
    ) -> TreeEntry:
        size = found.size if found.kind == "file" else 0
        owner = None if found.owner == self._root.owner else found.owner
        return TreeEntry(
            found.kind, found.path, found.mode, found.mtime, size, parts, target, owner
        )

    def _read(self, found: Found, before: TreeEntry | None) -> Generator[Load, None, _Row | None]:
        """The file as it was at one moment. If it never holds still, what it was in the last snapshot."""
        for _ in range(_TRIES):
            try:
                parts = yield from self._parts(found)
            except Changed:
                now = self._tree.again(found)
                if not isinstance(now, Found) or now.kind != "file":
                    return None
                found = now
            except OSError:
                self.report.note(found.path, "unreadable")
                return None
            else:
                return (self._entry(found, parts), found.signature) if parts is not None else None
        self.report.note(found.path, "changing")
        return (before, None) if before is not None and before.kind == "file" else None

    def _parts(self, found: Found) -> Generator[Load, None, tuple[SnapshotPart, ...] | None]:
        parts = []
        for piece in self._tree.read(found):
            if isinstance(piece, int):
                parts.append(SnapshotPart(b"", "", 0, 0, piece))
            else:
                parts.append((yield from self._stored(piece)))
            if len(parts) > _MOST_PARTS:
                self.report.note(found.path, "scattered")
                return None
        return tuple(parts)

    def _stored(self, data: bytes) -> Generator[Load, None, SnapshotPart]:
        digest = digest_of(data)
        known = self._earlier.known.find(digest)
        if known is not None:
            return known
        if self._load.full:
            yield self._load
            self._numbered += 1
            self._load = Load(self._key(self._numbered))
        part = self._load.add(digest, data)
        self._earlier.known.add([part])
        return part

    def _add(self, entry: TreeEntry, signature: Signature | None) -> None:
        self._rows.append((entry, signature))
        self._entries += 1
        self._bytes += sum(part.size for part in entry.parts if part.digest)
        self._weight += weight_of(entry)
        self.packs.update(part.pack for part in entry.parts)
        if self._entries > self._limits.entries or self._bytes > self._limits.bytes:
            raise WorkspaceTooLarge(
                f"the workspace has more than {self._limits.entries:,} files or "
                f"{self._limits.bytes:,} bytes"
            )

    def _end_segment(self) -> Generator[Load, None, None]:
        if not self._rows:
            return
        data = encode_entries([entry for entry, _ in self._rows])
        part = self._earlier.segments.get(digest_of(data))
        if part is None:
            part = yield from self._stored(data)
        self.segments.append(part)
        self.packs.add(part.pack)
        self.index.append(compress_rows(self._rows))
        self._rows = []
        self._weight = 0
