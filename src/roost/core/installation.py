"""Whether the blob store is the one that belongs to this database.

Both carry the installation's id: a record in the database, and the object `installation` in the store. The
record is written first. A process that dies between the two leaves a database with an id and a store
without one, which the next start tells from a wrong store by what the database expects in there.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import aclosing
from typing import Final

import anyio
import msgspec

from roost.core.expected import Expected
from roost.core.shelf import SHELF
from roost.domain.ids import mint
from roost.errors import (
    BlobChanged,
    BlobsFailed,
    Conflict,
    StartupError,
    Unavailable,
    WrongBlobs,
)
from roost.ports.blobs import Blobs, Pointer
from roost.ports.catalog import Catalog, Record
from roost.ports.workspaces import Workspaces

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
        self._unknown: str | None = "the blob store was not looked at yet"

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
        """:raises Unavailable: the store is not known to be the right one"""
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
        return await self._catalog.named("installation", SHELF, _NAME)

    async def _named(self, wanted: str) -> Record:
        """Give the database an id, unless another node was faster."""
        body = {"name": _NAME, "id": wanted}
        try:
            return await self._catalog.add(
                "installation", SHELF, mint("inst"), body, unique_name=True
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
