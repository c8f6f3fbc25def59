"""Goes through the shelf of notes about files and skills, and finishes what was begun.

A note about a file says that its bytes may be there without a record, that it is to be deleted, or that its
time will be up. A note about a session says that it was being deleted: if it is gone, its files go too. A
file whose record does not come for an hour is given up; whoever still stores it finds its note condemned,
and gives up as well.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio import CancelScope

from roost.core.files.store import FileStore, now
from roost.domain.events import Micros
from roost.errors import Conflict, NotFound, RoostError
from roost.ports.catalog import SYSTEM_TENANT, Catalog, Record, RecordQuery
from roost.ports.sessions import Sessions

_LOOK_AGAIN: Final = 300.0  # seconds
_PATIENCE: Final = 3600 * 1_000_000  # how long a file may take from its note to its record
_PAGE: Final = 200
_log = logging.getLogger(__name__)

Heed = Callable[[Record, bool], Awaitable[None]]
"""Does what a note asks for; the second word is whether it has been there for so long that nobody is
still at it."""


class FileJanitor:
    """The janitor of all files. `heed_skill` does what a note about a skill asks for."""

    def __init__(
        self,
        store: FileStore,
        catalog: Catalog,
        sessions: Sessions,
        heed_skill: Heed,
        *,
        clock: Callable[[], Micros] = now,
    ) -> None:
        self._store = store
        self._shelf = store.shelf
        self._catalog = catalog
        self._sessions = sessions
        self._clock = clock
        self.also: list[Callable[[str, str], Awaitable[None]]] = []
        """What else is to be forgotten of a session that is gone, by tenant and id."""
        self._heed_skill = heed_skill

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            try:
                await self.look()
            except RoostError as error:
                _log.warning("cannot tidy up: %s", error.message, extra={"action": "files"})
            await anyio.sleep(_LOOK_AGAIN)

    async def look(self) -> None:
        """Once through the shelf. :raises RoostError: the store fails; another time, then"""
        after: str | None = None
        while True:
            query = RecordQuery(kind="file_note", tenant=SYSTEM_TENANT, after=after, limit=_PAGE)
            notes = await self._catalog.page(query)
            for note in notes:
                with suppress(
                    NotFound, Conflict
                ):  # another node, or who still works on it, was faster
                    await self._heed(note)
            if len(notes) < _PAGE:
                return
            after = notes[-1].id

    @asynccontextmanager
    async def making(self, tenant: str, session_id: str) -> AsyncGenerator[None, None]:
        """A session is made in the body, with files of its own; they go if it is not made."""
        note_id = await self._shelf.note(tenant, session=session_id, making=True)
        try:
            yield
        except BaseException:
            with CancelScope(shield=True):
                await self._forget(tenant, session_id, note_id)
            raise
        await self._heed_session(tenant, session_id, note_id, is_old=True)

    @asynccontextmanager
    async def deleting(self, tenant: str, session_id: str) -> AsyncGenerator[None, None]:
        """A session is deleted in the body; its files go with it, soon if not at once."""
        note_id = await self._shelf.note(tenant, session=session_id)
        try:
            yield
        except RoostError:
            await self._shelf.settle(note_id)
            raise
        try:
            await self._forget(tenant, session_id, note_id)
        except RoostError as error:
            _log.warning(
                "cannot remove its files yet: %s", error.message, extra={"action": "files"}
            )

    async def _forget(self, tenant: str, session_id: str, note_id: str) -> None:
        """Remove the files of a session that is gone."""
        for record in await self._store.of_session(tenant, session_id):
            await self._store.drop(tenant, record.id)
        for forget in self.also:
            await forget(tenant, session_id)
        await self._shelf.settle(note_id)

    async def _heed(self, note: Record) -> None:
        tenant, is_old = note.body["tenant"], self._clock() - note.created_at > _PATIENCE
        if "session" in note.body:
            if is_old or not note.body.get("making"):
                await self._heed_session(tenant, note.body["session"], note.id, is_old)
        elif "skill" in note.body:
            await self._heed_skill(note, is_old)
        else:
            await self._heed_file(tenant, note, is_old)

    async def _heed_file(self, tenant: str, note: Record, is_old: bool) -> None:
        file_id = note.body["file"]
        try:
            record = await self._catalog.get("file", tenant, file_id)
        except NotFound:
            if is_old or note.body.get("deleted"):
                await self._end(note, tenant, file_id)
            return
        if note.body.get("deleted") or self._store.is_over(record):
            await self._end(note, tenant, file_id)
        elif record.body["expires_at"] is None and (is_old or note.body.get("finished")):
            await self._shelf.settle(note.id)

    async def _end(self, note: Record, tenant: str, file_id: str) -> None:
        if not note.body.get("finished"):
            await self._shelf.condemn(note)
        await self._store.drop(tenant, file_id)
        await self._shelf.settle(note.id)

    async def _heed_session(self, tenant: str, session_id: str, note_id: str, is_old: bool) -> None:
        try:
            await self._sessions.get(tenant, session_id)
        except NotFound:
            await self._forget(tenant, session_id, note_id)
            return
        if is_old:
            await self._shelf.settle(note_id)  # it is there, and stays
