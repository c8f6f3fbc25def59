"""The nodes of one process, on SQLite: kept in memory, since none outlives the process."""

from __future__ import annotations

import time

import msgspec

from roost.errors import NotFound
from roost.ports.nodes import About, Node
from roost.stores.sqlite.transaction import SqliteTransaction
from roost.stores.sqlite.writer import SqliteWriter

# How many sessions that have work each node has.
_WORK = "SELECT owner, count(*) FROM sessions WHERE active_since > 0 GROUP BY owner"


class SqliteNodes:
    """The `ports.nodes.Nodes` of the one server that has the file."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer

    async def tell(self, node: str, about: About) -> bool:
        return await self._writer.do(TellAbout(node, about))

    async def all(self) -> list[Node]:
        return await self._writer.do(ListNodes())

    async def lives(self, node: str) -> bool:
        return self._writer.lives(node)

    async def mark(self, node: str, *, draining: bool) -> None:
        await self._writer.do(MarkNode(node, draining))


class Renew(msgspec.Struct, frozen=True):
    """A node lives for some seconds more; with a `ttl` of 0 it is gone.

    Nodes live in memory only: none outlives this process, and an idle server writes nothing. Their time is the
    monotonic clock's, so that setting the clock ends no lease.
    """

    node: str
    ttl: float

    def on(self, tx: SqliteTransaction) -> None:
        if self.ttl > 0:
            tx.nodes[self.node] = time.monotonic() + self.ttl
            tx.standing.setdefault(self.node, (About(), 0))
        else:
            tx.nodes.pop(self.node, None)
            tx.standing.pop(self.node, None)


class TellAbout(msgspec.Struct, frozen=True):
    """What a node says of itself; whether it is to drain."""

    node: str
    about: About

    def on(self, tx: SqliteTransaction) -> bool:
        if self.node not in tx.standing:
            return False
        _, since = tx.standing[self.node]
        tx.standing[self.node] = self.about, since
        return since > 0


class ListNodes(msgspec.Struct, frozen=True):
    """All nodes that live."""

    def on(self, tx: SqliteTransaction) -> list[Node]:
        work: dict[str, int] = dict(tx.query(_WORK))
        now = time.monotonic()
        return [
            Node(
                id=node,
                about=about,
                read_at=tx.now,
                expires_at=tx.now + int((tx.nodes[node] - now) * 1_000_000),
                draining_since=since,
                waiting=work.get(node, 0),
            )
            for node, (about, since) in sorted(tx.standing.items())
        ]


class MarkNode(msgspec.Struct, frozen=True):
    """A node is to drain, or not any more."""

    node: str
    draining: bool

    def on(self, tx: SqliteTransaction) -> None:
        if tx.nodes.get(self.node, 0) <= time.monotonic():
            raise NotFound(f"there is no node {self.node}")
        about, since = tx.standing[self.node]
        tx.standing[self.node] = about, (since or tx.now) if self.draining else 0
