"""Who may do what with a session or a file: decided here, whichever surface asks.

`docs/trust.md` has the rules as tables, and `tests/api/test_access.py` holds every operation to them.
"""

from __future__ import annotations

from typing import Literal

from roost.core.access.permissions import check_reach, may_see, may_use, owns
from roost.core.access.workspaces import NamedWorkspaces
from roost.domain.session import Session
from roost.errors import Forbidden, NotFound
from roost.ports.catalog import Record
from roost.ports.keys import Key
from roost.ports.sessions import Sessions, Visibility

Act = Literal["see", "tell", "end"]
"""What is done with a session: read it; tell it or change something of it; archive or delete it."""


class SessionAccess:
    """The rules that need to look something up."""

    def __init__(self, sessions: Sessions, workspaces: NamedWorkspaces) -> None:
        self._sessions = sessions
        self._workspaces = workspaces

    def known_session(self, caller: Key, session_id: str, act: Act) -> Session | None:
        """As `session`, if nothing has to be looked up for it; else None."""
        session = self._sessions.known(caller.tenant, session_id)
        if session is None or session.spec.workspace is not None:
            return None
        _check(caller, session, None, act)
        return session

    async def session(self, caller: Key, session_id: str, act: Act) -> Session:
        """The session, if the caller may do that with it.

        :raises NotFound: absent, or not the caller's to see :raises Forbidden: to be seen, and no more
        """
        try:
            session = await self._sessions.get(caller.tenant, session_id)
        except NotFound:
            raise NotFound(f"session {session_id} was not found") from None
        workspace = None if session.spec.workspace is None else await self._workspace(session)
        _check(caller, session, workspace, act)
        return session

    async def check(self, caller: Key, session: Session, act: Act) -> None:
        """Refuse what the caller may not do with the session.

        :raises NotFound: not the caller's to see
        :raises Forbidden: to be seen, and no more
        """
        _check(caller, session, await self._workspace(session), act)

    async def seen(self, caller: Key) -> Visibility | None:
        """Which sessions a listing shows to the caller; None: all of its tenant's."""
        if caller.role == "admin":
            return None
        workspaces = await self._workspaces.readable(caller)
        return Visibility(None if caller.sees == "tenant" else caller.principal, workspaces)

    async def check_file(self, caller: Key, file: Record, act: Act = "see") -> None:
        """Whether the caller may read a file, or with another act remove it. One that belongs to a session is
        as that.

        :raises NotFound: not the caller's to see :raises Forbidden: to be seen, and no more
        """
        scope = file.body.get("name")
        if scope is None and may_see(caller, file.created_by):
            return
        try:
            if scope is not None:
                await self.session(caller, scope, act)
                return
        except NotFound:
            if caller.role == "admin":  # its session is gone, and it will follow
                return
        raise NotFound(f"file {file.id} was not found")

    async def _workspace(self, session: Session) -> Record | None:
        """The named workspace that it works in, if that still exists."""
        if session.spec.workspace is None:
            return None
        return await self._workspaces.find(session.tenant, session.spec.workspace)


def _check(caller: Key, session: Session, workspace: Record | None, act: Act) -> None:
    created_by = session.spec.created_by
    # Whoever shares a workspace shares the sessions in it, whoever has made them.
    seen = may_see(caller, created_by) if workspace is None else may_use(caller, workspace, "read")
    if not seen:
        raise NotFound(f"session {session.id} was not found")
    if act == "see" or (act == "end" and owns(caller, created_by)):
        return
    check_reach(caller, session)
    if workspace is not None and not may_use(caller, workspace, "write"):
        raise Forbidden(
            "the session works in a workspace that this key may not write to",
            hint="Whoever administers the workspace can share it with this key.",
        )
