"""The nodes of one process, on SQLite: kept in memory, since none outlives the process."""

from __future__ import annotations

import time
from functools import partial

from roost.errors import NotFound
from roost.ports.nodes import About, Node
from roost.stores.sqlite.transaction import Transaction
from roost.stores.sqlite.writer import Writer

# How many sessions that have work each node has.
_WORK = "SELECT owner, count(*) FROM sessions WHERE active_since > 0 GROUP BY owner"


class SqliteNodes:
    """`ports.nodes.Nodes`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def tell(self, node: str, about: About) -> bool:
        return await self._writer.do(partial(_tell, node, about))

    async def all(self) -> list[Node]:
        return await self._writer.do(_all)

    async def lives(self, node: str) -> bool:
        return self._writer.lives(node)

    async def mark(self, node: str, *, draining: bool) -> None:
        await self._writer.do(partial(_mark, node, draining))


def renew(node: str, ttl: float, tx: Transaction) -> None:
    """Nodes live in memory only: none outlives this process, and an idle server writes nothing.

    Their time is the monotonic clock's, so that setting the clock ends no lease.
    """
    if ttl > 0:
        tx.nodes[node] = time.monotonic() + ttl
        tx.standing.setdefault(node, (About(), 0))
    else:
        tx.nodes.pop(node, None)
        tx.standing.pop(node, None)


def _tell(node: str, about: About, tx: Transaction) -> bool:
    if node not in tx.standing:
        return False
    _, since = tx.standing[node]
    tx.standing[node] = about, since
    return since > 0


def _all(tx: Transaction) -> list[Node]:
    work: dict[str, int] = dict(tx.ask(_WORK))
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


def _mark(node: str, draining: bool, tx: Transaction) -> None:
    if tx.nodes.get(node, 0) <= time.monotonic():
        raise NotFound(f"there is no node {node}")
    about, since = tx.standing[node]
    tx.standing[node] = about, (since or tx.now) if draining else 0
