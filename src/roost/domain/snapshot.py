"""What a snapshot is: a tree's entries, where their content lies, and which snapshot is the newest.

    head ──▶ manifest ──▶ segments ──▶ entries ──▶ parts ──▶ frames of packs

A *part* is up to `PART` bytes of a file, named by its hash and stored once. Parts, and the lists of entries
(*segments*), are compressed together in *packs*: one object holds what hundreds of small files
contain. A *manifest* names the segments and every pack they need. The *head* of a workspace names its
manifests, the newest last, and is the only object that is ever changed.

Every attempt at a snapshot writes under names of its own, which begin with the sequence it builds on.
Only the attempt that finds the head still at that sequence can become the next one. So what an attempt
left behind is known to be garbage, without a clock, as soon as the head has moved on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from roost.domain.events import Micros
from roost.errors import SnapshotCorrupt

PART: Final = 1 << 20
LONGEST_PATH: Final = 4095
DIGEST: Final = 32
_MOST_TURNS: Final = 100  # that one snapshot is the end of

BEGINNING: Final = -1
"""The mark of the snapshot that a workspace began with, if it was not empty: no place in a log has it."""

TurnEnd = tuple[str, int]
"""A session, and the place in its log where a turn of it ended."""


class SnapshotPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes of a file: `size` of them at `start` in a frame of a pack. Without a digest: a hole."""

    digest: bytes
    pack: str
    frame: int
    start: int
    size: int


class TreeEntry(msgspec.Struct, frozen=True, array_like=True):
    """One name in a tree. `owner`: a uid and a gid that are not those of the tree's own directory.

    `target` is where a symbolic link leads, as it was written, or the entry whose other name a hard
    link is.
    """

    kind: Literal["directory", "file", "symlink", "link"]
    path: bytes
    mode: int = 0
    mtime: int = 0
    size: int = 0
    parts: tuple[SnapshotPart, ...] = ()
    target: bytes = b""
    owner: tuple[int, int] | None = None


class Totals(msgspec.Struct, frozen=True):
    """How much a snapshot holds."""

    entries: int = 0
    bytes: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot: segments in the order of the tree, and every pack that any of it lies in."""

    workspace: str
    sequence: int
    mode: int
    mtime: int
    owner: tuple[int, int]
    segments: tuple[SnapshotPart, ...]
    packs: tuple[str, ...]
    totals: Totals


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest as the head lists it. `mark`: what the caller had come to, such as a position in a log.

    `turns` are the turns that the files were so at the end of, if several sessions use the workspace.
    """

    key: str
    digest: bytes
    sequence: int
    at: Micros
    mark: int = 0
    totals: Totals = Totals()
    turns: tuple[TurnEnd, ...] = ()


class SnapshotHold(msgspec.Struct, frozen=True):
    """Another workspace began with this snapshot and may need its packs for as long as it lives."""

    snapshot: Snapshot
    by: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Which snapshots a workspace has, the newest last. `generation`: of the last one that wrote it.

    `rewound` is the last rewind that it has followed, `origin` the workspace that it was forked off, and
    `beside` another one whose files it began with.
    """

    sequence: int = 0
    generation: int = 0
    snapshots: tuple[Snapshot, ...] = ()
    holds: tuple[SnapshotHold, ...] = ()
    deleted: bool = False
    rewound: int = 0
    origin: str = ""
    beside: str = ""

    @property
    def newest(self) -> Snapshot | None:
        """The snapshot a workspace is restored from."""
        return self.snapshots[-1] if self.snapshots else None

    def followed_by(self, snapshot: Snapshot, generation: int, keep: int) -> Head:
        """With one more; the oldest of more than `keep` are dropped, and an earlier one of its mark.

        If it has the turns of the one before, and the same files, it takes its place.
        """
        before = self.snapshots
        if before and before[-1].mark and before[-1].mark == snapshot.mark:
            before = before[:-1]
        elif before and snapshot.turns and before[-1].key == snapshot.key:
            both = (*before[-1].turns, *snapshot.turns)
            before, snapshot = before[:-1], replace(snapshot, turns=both[-_MOST_TURNS:])
        kept = (*before, snapshot)[-keep:]
        return replace(self, sequence=snapshot.sequence, generation=generation, snapshots=kept)

    def marked(self, first: int, last: int) -> Snapshot | None:
        """The newest snapshot whose mark is one of these."""
        found = [snapshot for snapshot in self.live() if first <= snapshot.mark <= last]
        return max(found, key=lambda snapshot: snapshot.sequence, default=None)

    def ended(self, session: str, first: int, last: int) -> Snapshot | None:
        """The newest snapshot from the end of a turn of this session, somewhere between these places."""
        found = [
            snapshot
            for snapshot in self.live()
            if any(who == session and first <= seq <= last for who, seq in snapshot.turns)
        ]
        return max(found, key=lambda snapshot: snapshot.sequence, default=None)

    def released(self, keep: int, since: Micros) -> Head:
        """Without all but the newest `keep`, and without those from before `since`; the newest stays."""
        kept = self.snapshots[-keep:]
        recent = (snapshot for snapshot in kept[:-1] if snapshot.at >= since)
        return replace(self, snapshots=(*recent, *kept[-1:]))

    def without(self, old: Collection[Snapshot]) -> Head:
        """Without these, but for the newest; what others hold stays held."""
        kept = (snapshot for snapshot in self.snapshots[:-1] if snapshot not in old)
        return replace(self, snapshots=(*kept, *self.snapshots[-1:]))

    def live(self) -> list[Snapshot]:
        """The snapshots that anybody may restore."""
        return [*self.snapshots, *(hold.snapshot for hold in self.holds)]


def digest_of(data: bytes) -> bytes:
    """The name of some content."""
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def order(path: bytes) -> list[bytes]:
    """What a tree is sorted by: a directory, then what is in it, then what is beside it."""
    return path.split(b"/")


def check_tree(before: TreeEntry | None, entry: TreeEntry) -> None:
    """An entry may follow another one in a manifest: in order, and nothing that leads out of the tree.

    :raises SnapshotCorrupt: whoever wrote this would write elsewhere
    """
    names = order(entry.path)
    if len(entry.path) > LONGEST_PATH or b"\0" in entry.path or {b"", b".", b".."} & set(names):
        raise SnapshotCorrupt(f"a snapshot has an entry with the name {entry.path[:200]!r}")
    if before is not None and order(before.path) >= names:
        raise SnapshotCorrupt(f"a snapshot's entries are out of order at {entry.path[:200]!r}")
    if entry.kind == "file" and sum(part.size for part in entry.parts) != entry.size:
        raise SnapshotCorrupt(f"a snapshot's parts do not make up {entry.path[:200]!r}")


def head_key(workspace: str) -> str:
    """Where a workspace's head is."""
    return f"workspaces/{workspace}/head"


def manifest_key(workspace: str, sequence: int, attempt: str) -> str:
    """Where the manifest of an attempt at a snapshot goes."""
    return f"workspaces/{workspace}/snapshots/{sequence - 1}-{attempt}"


def pack_key(workspace: str, sequence: int, attempt: str, number: int) -> str:
    """Where a pack of an attempt at a snapshot goes."""
    return f"workspaces/{workspace}/packs/{sequence - 1}-{attempt}-{number}"


def base_of(key: str) -> int:
    """The sequence that the attempt built on which wrote this manifest or pack."""
    return int(key.rpartition("/")[2].partition("-")[0])
