"""Copies of files whose session was deleted at another node.

One node removes what is stored of a deleted session, with its row; each node removes its own copy. It finds
it by what it remembers of its copies, and asks for which of them there is neither a row nor a session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

import anyio
from anyio import to_thread

from roost.ports.tree import Tree
from roost.ports.workspaces import Workspaces

_log = logging.getLogger(__name__)


class Orphans:
    """Those of this machine. `here` are the workspaces that it has a copy of."""

    def __init__(
        self,
        rows: Workspaces,
        tree_of: Callable[[str], Tree],
        here: Callable[[], Iterable[str]],
        locks: Mapping[str, anyio.Lock],
    ) -> None:
        self._rows = rows
        self._tree_of = tree_of
        self._here = here
        self._locks = locks

    async def remove(self) -> None:
        """All of them."""
        here = await to_thread.run_sync(lambda: list(self._here()))
        for workspace_id in await self._rows.strangers(here):
            async with self._locks[workspace_id]:
                # Whoever begins to work in it writes the row under this lock.
                if not await self._rows.strangers([workspace_id]):
                    continue
                await to_thread.run_sync(self._tree_of(workspace_id).remove)
            _log.info("removed a copy", extra={"action": "remove", "session": workspace_id})
