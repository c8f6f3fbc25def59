"""Notes about bytes in the blob store that have no record yet, or soon no longer have one.

A note is written before anything else is, and taken away after everything else. Somebody goes through the
shelf now and then (`core/files/janitor`), and finishes or undoes what a crash has left half done.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from roost.errors import Conflict, NotFound, Unavailable
from roost.ids import mint
from roost.ports.catalog import SYSTEM_TENANT, Catalog, Record


class Intents:
    """The notes of all tenants."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def note(self, tenant: str, **about: str | bool) -> str:
        """Put a note on the shelf; gives its id."""
        note_id = mint("note")
        body = {"tenant": tenant, **about}
        await self._catalog.add("file_note", SYSTEM_TENANT, note_id, body, unique_name=False)
        return note_id

    async def finish(self, note_id: str) -> None:
        """The record that the note is about is there. :raises Unavailable: it was given up meanwhile"""
        try:
            await self._catalog.change("file_note", SYSTEM_TENANT, note_id, _finished)
        except (NotFound, Conflict):
            raise Unavailable("storing the files took too long; try again") from None

    async def condemn(self, note: Record) -> None:
        """Whoever is still storing what this note is about will find that it was too slow.

        :raises Conflict: it was finished meanwhile
        """
        await self._catalog.change("file_note", SYSTEM_TENANT, note.id, _condemned)

    async def settle(self, note_id: str) -> None:
        """What the note is about is done; by somebody else, perhaps."""
        with suppress(NotFound):
            await self._catalog.delete("file_note", SYSTEM_TENANT, note_id)


def _finished(note: Record) -> dict[str, Any]:
    if note.body.get("condemned"):
        raise Conflict
    return {**note.body, "finished": True}


def _condemned(note: Record) -> dict[str, Any]:
    if note.body.get("finished"):
        raise Conflict
    return {**note.body, "condemned": True}
