"""Putting a snapshot's files back: beside their place first, and there only when all are whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
import msgspec
from anyio import to_thread

from roost.core.concurrency import a_few_at_once
from roost.core.snapshots.fetch import Fetch
from roost.domain.snapshot import Manifest, Snapshot, SnapshotPart, TreeEntry
from roost.errors import SnapshotCorrupt
from roost.ports.tree import Root, Staging, Tree

_AT_ONCE: Final = 4  # packs that are got at the same time


class RestoreProgress(msgspec.Struct, frozen=True):
    """How far a restore is."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int


OnProgress = Callable[[RestoreProgress], None]


class _Job(msgspec.Struct, frozen=True):
    """A part of a file that is to be written."""

    entry: TreeEntry
    at: int
    part: SnapshotPart


class Restored(msgspec.Struct, frozen=True):
    """A tree that is whole, and not in its place yet."""

    root: Root
    staging: Staging


@asynccontextmanager
async def restored(
    fetch: Fetch,
    snapshot: Snapshot,
    tree: Tree,
    on_progress: OnProgress | None = None,
    entries: Sequence[TreeEntry] | None = None,
) -> AsyncGenerator[Restored, None]:
    """The snapshot's files, ready to be put in the tree's place in the body.

    With `entries`, those instead of the snapshot's own. Cut off anywhere, it goes on with what is there when it is called again.

    :raises SnapshotCorrupt: some of it is damaged; the tree's place is as it was
    """
    manifest = await fetch.manifest(snapshot)
    staging = tree.staging(snapshot.digest.hex()[:16], manifest.owner)
    opened = await to_thread.run_sync(staging.__enter__)
    try:
        restore = _Restore(fetch, manifest, opened, on_progress)
        await restore.run(entries)
        root = await to_thread.run_sync(opened.finish, manifest.mode, manifest.mtime)
        yield Restored(root, opened)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(staging.__exit__, None, None, None)


class _Restore:
    """One restore. Files are written by one thread at a time, while more packs are being got."""

    def __init__(
        self,
        fetch: Fetch,
        manifest: Manifest,
        staging: Staging,
        on_progress: OnProgress | None,
    ) -> None:
        self._fetch = fetch
        self._manifest = manifest
        self._staging = staging
        self._on_progress = on_progress
        self._directories: list[TreeEntry] = []
        self._links: list[TreeEntry] = []
        self._jobs: dict[str, list[_Job]] = defaultdict(list)
        self._left: dict[bytes, int] = {}
        self._files = self._bytes = 0

    async def run(self, entries: Sequence[TreeEntry] | None) -> None:
        """Restore the whole snapshot, and report how far it is."""
        if entries is None:
            entries = [entry async for entry in self._fetch.entries(self._manifest)]
        await to_thread.run_sync(self._prepare, entries)
        self._tell()
        async with a_few_at_once(_AT_ONCE) as start:
            for pack, jobs in self._jobs.items():
                await start(partial(self._restore_pack, pack, jobs))
        await to_thread.run_sync(self._close)
        self._tell()

    def _prepare(self, entries: Sequence[TreeEntry]) -> None:
        """Make the directories, and see what is to be written."""
        kinds: dict[bytes, str] = {b"": "directory"}
        for entry in entries:
            if kinds.get(entry.path.rpartition(b"/")[0]) != "directory":
                raise SnapshotCorrupt(f"there is no directory for {entry.path[:200]!r}")
            kinds[entry.path] = entry.kind
            if entry.kind == "directory":
                self._staging.directory(entry)
                self._directories.append(entry)
            elif entry.kind == "file":
                self._plan(entry)
            else:
                self._links.append(entry)
        for entry in self._links:
            if entry.kind == "link" and kinds.get(entry.target) not in ("file", "symlink"):
                raise SnapshotCorrupt(f"there is nothing for {entry.path[:200]!r} to be a name of")

    def _plan(self, entry: TreeEntry) -> None:
        stored = [part for part in entry.parts if part.digest]
        if self._staging.holds(entry):
            self._done(entry, sum(part.size for part in stored))
        elif not stored:
            self._staging.write(entry, 0, b"", last=True)
            self._done(entry, 0)
        else:
            self._left[entry.path] = len(stored)
            at = 0
            for part in entry.parts:
                if part.digest:
                    self._jobs[part.pack].append(_Job(entry, at, part))
                at += part.size

    async def _restore_pack(self, pack: str, jobs: Sequence[_Job]) -> None:
        parts = [job.part for job in jobs]
        await self._fetch.give(pack, parts, partial(self._write, jobs))
        self._tell()

    def _write(self, jobs: Sequence[_Job], content: dict[bytes, bytes]) -> None:
        for job in jobs:
            left = self._left[job.entry.path] = self._left[job.entry.path] - 1
            data = content[job.part.digest]
            self._staging.write(job.entry, job.at, data, last=left == 0)
            self._bytes += len(data)
            self._files += left == 0

    def _close(self) -> None:
        """Symbolic links, then other names, then directories from the inside out."""
        for entry in sorted(self._links, key=lambda entry: entry.kind == "link"):
            if not self._staging.holds(entry):
                self._staging.link(entry)
            self._files += 1
        for entry in reversed(self._directories):
            self._staging.settle(entry)
            self._files += 1

    def _done(self, entry: TreeEntry, size: int) -> None:
        self._files += 1
        self._bytes += size

    def _tell(self) -> None:
        if self._on_progress is not None:
            total = self._manifest.totals
            self._on_progress(RestoreProgress(self._files, total.entries, self._bytes, total.bytes))
