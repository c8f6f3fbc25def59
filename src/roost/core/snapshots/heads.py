"""Changing the head of a workspace, which several may do at once.

Whoever stores files moves it on, and there is one at a time: a generation. Beside that, others may ask it to
hold a snapshot. So a change that finds the head changed is made again on what it is now, unless somebody
else has moved it on.
"""

from __future__ import annotations

from collections.abc import Callable

from roost.core.snapshots.fetch import Fetch
from roost.core.snapshots.packs import seal
from roost.domain.snapshot import Head, head_key
from roost.errors import BlobChanged, LeaseLost
from roost.ports.blobs import Blobs

_TRIES = 20

Change = Callable[[Head], Head]


class Heads:
    """The heads of all workspaces in one blob store."""

    def __init__(self, blobs: Blobs, fetch: Fetch) -> None:
        self._blobs = blobs
        self._fetch = fetch

    async def move(self, workspace: str, head: Head, version: str | None, change: Change) -> Head:
        """Change it, if nobody has moved it on since it was read.

        :raises LeaseLost: somebody has
        """
        for _ in range(_TRIES):
            after = change(head)
            if after == head:
                return head
            try:
                await self._blobs.swap(head_key(workspace), seal(after), version)
                return after
            except BlobChanged:
                now, version = await self._fetch.head(workspace)
            if _place(now) != _place(head):
                break
            head = now
        raise LeaseLost(f"the newest snapshot of {workspace} was changed by somebody else")

    async def change(self, workspace: str, change: Change) -> Head:
        """Change it, whoever moves it on meanwhile; `change` may refuse what it has become.

        :raises LeaseLost: somebody was faster each time
        """
        for _ in range(_TRIES):
            head, version = await self._fetch.head(workspace)
            try:
                return await self.move(workspace, head, version, change)
            except LeaseLost:
                continue
        raise LeaseLost(f"the head of {workspace} is changed all the time")


def _place(head: Head) -> tuple[int, int, bool, int]:
    return head.sequence, head.generation, head.deleted, head.rewound
