"""Removing what no snapshot needs any more.

Nothing here asks how old an object is. What an attempt at a snapshot stored is named after the sequence it
built on, and only an attempt that finds the head still there can succeed. So once the head is past that
sequence, everything of that attempt which no listed manifest names is garbage, and will be for ever: no
snapshot that is being taken can come to need it. Dying half way leaves some of the garbage.
"""

from __future__ import annotations

import logging

from roost.core.snapshots.fetch import Fetch
from roost.domain.snapshot import Snapshot, base_of, head_key
from roost.ports.blobs import Blobs

_log = logging.getLogger(__name__)
_AT_ONCE = 500


async def collect(blobs: Blobs, workspace: str) -> int:
    """Remove a workspace's garbage; gives how many objects that was.

    :raises BlobsFailed: in doubt nothing is removed
    """
    fetch = Fetch(blobs)
    # The order matters: whatever is listed here and not named by a later head never will be.
    listed = await blobs.list(f"workspaces/{workspace}/")
    head, _ = await fetch.head(workspace)
    needed = {head_key(workspace)}
    for snapshot in head.live():
        needed.add(snapshot.key)
        needed.update((await fetch.manifest(snapshot)).packs)
    garbage = [
        stored.key
        for stored in listed
        if stored.key not in needed and base_of(stored.key) < head.sequence
    ]
    for first in range(0, len(garbage), _AT_ONCE):
        await blobs.delete(garbage[first : first + _AT_ONCE])
    if garbage:
        _log.info("removed %d objects of %s", len(garbage), workspace, extra={"action": "collect"})
    return len(garbage)


async def beyond(blobs: Blobs, workspace: str, most: int) -> list[Snapshot]:
    """The oldest snapshots, without which the workspace takes no more than `most` bytes of the store.

    What the newest needs, and what others hold, is counted and never among them. Parts that a younger
    snapshot has in common with an older one count once, for the younger.
    """
    fetch = Fetch(blobs)
    sizes = {stored.key: stored.size for stored in await blobs.list(f"workspaces/{workspace}/")}
    head, _ = await fetch.head(workspace)
    needed: set[str] = set()
    taken = 0

    async def added(snapshot: Snapshot) -> int:
        keys = {snapshot.key, *(await fetch.manifest(snapshot)).packs} - needed
        needed.update(keys)
        return sum(sizes.get(key, 0) for key in keys)

    for snapshot in (*(hold.snapshot for hold in head.holds), *head.snapshots[-1:]):
        taken += await added(snapshot)
    for place in range(len(head.snapshots) - 2, -1, -1):
        taken += await added(head.snapshots[place])
        if taken > most:
            return list(head.snapshots[: place + 1])
    return []
