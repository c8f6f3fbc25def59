"""Getting what a snapshot consists of, and believing none of it before its hash is right."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import anyio
from anyio import to_thread

from roost.core.snapshots.packs import decode_entries, unpack, unseal
from roost.domain.snapshot import (
    Head,
    Manifest,
    Snapshot,
    SnapshotPart,
    TreeEntry,
    check_tree,
    digest_of,
    head_key,
)
from roost.errors import SnapshotCorrupt
from roost.ports.blobs import Blobs

_log = logging.getLogger(__name__)
_TRIES: Final = 3  # the bytes may have been spoilt on the way only
_PAUSE: Final = 0.05

T = TypeVar("T")


class Fetch:
    """Reads from a blob store; wrong bytes are got again, and refused if they stay wrong."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._unpacks = anyio.CapacityLimiter(1)
        self._uses = anyio.CapacityLimiter(1)
        self._two = anyio.CapacityLimiter(2)

    async def head(self, workspace: str) -> tuple[Head, str | None]:
        """A workspace's head, and its version to swap it by; None if there is none yet."""
        return await _again_if_corrupt(partial(self._head, workspace))

    async def manifest(self, snapshot: Snapshot) -> Manifest:
        """Read the manifest of a snapshot. :raises SnapshotCorrupt: it is gone or damaged"""
        return await _again_if_corrupt(partial(self._manifest, snapshot))

    async def entries(self, manifest: Manifest) -> AsyncGenerator[TreeEntry, None]:
        """Every entry, in order, each one fit to be restored. :raises SnapshotCorrupt:"""
        before: TreeEntry | None = None
        held: dict[str, dict[bytes, bytes]] = {}
        for part in manifest.segments:
            if part.pack not in held:
                here = [segment for segment in manifest.segments if segment.pack == part.pack]
                held[part.pack] = await self.parts(part.pack, here)
            for entry in decode_entries(held[part.pack][part.digest]):
                check_tree(before, entry)
                yield entry
                before = entry

    async def parts(self, pack: str, parts: Sequence[SnapshotPart]) -> dict[bytes, bytes]:
        """The content of some parts of one pack, by digest. :raises SnapshotCorrupt:"""
        found: dict[bytes, bytes] = {}
        await self.give(pack, parts, found.update)
        return found

    async def give(
        self, pack: str, parts: Sequence[SnapshotPart], use: Callable[[dict[bytes, bytes]], None]
    ) -> None:
        """Call `use` with the content of some parts of one pack, in a thread, one at a time.

        Packs are got at the same time; one is unpacked while another one is used, and not more: threads
        that wait for each other at every file would take longer, and what is unpacked takes memory.

        :raises SnapshotCorrupt: then `use` was not called
        """
        await _again_if_corrupt(partial(self._give, pack, parts, use))

    async def _head(self, workspace: str) -> tuple[Head, str | None]:
        found = await self._blobs.read(head_key(workspace))
        return (Head(), None) if found is None else (unseal(found.data, Head), found.version)

    async def _manifest(self, snapshot: Snapshot) -> Manifest:
        data = await self._blobs.get(snapshot.key)
        if digest_of(data) != snapshot.digest:
            raise SnapshotCorrupt(f"the manifest {snapshot.key} is damaged")
        return unseal(data, Manifest)

    async def _give(
        self, pack: str, parts: Sequence[SnapshotPart], use: Callable[[dict[bytes, bytes]], None]
    ) -> None:
        data = await self._blobs.get(pack)
        async with self._two:
            content = await to_thread.run_sync(_unpacked, data, parts, limiter=self._unpacks)
            await to_thread.run_sync(use, content, limiter=self._uses)


def _unpacked(data: bytes, parts: Sequence[SnapshotPart]) -> dict[bytes, bytes]:
    return {part.digest: content for part, content in unpack(data, parts)}


async def _again_if_corrupt(work: Callable[[], Awaitable[T]]) -> T:
    for pause in range(1, _TRIES):
        try:
            return await work()
        except SnapshotCorrupt as error:
            _log.warning("%s; it is got again", error.message, extra={"action": "fetch"})
            await anyio.sleep(_PAUSE * pause)
    return await work()
