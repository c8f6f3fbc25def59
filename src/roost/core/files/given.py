"""Files that a session is given when it is made: its resources, and what its first messages name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from roost.core.files.attachments import Attachments
from roost.core.files.janitor import FileJanitor
from roost.core.files.resources import Resources
from roost.domain.events import Draft, Micros
from roost.domain.session import Session, Spec
from roost.ports.keys import Key


class GivenFiles:
    """Gives files to sessions, and takes them away with them."""

    def __init__(
        self, resources: Resources, attachments: Attachments, janitor: FileJanitor
    ) -> None:
        self._resources = resources
        self._attachments = attachments
        self._janitor = janitor

    def check(self, spec: Spec, asked: Sequence[Mapping[str, Any]]) -> None:
        """Refuse files and repositories that such a session cannot have.

        :raises InvalidRequest: such a session cannot have what is asked for
        """
        self._resources.check(asked, spec)

    async def look(self, caller: Key, asked: Sequence[Mapping[str, Any]]) -> None:
        """Refuse what could not be given, without giving it. :raises InvalidRequest: naming the field"""
        await self._resources.look(caller, asked)

    def sealed(
        self, tenant: str, owner: str, asked: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """What a record keeps of resources that it gives to sessions. Raises as `Resources.sealed`."""
        return self._resources.sealed(tenant, owner, asked)

    def opened(
        self, tenant: str, owner: str, kept: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """What such a session asks for. Raises as `Resources.opened`."""
        return self._resources.opened(tenant, owner, kept)

    @asynccontextmanager
    async def to_new(
        self,
        caller: Key,
        session_id: str,
        asked: Sequence[Mapping[str, Any]],
        drafts: Sequence[Draft],
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """The resources of a session that the body makes, with copies of the files that its drafts name."""
        async with (
            self._resources.given(caller, session_id, asked) as resources,
            self._attachments.given(caller, session_id, drafts, "initial_events"),
        ):
            yield resources

    @asynccontextmanager
    async def to_fork(
        self, caller: Key, session: Session, target: str, until: Micros
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """What a session was given, and what its messages had named by then, for another one that the body
        makes.
        """
        asked = await self._resources.again(session)
        async with (
            self._attachments.given_again(caller, session, target, until),
            self._resources.given(caller, target, asked) as resources,
        ):
            yield resources

    def deleting(self, tenant: str, session_id: str) -> AbstractAsyncContextManager[None]:
        """A session is deleted in the body; its files go with it, soon if not at once."""
        return self._janitor.deleting(tenant, session_id)
