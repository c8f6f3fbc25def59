"""Storing snapshots, and finding them again.

In this order, each step durable before the next: packs, the manifest, the head. A crash before the last
one changes nothing that anybody reads. The head moves by a conditional write and carries the generation
that moved it: of two nodes that both believe to have the workspace, the newer one wins, for good.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar, TypeVarTuple

import anyio
import msgspec
from anyio import to_thread
from msgspec.structs import replace

from roost.core.concurrency import a_few_at_once
from roost.core.snapshots import index as local
from roost.core.snapshots.fetch import Fetch
from roost.core.snapshots.garbage import beyond, collect
from roost.core.snapshots.gather import Earlier, Gatherer, GatherLimits, Report
from roost.core.snapshots.heads import Heads
from roost.core.snapshots.index import Index, Known, Previous
from roost.core.snapshots.packs import Load, seal
from roost.core.snapshots.unite import in_one, laid_out
from roost.domain.events import Micros
from roost.domain.snapshot import (
    BEGINNING,
    Head,
    Manifest,
    Snapshot,
    SnapshotHold,
    TurnEnd,
    digest_of,
    manifest_key,
    pack_key,
)
from roost.errors import BlobsFailed, LeaseLost, NotFound, RoostError, SnapshotsMissing
from roost.ports.blobs import Blobs
from roost.ports.tree import Root, Tree

T = TypeVar("T")
Args = TypeVarTuple("Args")

_log = logging.getLogger(__name__)
_AT_ONCE = 4  # packs that are compressed and stored at once: what a snapshot takes of memory

_REWIND = "rewind"  # who holds a snapshot that a workspace is going to be rewound to


Origin = tuple[str, Snapshot]
"""A workspace, and one of its snapshots."""


class TakenSnapshot(msgspec.Struct, frozen=True):
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
    """The snapshots of all workspaces in one blob store. `keep`: how many of each, `most_bytes`: how much
    of each may be stored, with the newest in any case; 0: as much as it takes.
    """

    def __init__(
        self,
        blobs: Blobs,
        *,
        limits: GatherLimits | None = None,
        keep: int = 100,
        most_bytes: int = 0,
        clock: Callable[[], Micros] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.fetch = Fetch(blobs)
        self._blobs = blobs
        self._heads = Heads(blobs, self.fetch)
        self._limits = limits or GatherLimits()
        self._keep = keep
        self._most_bytes = most_bytes
        self._clock = clock
        self._threads = anyio.CapacityLimiter(_AT_ONCE + 1)

    async def take(
        self,
        workspace: str,
        tree: Tree,
        generation: int,
        mark: Callable[[], int] = lambda: 0,
        turns: Callable[[], Sequence[TurnEnd]] = tuple,
        *,
        expected: bool = False,
        refusal: RoostError | None = None,
    ) -> TakenSnapshot:
        """Store what the tree is now, and make it the newest snapshot.

        Its mark, or which turns it is the end of, is asked for when all is stored: what it stands for may
        have passed by then. A turn that has a snapshot already keeps that one. `expected`: there is a
        snapshot already, so a store without any is the wrong one. `refusal` is raised if there is anything
        new to store.

        :raises LeaseLost: a newer generation has the workspace
        :raises NotFound: there is no directory, or the workspace was deleted
        :raises WorkspaceTooLarge: nothing was stored
        :raises SnapshotsMissing: the store has none, and should
        """
        base = await self._base(workspace, tree, generation)
        if expected and base.head.newest is None:
            raise SnapshotsMissing
        sequence, attempt = base.head.sequence + 1, os.urandom(4).hex()
        gatherer = Gatherer(
            tree,
            base.root,
            base.earlier,
            partial(pack_key, workspace, sequence, attempt),
            self._limits,
        )
        stored = await self._store_loads(gatherer, refusal)
        manifest = gatherer.manifest(workspace, sequence)
        newest = base.head.newest
        if newest is not None and base.manifest is not None and _same(base.manifest, manifest):
            await self._in_thread(self._remember, tree, newest, base.root, gatherer, base.manifest)
            ends = _new(base.head, turns())
            same = replace(newest, sequence=sequence, at=self._clock(), mark=mark(), turns=ends)
            if same.mark in (0, newest.mark) and not same.turns:
                return TakenSnapshot(newest, 0, gatherer.report)
            await self._follow(workspace, base, same, generation)
            return TakenSnapshot(same, 0, gatherer.report)
        key = manifest_key(workspace, sequence, attempt)
        snapshot, size = await self._store_manifest(key, manifest)
        snapshot = replace(snapshot, mark=mark(), turns=_new(base.head, turns()))
        await self._follow(workspace, base, snapshot, generation)
        await self._in_thread(self._remember, tree, snapshot, base.root, gatherer, manifest)
        return TakenSnapshot(snapshot, stored + size, gatherer.report)

    async def head(self, workspace: str) -> Head:
        """Which snapshots there are, none perhaps. :raises SnapshotCorrupt: it cannot be told"""
        return (await self.fetch.head(workspace))[0]

    async def fence(self, workspace: str, generation: int, *, expected: bool = False) -> Head:
        """From now on older generations can store nothing. `expected` as for `take`.

        :raises LeaseLost: this is an older one :raises SnapshotsMissing: nothing was written
        """
        head, version = await self.fetch.head(workspace)
        if expected and head.newest is None:
            raise SnapshotsMissing
        _refuse_older(head, generation)
        if head.generation == generation:
            return head
        return await self._heads.move(
            workspace, head, version, lambda now: replace(now, generation=generation)
        )

    async def fork(self, source: str, snapshot: Snapshot, target: str) -> None:
        """Begin another workspace with a snapshot of this one, which keeps what the other needs of it.

        A crash half way leaves a hold on a snapshot, and no other workspace; doing it again is safe.

        :raises NotFound: the snapshot is gone
        """
        held = await self._hold(source, snapshot, target)
        first = replace(held, sequence=1, mark=BEGINNING, turns=())
        begun = Head(sequence=1, snapshots=(first,), origin=source)
        await self._heads.move(target, Head(), None, lambda _: begun)

    async def unite(
        self, home: Origin, shared: Origin, target: str, own: Collection[bytes]
    ) -> None:
        """As `fork`, with the files of two snapshots in one tree; see `domain.union`.

        :raises NotFound: one of them is gone
        """
        mine, theirs = [await self._hold(*origin, target) for origin in (home, shared)]
        root, both = await in_one(self.fetch, mine, theirs, own)
        attempt = os.urandom(4).hex()
        layout = await self._in_thread(
            laid_out, both, root, target, partial(pack_key, target, 1, attempt)
        )
        for load in layout.loads:
            await self._store_load(load, [])
        stored, _ = await self._store_manifest(manifest_key(target, 1, attempt), layout.manifest)
        first = replace(stored, mark=BEGINNING)
        begun = Head(sequence=1, snapshots=(first,), origin=home[0], beside=shared[0])
        await self._heads.move(target, Head(), None, lambda _: begun)

    async def pin(self, workspace: str, snapshot: Snapshot) -> None:
        """Keep a snapshot until the workspace is rewound to it, or another one is pinned.

        :raises NotFound: the snapshot is gone
        """
        await self._hold(workspace, snapshot, _REWIND)

    async def rewind(self, workspace: str, at: int, mark: int, generation: int) -> None:
        """Make the newest snapshot with this mark the newest of all, once: the rewind is named `at`.

        :raises LeaseLost: a newer generation has the workspace
        :raises NotFound: there is no such snapshot
        """

        def rewound(head: Head) -> Head:
            found = head.marked(mark, mark)
            if head.rewound >= at:
                return head
            if found is None:
                raise NotFound("the snapshot of that turn is not kept any more")
            again = replace(found, sequence=head.sequence + 1, at=self._clock())
            after = head.followed_by(again, generation, self._keep)
            return replace(after, rewound=at, holds=_unpinned(head))

        head, version = await self.fetch.head(workspace)
        _refuse_older(head, generation)
        await self._heads.move(workspace, head, version, rewound)

    async def delete(self, workspace: str, *, surely: bool = False) -> None:
        """Drop all snapshots, except what other workspaces need. `garbage.collect` frees the space.

        `surely`: also if it was never seen; whoever was about to make it cannot any more.
        """
        head, version = await self.fetch.head(workspace)
        if (version is not None or surely) and not head.deleted:
            await self._heads.move(
                workspace,
                head,
                version,
                lambda now: replace(
                    now,
                    sequence=now.sequence + 1,
                    snapshots=(),
                    deleted=True,
                    holds=_unpinned(now),
                ),
            )

    async def release(self, workspace: str, generation: int, *, keep: int, since: Micros) -> bool:
        """Let go of all but the newest `keep`, and of those from before `since`; not of the newest, nor
        of what other workspaces hold. Whether there were any; `tidy` frees their space.

        :raises LeaseLost: a newer generation has the workspace, or a snapshot was taken meanwhile
        """
        head, version = await self.fetch.head(workspace)
        _refuse_older(head, generation)
        if head.released(keep, since) == head:
            return False
        await self._heads.move(workspace, head, version, lambda now: now.released(keep, since))
        return True

    async def weight(self, workspace: str) -> int:
        """How many bytes of the store it takes, with what it was forked off, if that is gone."""
        due, seen, total = [workspace], {""}, 0
        while due:
            one = due.pop()
            seen.add(one)
            total += sum(stored.size for stored in await self._blobs.list(f"workspaces/{one}/"))
            head = await self.head(one)
            others = {head.origin, head.beside} - seen
            due += [origin for origin in others if (await self.head(origin)).deleted]
        return total

    async def heirs(self, workspace: str) -> set[str]:
        """Which workspaces hold snapshots of it."""
        return {hold.by for hold in (await self.head(workspace)).holds} - {_REWIND}

    async def tidy(self, workspace: str, most: int | None = None) -> None:
        """Remove what nobody needs any more of it, and of what it was forked off, if that is gone. The oldest
        snapshots are released first, if it takes too much; `most`: more than so many bytes.

        Another time, if it cannot be now.
        """
        try:
            head = await self.head(workspace)
            if dead := [hold for hold in head.holds if await self._is_dead(hold.by)]:
                await self._heads.change(workspace, lambda now: _without(now, dead))
            most = self._most_bytes or None if most is None else most
            if most is not None and (old := await beyond(self._blobs, workspace, most)):
                await self._heads.change(workspace, lambda now: now.without(old))
            await collect(self._blobs, workspace)
            for origin in (head.origin, head.beside):
                if head.deleted and origin:
                    await self.tidy(origin)
        except (BlobsFailed, LeaseLost) as error:
            _log.warning("cannot tidy up: %s", error.message, extra={"action": "collect"})

    async def _is_dead(self, workspace: str) -> bool:
        """Whether neither it nor any that was forked off it needs anything."""
        if workspace == _REWIND:
            return False
        head = await self.head(workspace)
        return head.deleted and all([await self._is_dead(hold.by) for hold in head.holds])

    async def _hold(self, workspace: str, snapshot: Snapshot, by: str) -> Snapshot:
        """Hold a snapshot, or the one that has taken its place and its mark since; gives that."""

        def wanted(head: Head) -> Snapshot:
            found = snapshot if snapshot in head.live() else None
            if found is None and snapshot.mark:
                found = head.marked(snapshot.mark, snapshot.mark)
            if found is None:
                same = (one for one in head.live() if one.key == snapshot.key)
                found = next(same, None)
            if found is None:
                raise NotFound("that snapshot is not kept any more")
            return found

        def held(head: Head) -> Head:
            hold, others = SnapshotHold(wanted(head), by), head.holds
            if hold in others:
                return head
            return replace(head, holds=(*(_unpinned(head) if by == _REWIND else others), hold))

        return wanted(await self._heads.change(workspace, held))

    async def _follow(
        self, workspace: str, base: _Base, snapshot: Snapshot, generation: int
    ) -> None:
        await self._heads.move(
            workspace,
            base.head,
            base.version,
            lambda now: now.followed_by(snapshot, generation, self._keep),
        )

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

    async def _store_loads(self, gatherer: Gatherer, refusal: RoostError | None) -> int:
        """How many bytes it took to store what is new."""
        sizes: list[int] = []
        with closing(gatherer.loads()) as loads:
            async with a_few_at_once(_AT_ONCE) as start:
                while (load := await self._in_thread(_next, loads)) is not None:
                    if refusal is not None:
                        raise refusal
                    await start(partial(self._store_load, load, sizes))
        return sum(sizes)

    async def _store_load(self, load: Load, sizes: list[int]) -> None:
        pack = await self._in_thread(load.pack)
        await self._blobs.put(load.key, pack)
        sizes.append(len(pack))

    async def _store_manifest(self, key: str, manifest: Manifest) -> tuple[Snapshot, int]:
        data = await self._in_thread(seal, manifest)
        await self._blobs.put(key, data)
        snapshot = Snapshot(
            key=key,
            digest=digest_of(data),
            sequence=manifest.sequence,
            at=self._clock(),
            totals=manifest.totals,
        )
        return snapshot, len(data)

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


def _new(head: Head, turns: Sequence[TurnEnd]) -> tuple[TurnEnd, ...]:
    return tuple(end for end in turns if head.ended(end[0], end[1], end[1]) is None)


def _next(loads: Iterator[Load]) -> Load | None:
    return next(loads, None)


def _earlier(manifest: Manifest | None, rows: Iterator[local.Row], known: Known) -> Earlier:
    segments = {part.digest: part for part in manifest.segments} if manifest else {}
    return Earlier(Previous(rows), known, segments)


def _same(one: Manifest, other: Manifest) -> bool:
    return replace(one, sequence=0, workspace="") == replace(other, sequence=0, workspace="")


def _unpinned(head: Head) -> tuple[SnapshotHold, ...]:
    return tuple(hold for hold in head.holds if hold.by != _REWIND)


def _without(head: Head, holds: Sequence[SnapshotHold]) -> Head:
    return replace(head, holds=tuple(hold for hold in head.holds if hold not in holds))


def _refuse_older(head: Head, generation: int) -> None:
    if head.generation > generation:
        raise LeaseLost(f"generation {head.generation} has the workspace now, this is {generation}")
