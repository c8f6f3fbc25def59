"""A session's files while its sandbox is open: its own, and those of the workspace it shares with others."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from roost.core.sandbox.reports import OnLack
from roost.core.workspaces.copies import WorkspacePast
from roost.core.workspaces.local import LocalWorkspaces
from roost.core.workspaces.shared import SharedWorkspaces
from roost.domain.session import Session
from roost.ports.volumes import SessionVolumes


class SessionFiles:
    """Brings files here before a sandbox is opened, and has them stored when turns end."""

    def __init__(
        self, own: LocalWorkspaces, shared: SharedWorkspaces, volumes: SessionVolumes
    ) -> None:
        self._own = own
        self._shared = shared
        self._volumes = volumes

    @asynccontextmanager
    async def open(
        self, session: Session, generation: int, say: OnLack, keeps_turns: bool
    ) -> AsyncGenerator[None, None]:
        """The newest files are here while the body runs; restored first if they are not, and stored after it.

        `keeps_turns`: each turn's own files are kept, as `LocalWorkspaces.open` has it.

        :raises BlobsFailed: they cannot be restored
        :raises FilesElsewhere: the session shares a workspace that is on another node
        :raises WorkspaceDeleted: the workspace it shares is gone
        """
        past = WorkspacePast.of(session.state)
        async with (
            self._joined(session, say),
            self._own.open(session.id, generation, past, say=say, keeps_turns=keeps_turns),
        ):
            yield

    async def begun(self, session: Session) -> None:
        """A turn begins: returns when the files are stored as the one before has left them, if turns are kept."""
        await self._own.begun(session.id)
        if session.spec.workspace is not None:
            await self._shared.begun(session.spec.workspace)

    def rested(self, session_id: str, seq: int) -> None:
        """A turn is over, with this entry of the log: its files are stored; 0: it only waits."""
        self._own.rested(session_id, seq)

    def may_be_behind(self, session_id: str) -> bool:
        """Whether the files of an open sandbox may be older than the session's log."""
        return self._own.may_be_behind(session_id)

    async def quota(self, session: Session) -> int | None:
        """How many bytes the workspace it shares may have; None: no limit, or it shares none.

        :raises WorkspaceDeleted: the workspace is gone
        """
        if session.spec.workspace is None:
            return None
        return (await self._shared.settings(session.tenant, session.spec.workspace)).quota_bytes

    async def forget(self, session_id: str) -> None:
        """Forget a session that never was."""
        await self._own.forget(session_id)

    @asynccontextmanager
    async def _joined(self, session: Session, say: OnLack) -> AsyncGenerator[None, None]:
        workspace = session.spec.workspace
        if workspace is None:
            yield
            return
        await self._shared.settings(session.tenant, workspace)  # if deleted, it gets no directory
        self._volumes.make(workspace)
        async with self._shared.join(session.tenant, workspace, say):
            yield
