"""Storing snapshots, and finding them again.

In this order, each step durable before the next: packs, the manifest, the head. A crash before the last
one changes nothing that anybody reads. The head moves by a conditional write and carries the generation
that moved it: of two nodes that both believe to have the workspace, the newer one wins, for good.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TypeVar, TypeVarTuple

import anyio
import msgspec
from anyio import to_thread
from msgspec.structs import replace

from roost.core.tasks import a_few_at_once
from roost.core.workspaces import index as local
from roost.core.workspaces.fetch import Fetch
from roost.core.workspaces.garbage import collect
from roost.core.workspaces.gather import Earlier, Gatherer, Limits, Report
from roost.core.workspaces.index import Index, Known, Previous
from roost.domain.events import Micros
from roost.domain.packs import Load
from roost.domain.snapshot import (
    Head,
    Hold,
    Manifest,
    Snapshot,
    digest_of,
    head_key,
    manifest_key,
    pack_key,
    seal,
)
from roost.errors import BlobChanged, BlobsFailed, LeaseLost, NotFound
from roost.ports.blobs import Blobs
from roost.ports.tree import Root, Tree

T = TypeVar("T")
Args = TypeVarTuple("Args")

_log = logging.getLogger(__name__)
_AT_ONCE = (
    4  # packs that are compressed and stored at the same time: what a snapshot takes of memory
)


class Taken(msgspec.Struct, frozen=True):
    """What came of taking a snapshot. `stored`: bytes sent to the store, 0 if nothing had changed."""

    snapshot: Snapshot
    stored: int
    report: Report


class _Base(msgspec.Struct, frozen=True):
    """What a snapshot builds on: the head as it was read, and what this machine knows of its newest."""

    head: Head
    version: str | None
    root: Root
    manifest: Manifest | None
    earlier: Earlier


class Snapshots:
    """The snapshots of all workspaces in one blob store. `keep`: how many of each."""

    def __init__(
        self,
        blobs: Blobs,
        *,
        limits: Limits | None = None,
        keep: int = 100,
        clock: Callable[[], Micros] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.fetch = Fetch(blobs)
        self._blobs = blobs
        self._limits = limits or Limits()
        self._keep = keep
        self._clock = clock
        self._threads = anyio.CapacityLimiter(_AT_ONCE + 1)

    async def take(self, workspace: str, tree: Tree, generation: int, mark: int = 0) -> Taken:
        """Store what the tree is now, and make it the newest snapshot.

        :raises LeaseLost: a newer generation has the workspace
        :raises NotFound: there is no directory, or the workspace was deleted
        :raises WorkspaceTooLarge: nothing was stored
        """
        base = await self._base(workspace, tree, generation)
        sequence, attempt = base.head.sequence + 1, os.urandom(4).hex()
        gatherer = Gatherer(
            tree,
            base.root,
            base.earlier,
            partial(pack_key, workspace, sequence, attempt),
            self._limits,
        )
        stored = await self._store_loads(gatherer)
        manifest = _manifest(workspace, sequence, base.root, gatherer)
        newest = base.head.newest
        if newest is not None and base.manifest is not None and _same(base.manifest, manifest):
            await self._in_thread(self._remember, tree, newest, base.root, gatherer, base.manifest)
            return Taken(newest, 0, gatherer.report)
        key = manifest_key(workspace, sequence, attempt)
        snapshot, size = await self._store_manifest(key, manifest, mark)
        after = base.head.followed_by(snapshot, generation, self._keep)
        await self._move(workspace, after, base.version)
        await self._in_thread(self._remember, tree, snapshot, base.root, gatherer, manifest)
        return Taken(snapshot, stored + size, gatherer.report)

    async def head(self, workspace: str) -> Head:
        """Which snapshots there are, none perhaps. :raises SnapshotCorrupt: it cannot be told"""
        return (await self.fetch.head(workspace))[0]

    async def fence(self, workspace: str, generation: int) -> Head:
        """From now on older generations can store nothing. :raises LeaseLost: this is an older one"""
        head, version = await self.fetch.head(workspace)
        _refuse_older(head, generation)
        if head.generation == generation:
            return head
        fenced = replace(head, generation=generation)
        await self._move(workspace, fenced, version)
        return fenced

    async def fork(self, source: str, snapshot: Snapshot, target: str) -> None:
        """Begin another workspace with a snapshot of this one, which keeps what the other needs of it.

        A crash half way leaves a hold on a snapshot, and no other workspace; doing it again is safe.

        :raises NotFound: the snapshot is gone
        """
        head, version = await self.fetch.head(source)
        if snapshot not in head.live():
            raise NotFound("that snapshot is not kept any more")
        hold = Hold(snapshot, target)
        if hold not in head.holds:
            await self._move(source, replace(head, holds=(*head.holds, hold)), version)
        first = replace(snapshot, sequence=1)
        await self._move(target, Head(sequence=1, snapshots=(first,)), None)

    async def delete(self, workspace: str) -> None:
        """Drop all snapshots, except what other workspaces need. `garbage.collect` frees the space."""
        head, version = await self.fetch.head(workspace)
        if version is not None and not head.deleted:
            gone = replace(head, sequence=head.sequence + 1, snapshots=(), deleted=True)
            await self._move(workspace, gone, version)

    async def tidy(self, workspace: str) -> None:
        """Remove what no snapshot of this workspace needs any more; another time, if it cannot be now."""
        try:
            await collect(self._blobs, workspace)
        except BlobsFailed as error:
            _log.warning("cannot tidy up: %s", error.message, extra={"action": "collect"})

    async def _base(self, workspace: str, tree: Tree, generation: int) -> _Base:
        head, version = await self.fetch.head(workspace)
        _refuse_older(head, generation)
        root = await self._in_thread(tree.root)
        if root is None or head.deleted:
            raise NotFound("there is no such workspace to take a snapshot of")
        newest = head.newest
        if newest is None:
            return _Base(head, version, root, None, _earlier(None, iter(()), Known()))
        index = await self._in_thread(local.recall, tree, newest.digest, root.identity)
        if index is not None:
            known = Known(entry for entry, _ in index.rows())
            earlier = _earlier(index.manifest, index.rows(), known)
            return _Base(head, version, root, index.manifest, earlier)
        manifest, known = await self.fetch.manifest(newest), Known()
        async for entry in self.fetch.entries(manifest):
            known.add(entry.parts)
        return _Base(head, version, root, manifest, _earlier(manifest, iter(()), known))

    async def _store_loads(self, gatherer: Gatherer) -> int:
        """How many bytes it took to store what is new."""
        sizes: list[int] = []
        with closing(gatherer.loads()) as loads:
            async with a_few_at_once(_AT_ONCE) as start:
                while (load := await self._in_thread(_next, loads)) is not None:
                    await start(partial(self._store_load, load, sizes))
        return sum(sizes)

    async def _store_load(self, load: Load, sizes: list[int]) -> None:
        pack = await self._in_thread(load.pack)
        await self._blobs.put(load.key, pack)
        sizes.append(len(pack))

    async def _store_manifest(
        self, key: str, manifest: Manifest, mark: int
    ) -> tuple[Snapshot, int]:
        data = await self._in_thread(seal, manifest)
        await self._blobs.put(key, data)
        snapshot = Snapshot(
            key=key,
            digest=digest_of(data),
            sequence=manifest.sequence,
            at=self._clock(),
            mark=mark,
            totals=manifest.totals,
        )
        return snapshot, len(data)

    async def _move(self, workspace: str, head: Head, version: str | None) -> None:
        try:
            await self._blobs.swap(head_key(workspace), seal(head), version)
        except BlobChanged:
            raise LeaseLost(
                f"the newest snapshot of {workspace} was changed by somebody else"
            ) from None

    def _remember(
        self, tree: Tree, snapshot: Snapshot, root: Root, gatherer: Gatherer, manifest: Manifest
    ) -> None:
        index = Index(
            base=snapshot.digest, root=root.identity, manifest=manifest, segments=gatherer.index
        )
        try:
            local.remember(tree, index)
        except OSError as error:  # the next snapshot reads more, and that is all
            _log.warning("cannot keep the index: %s", error, extra={"action": "snapshot"})

    async def _in_thread(self, work: Callable[[*Args], T], *args: *Args) -> T:
        return await to_thread.run_sync(work, *args, limiter=self._threads)


def _next(loads: Iterator[Load]) -> Load | None:
    return next(loads, None)


def _earlier(manifest: Manifest | None, rows: Iterator[local.Row], known: Known) -> Earlier:
    segments = {part.digest: part for part in manifest.segments} if manifest else {}
    return Earlier(Previous(rows), known, segments)


def _manifest(workspace: str, sequence: int, root: Root, gatherer: Gatherer) -> Manifest:
    return Manifest(
        workspace=workspace,
        sequence=sequence,
        mode=root.mode,
        mtime=root.mtime,
        owner=root.owner,
        segments=tuple(gatherer.segments),
        packs=tuple(sorted(gatherer.packs - {""})),
        totals=gatherer.totals,
    )


def _same(one: Manifest, other: Manifest) -> bool:
    return replace(one, sequence=0, workspace="") == replace(other, sequence=0, workspace="")


def _refuse_older(head: Head, generation: int) -> None:
    if head.generation > generation:
        raise LeaseLost(f"generation {head.generation} has the workspace now, this is {generation}")
