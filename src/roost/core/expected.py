"""What the database says is in the blob store: snapshots of workspaces, files, and versions of skills."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from roost.core.shelf import Shelf
from roost.domain.file import file_of, part_key
from roost.domain.skill import skill_key
from roost.domain.snapshot import head_key
from roost.errors import BlobNotFound, LeaseLost, NotFound
from roost.ports.blobs import Blobs
from roost.ports.catalog import Catalog, Kind, Record
from roost.ports.workspaces import Workspace, Workspaces

_log = logging.getLogger(__name__)
_SAMPLE: Final = 20  # of each kind, that are looked for in a store without an id
_PAGE: Final = 1000


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """Something with objects of these keys. `give_up` lets the database name it no more."""

    kind: Literal["workspaces", "files", "skills"]
    keys: Sequence[str]
    give_up: Callable[[], Awaitable[None]]


class Expected:
    """All that one database names."""

    def __init__(self, catalog: Catalog, rows: Workspaces, blobs: Blobs) -> None:
        self._catalog = catalog
        self._rows = rows
        self._blobs = blobs
        self._shelf = Shelf(catalog)

    async def any_there(self) -> bool | None:
        """Whether the store has any of the newest things that the database names; None if it names none."""
        found = None
        for row in await self._rows.stored(limit=_SAMPLE):
            found = found or await self.has(self._workspace(row))
        for kind in ("file", "skill"):
            for record in await self._catalog.every(kind, limit=_SAMPLE):
                for thing in self._things(record):
                    found = found or await self.has(thing)
        return found

    async def has(self, thing: Thing) -> bool:
        """Whether the store has all of its objects."""
        try:
            for key in thing.keys:
                await self._blobs.get(key, 0, 1)
        except BlobNotFound:
            return False
        return True

    async def things(self) -> AsyncGenerator[Thing, None]:
        """Everything that the database names."""
        before = None
        while rows := await self._rows.stored(before=before, limit=_PAGE):
            for row in rows:
                yield self._workspace(row)
            before = rows[-1].id
        async for record in self._records("file"):
            for thing in self._things(record):
                yield thing
        async for record in self._records("skill"):
            for thing in self._things(record):
                yield thing

    async def _records(self, kind: Kind) -> AsyncGenerator[Record, None]:
        before = None
        while page := await self._catalog.every(kind, before=before, limit=_PAGE):
            for record in page:
                yield record
            before = page[-1].id

    def _workspace(self, row: Workspace) -> Thing:
        return Thing(
            kind="workspaces", keys=[head_key(row.id)], give_up=partial(self._give_up_row, row)
        )

    def _things(self, record: Record) -> list[Thing]:
        if record.kind == "skill":
            versions = [version["id"] for version in record.body["versions"]]
            return [
                Thing(
                    kind="skills",
                    keys=[skill_key(version)],
                    give_up=partial(self._give_up_version, record, version),
                )
                for version in versions
            ]
        file = file_of(record.body)
        keys = [part_key(file.held or record.id, index) for index in range(len(file.parts))]
        give_up = partial(self._give_up_file, record)
        return [Thing(kind="files", keys=keys, give_up=give_up)] if keys else []

    async def _give_up_row(self, row: Workspace) -> None:
        try:
            await self._rows.note(replace(row, sequence=0))
        except LeaseLost:  # somebody works in it now, and stores it anew
            _log.info("%s is in use", row.id, extra={"action": "blobs"})

    async def _give_up_file(self, record: Record) -> None:
        """What is left of its bytes is removed by whoever looks at the shelf next."""
        await self._shelf.note(record.tenant, file=record.id, deleted=True)
        if file_of(record.body).held is None:  # one that shares its bytes is removed with its hold
            with suppress(NotFound):
                await self._catalog.delete("file", record.tenant, record.id)

    async def _give_up_version(self, record: Record, version_id: str) -> None:
        def without(now: Record) -> dict[str, Any]:
            left = [each for each in now.body["versions"] if each["id"] != version_id]
            return {**now.body, "versions": left}

        try:
            await self._catalog.change("skill", record.tenant, record.id, without)
        except NotFound:
            _log.info("%s is gone", record.id, extra={"action": "blobs"})
