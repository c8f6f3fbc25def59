"""Looking into a session's directory from outside, and putting files there, while its agent may be at work.

What is shown is the session's own directory, or the workspace it shares, and nothing else, whatever its
trust level: of a session that works in the vault, the vault is not shown. If the newest files are not on this node, they are restored
first.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import BinaryIO, Final

from anyio import to_thread

from roost.core.workspaces.local import LocalWorkspaces
from roost.core.workspaces.shared import SharedWorkspaces
from roost.domain.session import Session, Status
from roost.errors import NotFound, SessionClosed
from roost.ports.folder import Content, Folder, Item, Listing, ListingPosition

FolderOf = Callable[[Session], Folder]

# `/home/sandbox/.claude/projects/-workspace/UUID/tool-results/NAME.txt`; on the host, below another directory.
_KEPT_OUTPUT: Final = re.compile(
    r"(?:^|/)(\.claude/projects/[\w-]+/[\w-]+/tool-results/[\w-]+\.(?:txt|json))\Z", re.ASCII
)


class Browse:
    """The directories of all sessions. Whoever calls has checked that the caller may see this one."""

    def __init__(
        self,
        files: LocalWorkspaces,
        commons: SharedWorkspaces,
        folder_of: FolderOf,
        home_of: FolderOf,
    ) -> None:
        self._files = files
        self._commons = commons
        self._folder_of = folder_of
        self._home_of = home_of

    async def list(
        self, session: Session, path: str, after: ListingPosition | None, limit: int
    ) -> Listing:
        """A part of a directory. :raises NotFound: :raises FilesElsewhere:"""
        async with self._brought(session):
            return await to_thread.run_sync(self._folder_of(session).list, path, after, limit)

    async def is_behind(self, session: Session) -> bool:
        """Whether what is shown is older than the session, because the newest files are lost."""
        return await self._files.is_behind(session.spec.workspace or session.id)

    async def open(self, session: Session, path: str) -> Content:
        """A regular file, to be read and closed. :raises NotFound: :raises FilesElsewhere:"""
        async with self._brought(session):
            return await to_thread.run_sync(self._folder_of(session).open, path)

    async def open_output(self, session: Session, path: str) -> Content:
        """A tool's output that was too long for the log, as the agent's program has put it by.

        `path` is what the result in the log says. Nothing else of the agent's home is read.

        :raises NotFound: :raises FilesElsewhere:
        """
        kept = _KEPT_OUTPUT.search(path)
        if kept is None:
            raise NotFound(f"no output of a tool is kept at {path[:200]}")
        await self._files.bring(session.id)
        return await to_thread.run_sync(self._home_of(session).open, kept[1])

    async def put(
        self, session: Session, files: Sequence[tuple[str, BinaryIO]], *, overwrite: bool
    ) -> Sequence[Item]:
        """Write files, each whole or not at all, in this order; the first that fails ends it.

        :raises Conflict: one is there already :raises SessionClosed: :raises FilesElsewhere:
        """
        made: list[Item] = []

        def put(folder: Folder) -> None:
            made.extend(folder.put(path, data, overwrite=overwrite) for path, data in files)

        await self._change(session, put)
        return made

    async def make(self, session: Session, path: str) -> Item:
        """Make a directory in a session's files.

        :raises Conflict:
        :raises SessionClosed:
        :raises FilesElsewhere:
        """
        made: list[Item] = []
        await self._change(session, lambda folder: made.append(folder.make(path)))
        return made[0]

    async def remove(self, session: Session, path: str, *, recursive: bool) -> None:
        """Remove a file or directory from a session's files.

        :raises NotFound:
        :raises SessionClosed:
        :raises FilesElsewhere:
        """
        await self._change(session, lambda folder: folder.remove(path, recursive=recursive))

    async def _change(self, session: Session, change: Callable[[Folder], None]) -> None:
        if session.state.status is Status.TERMINATED:
            raise SessionClosed("the files of a session that is terminated cannot be changed")
        folder = self._folder_of(session)
        await to_thread.run_sync(folder.begin)
        async with self._visited(session):
            await to_thread.run_sync(partial(change, folder))

    @asynccontextmanager
    async def _brought(self, session: Session) -> AsyncGenerator[None, None]:
        """With the newest files here: the session's own, or those of the workspace it shares."""
        if session.spec.workspace is None:
            await self._files.bring(session.id)
            yield
        else:
            async with self._commons.join(session.tenant, session.spec.workspace):
                yield

    @asynccontextmanager
    async def _visited(self, session: Session) -> AsyncGenerator[None, None]:
        """As `_brought`, to change them."""
        if session.spec.workspace is None:
            async with self._files.visit(session.id):
                yield
        else:
            async with self._commons.join(session.tenant, session.spec.workspace):
                await self._commons.begun(session.spec.workspace)
                yield
                self._commons.changed(session.spec.workspace)
