"""Which nodes there are, and telling one of them to hand its work over."""

from __future__ import annotations

from roost.core.member import NODES
from roost.errors import Conflict, NotFound
from roost.ports.bell import Bell
from roost.ports.nodes import Node, Nodes


class Fleet:
    """All nodes, as an operator sees them. `here` is the node that answers."""

    def __init__(self, nodes: Nodes, bell: Bell, here: str) -> None:
        self.here = here
        self._nodes = nodes
        self._bell = bell

    async def all(self) -> list[Node]:
        """Every node."""
        return list(await self._nodes.all())

    async def mark(self, name: str, *, draining: bool) -> Node:
        """Tell a node to drain, or to work again; gives it as it is then.

        :raises NotFound: no living node has this id or name :raises Conflict: several have the name
        """
        node = await self._named(name)
        await self._nodes.mark(node.id, draining=draining)
        self._bell.ring(NODES)
        return next(found for found in await self._nodes.all() if found.id == node.id)

    async def _named(self, name: str) -> Node:
        living = [node for node in await self._nodes.all() if node.lives]
        found = [node for node in living if node.id == name]
        found = found or [node for node in living if node.about.name == name]
        if not found:
            raise NotFound(f"no living node is called {name}", hint="`roost node ls` lists them.")
        if len(found) > 1:
            ids = ", ".join(node.id for node in found)
            raise Conflict(f"{len(found)} nodes are called {name}", hint=f"Give an id: {ids}")
        return found[0]
