"""Nodes: the lease by which this one lives, and all of them as an operator sees them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import anyio

from roost.errors import Conflict, NotFound, RoostError
from roost.ports.log import Log
from roost.ports.nodes import About, Node, Nodes
from roost.ports.notifier import WORK, Notifier

NODES = "nodes"
"""The topic notified when a node was marked, or the mark was taken away."""

_GOODBYE_SECONDS: Final = 5.0
_log = logging.getLogger(__name__)


class NodeLease:
    """One node's lease and standing. `changed` is called when it begins to drain, or no longer is to.

    `about` is asked for what the node says of itself.
    """

    def __init__(
        self,
        node: str,
        log: Log,
        nodes: Nodes,
        notifier: Notifier,
        *,
        lease_seconds: float,
        about: Callable[[], About] = About,
    ) -> None:
        self.node = node
        self.about = about
        self.draining = False
        self.changed: Callable[[], None] = lambda: None
        self._log = log
        self._nodes = nodes
        self._notifier = notifier
        self._lease_seconds = lease_seconds

    async def join(self) -> None:
        """Begin to live: the store knows the node from now on.

        :raises RoostError: the store does not take it
        """
        await self._log.renew(self.node, self._lease_seconds)
        await self._tell()

    async def renew(self) -> None:
        """Live on, if the store can be told."""
        try:
            await self.join()
        except RoostError as error:
            _log.error("cannot renew: %s", error.message, extra={"action": "renew"})

    async def leave(self) -> None:
        """Be gone. A store that is gone too is not waited for: the lease runs out by itself."""
        try:
            with anyio.fail_after(_GOODBYE_SECONDS):
                await self._log.renew(self.node, 0)
        except (RoostError, TimeoutError):
            _log.warning(
                "stops without releasing its lease: no database", extra={"action": "leave"}
            )

    async def run(self) -> None:
        """Live, for ever: a sign of life three times in a lease, and whenever somebody was marked."""
        with self._notifier.subscribe(NODES) as subscription:
            while True:
                await subscription.until_notified(self._lease_seconds / 3)
                await self.renew()

    async def _tell(self) -> None:
        before, self.draining = self.draining, await self._nodes.tell(self.node, self.about())
        if before is not self.draining:
            word = "drains" if self.draining else "no longer drains"
            _log.warning("this node %s", word, extra={"action": "drain"})
            self.changed()
            self._notifier.notify(WORK)


class Fleet:
    """All nodes, as an operator sees them. `here` is the node that answers."""

    def __init__(self, nodes: Nodes, notifier: Notifier, here: str) -> None:
        self.here = here
        self._nodes = nodes
        self._notifier = notifier

    async def all(self) -> list[Node]:
        """Every node that the store knows, alive or not."""
        return list(await self._nodes.all())

    async def mark(self, name: str, *, draining: bool) -> Node:
        """Tell a node to drain, or to work again; gives it as it is then.

        :raises NotFound: no living node has this id or name :raises Conflict: several have the name
        """
        node = await self._named(name)
        await self._nodes.mark(node.id, draining=draining)
        self._notifier.notify(NODES)
        return next(found for found in await self._nodes.all() if found.id == node.id)

    async def _named(self, name: str) -> Node:
        living = [node for node in await self._nodes.all() if node.lives]
        found = [node for node in living if node.id == name]
        found = found or [node for node in living if node.about.name == name]
        if not found:
            raise NotFound(f"no live node is called {name}", hint="`roost node ls` lists them.")
        if len(found) > 1:
            ids = ", ".join(node.id for node in found)
            raise Conflict(f"{len(found)} nodes are called {name}", hint=f"Give an id: {ids}")
        return found[0]
