"""Whether the blob store is the one that belongs to this database, and what of it should be there."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, Literal

import anyio
import msgspec
from msgspec.structs import replace

from roost.core.files.intents import Intents
from roost.domain.file import file_of, part_key
from roost.domain.skill import skill_key
from roost.domain.snapshot import head_key
from roost.errors import (
    BlobChanged,
    BlobNotFound,
    BlobsFailed,
    Conflict,
    LeaseLost,
    NotFound,
    StartupError,
    Unavailable,
    WrongBlobs,
)
from roost.ids import mint
from roost.ports.blobs import Blobs, Pointer
from roost.ports.catalog import SYSTEM_TENANT, Catalog, Kind, Record
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
        self._shelf = Intents(catalog)

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


_log = logging.getLogger(__name__)
_KEY: Final = "installation"
_NAME: Final = "blobs"
_LOOK_AGAIN: Final = 10.0  # seconds between two looks


class Identity(msgspec.Struct, frozen=True):
    """What the store's object says."""

    id: str


class Installation:
    """One database and its blob store."""

    def __init__(self, catalog: Catalog, rows: Workspaces, blobs: Blobs) -> None:
        self._catalog = catalog
        self._expected = Expected(catalog, rows, blobs)
        self._blobs = blobs
        self._id: str | None = None  # once the store was seen to have it
        self._unknown: str | None = "the blob store was not checked yet"

    async def start(self) -> None:
        """Check it once, when a server starts. A store that is away does not stop the start.

        :raises StartupError: it is a wrong one, and would be the next time, too
        """
        try:
            await self.check()
        except WrongBlobs as wrong:
            raise StartupError(f"{wrong.code}: {wrong.message}", hint=wrong.hint) from None
        except BlobsFailed as error:
            self._unknown = f"the blob store does not answer: {error.message}"
            _log.warning("%s", self._unknown, extra={"action": "blobs"})

    async def run(self) -> None:
        """Look at it now and then, until cancelled: also one that was right may become a wrong one."""
        while True:
            await anyio.sleep(_LOOK_AGAIN)
            try:
                await self.check()
            except (BlobsFailed, Unavailable) as error:
                _log.error("the blob store: %s", error.message, extra={"action": "blobs"})

    def ready(self) -> None:
        """Refuse to use a blob store that may be another one's, or empty by mistake.

        :raises Unavailable: the store is not known to be the right one
        """
        if self._unknown is not None:
            raise Unavailable(self._unknown, hint=WrongBlobs.hint)

    async def check(self) -> None:
        """Make sure that the store is this database's, and give both an id if they have none.

        A store that had the id, and has none any more, gets none: it is another one by now.

        :raises WrongBlobs: it is another one's, or lacks what the database expects
        :raises BlobsFailed: it cannot be reached
        """
        found = await self._blobs.read(_KEY)
        if found is None or _id_of(found) != self._id:
            try:
                await self._compare(found)
            except WrongBlobs as wrong:
                self._unknown = f"the blob store cannot be used: {wrong.message}"
                raise
        self._unknown = None

    async def _compare(self, found: Pointer | None) -> None:
        if self._id is not None and found is None:
            raise WrongBlobs("the blob store is empty, or is not the one that it was")
        mine = await self._mine()
        if mine is None or found is None:
            mine = await self._settle(mine, found)
        elif _id_of(found) != mine.body["id"]:
            raise WrongBlobs(
                f"the blob store belongs to another installation: {_id_of(found)}, this is "
                f"{mine.body['id']}"
            )
        self._id = mine.body["id"]

    async def adopt(self, *, lost: bool) -> tuple[Counter[str], Counter[str]]:
        """The store is this database's, whatever it says. How many workspaces, files and versions of skills
        are in it, and how many are not; with `lost`, the database names those no more.
        """
        mine = await self._mine() or await self._named(mint("inst"))
        found = await self._blobs.read(_KEY)
        if found is None or _id_of(found) != mine.body["id"]:
            await self._write(mine.body["id"], found.version if found else None)
        there, lacking = Counter[str](), Counter[str]()
        async with aclosing(self._expected.things()) as things:
            async for thing in things:
                if await self._expected.has(thing):
                    there[thing.kind] += 1
                    continue
                lacking[thing.kind] += 1
                if lost:
                    await thing.give_up()
        return there, lacking

    async def _settle(self, mine: Record | None, found: Pointer | None) -> Record:
        """One of the two has no id, or neither has."""
        any_there = await self._expected.any_there()
        if any_there is False:
            raise WrongBlobs("the blob store has nothing of what the database names")
        if found is not None and any_there is None:
            raise WrongBlobs(f"the blob store belongs to another installation: {_id_of(found)}")
        mine = mine or await self._named(_id_of(found) if found else mint("inst"))
        if found is None:
            await self._write(mine.body["id"], None)
        return mine

    async def _mine(self) -> Record | None:
        return await self._catalog.named("installation", SYSTEM_TENANT, _NAME)

    async def _named(self, wanted: str) -> Record:
        """Give the database an id, unless another node was faster."""
        body = {"name": _NAME, "id": wanted}
        try:
            return await self._catalog.add(
                "installation", SYSTEM_TENANT, mint("inst"), body, unique_name=True
            )
        except Conflict:
            found = await self._mine()
            if found is None:
                raise
            return found

    async def _write(self, wanted: str, version: str | None) -> None:
        try:
            await self._blobs.swap(_KEY, msgspec.json.encode(Identity(wanted)), version)
        except BlobChanged:  # another node was faster, or another installation
            found = await self._blobs.read(_KEY)
            if found is None or _id_of(found) != wanted:
                raise WrongBlobs from None


def _id_of(found: Pointer | None) -> str:
    try:
        return msgspec.json.decode(found.data, type=Identity).id if found else ""
    except msgspec.DecodeError:
        return "one that cannot be read"
