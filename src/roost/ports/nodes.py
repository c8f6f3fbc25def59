"""The nodes of one database: what each says of itself, and which of them are to hand their work over.

Promises, each checked by `roost.testing.nodes_contract`. A mark belongs to a node's id, and a server has a
new id each time it starts: so no mark outlives a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from roost.domain.events import Micros

HEAD_START: Final = 0.3
"""For how many seconds a session that has work is left to the node that has its files, if that lives."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself; as old as its last sign of life.

    `sessions` it holds the leases of; of these `working` are at work and `warm` only have their agent
    kept started; `most` may be at work at once. `live` agents have a process, those started ahead too.
    `home` names the place where it has sessions' files; it outlives the node.
    """

    name: str = ""
    home: str = ""
    version: str = ""
    started_at: Micros = 0
    sessions: int = 0
    working: int = 0
    warm: int = 0
    waking: int = 0
    live: int = 0
    most: int = 0


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node. `expires_at` is by the store's clock, as `read_at` is; `waiting` sessions that have work
    are its own, also if it is gone and nobody has claimed them yet. `draining_since` is 0 if it is not.
    """

    id: str
    about: About
    read_at: Micros
    expires_at: Micros
    draining_since: Micros = 0
    waiting: int = 0

    @property
    def lives(self) -> bool:
        """Whether its sessions are its own."""
        return self.expires_at > self.read_at


class Nodes(Protocol):
    """All nodes, also some that were gone without a word not long ago."""

    async def tell(self, node: str, about: About) -> bool:
        """Write down what a node says of itself; gives whether it is to drain.

        Called by `core/work/nodes` after each renewal of its lease. Of a node without a lease, nothing is kept.
        """
        ...

    async def all(self) -> Sequence[Node]:
        """Every node, by its id."""
        ...

    async def lives(self, node: str) -> bool:
        """Whether a node's lease holds. Called by `core/read/fanout` for each session that somebody begins to
        follow and that has an owner.
        """
        ...

    async def mark(self, node: str, *, draining: bool) -> None:
        """Say that a node is to drain, or is not any more. Again: nothing changes.

        :raises NotFound: no living node has this id
        """
        ...
