"""The manifest of a tree that is no directory anywhere: entries of other snapshots, laid out anew.

What files contain stays in the packs that it is in; only the lists of entries are new.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec
from anyio import to_thread

from roost.core.snapshots.fetch import Fetch
from roost.core.snapshots.gather import ends_segment, weight_of
from roost.core.snapshots.packs import Load, encode_entries
from roost.domain.snapshot import Manifest, Snapshot, SnapshotPart, Totals, TreeEntry, digest_of
from roost.domain.union import united


async def in_one(
    fetch: Fetch, home: Snapshot, shared: Snapshot, own: Collection[bytes]
) -> tuple[Manifest, list[TreeEntry]]:
    """The entries of two snapshots as one tree's, whose own directory is the home's."""
    root, beside = await fetch.manifest(home), await fetch.manifest(shared)
    mine = [entry async for entry in fetch.entries(root)]
    theirs = [entry async for entry in fetch.entries(beside)]
    return root, await to_thread.run_sync(united, mine, theirs, own)


class Layout(msgspec.Struct, frozen=True):
    """A manifest, and what has to be stored before it."""

    manifest: Manifest
    loads: Sequence[Load]


def laid_out(
    entries: Sequence[TreeEntry], root: Manifest, workspace: str, key: Callable[[int], str]
) -> Layout:
    """The first snapshot of a workspace, whose own directory is as `root` says. Takes a while."""
    loads, segments = [Load(key(0))], list[SnapshotPart]()
    for segment in _segments(entries):
        data = encode_entries(segment)
        if loads[-1].full:
            loads.append(Load(key(len(loads))))
        segments.append(loads[-1].add(digest_of(data), data))
    parts = [part for entry in entries for part in entry.parts if part.digest]
    packs = {part.pack for part in (*parts, *segments)}
    manifest = Manifest(
        workspace=workspace,
        sequence=1,
        mode=root.mode,
        mtime=root.mtime,
        owner=root.owner,
        segments=tuple(segments),
        packs=tuple(sorted(packs)),
        totals=Totals(len(entries), sum(part.size for part in parts)),
    )
    return Layout(manifest, [load for load in loads if load.size])


def _segments(entries: Sequence[TreeEntry]) -> Iterator[list[TreeEntry]]:
    segment: list[TreeEntry] = []
    weight = 0
    for entry in entries:
        segment.append(entry)
        weight += weight_of(entry)
        if ends_segment(entry.path, weight):
            yield segment
            segment, weight = [], 0
    if segment:
        yield segment
