"""Files that a server shows in a sandbox, and a directory it takes files out of; on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Protocol

from roost.ports.tree import Tree

Fetch = Callable[[str], AsyncIterator[bytes]]
"""From a file's id to its bytes."""


class FileExchange(Protocol):
    """Two directories for each session; sandboxes can write in the second one only."""

    async def uploads(self, session_id: str, files: Mapping[str, str], fetch: Fetch) -> Path:
        """A directory with exactly these files, by path and id; what is missing is fetched.

        Called before a sandbox is opened, and whenever the files change: who is shown it sees that.

        :raises Unavailable: the disk refused; and whatever `fetch` raises
        """
        ...

    async def outputs(self, session_id: str) -> Path:
        """The directory to take files out of; made if it is not there. :raises Unavailable:"""
        ...

    def outputs_tree(self, session_id: str) -> Tree:
        """What is in it, to be read without believing any of it."""
        ...

    async def remove(self, session_id: str) -> None:
        """Remove both; nothing happens if they are not there."""
        ...
