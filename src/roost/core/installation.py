"""Whether the blob store is the one that belongs to this database.

Both carry the installation's id: a record in the database, and the object `installation` in the store. The
record is written first. A process that dies between the two leaves a database with an id and a store
without one, which the next start tells from a wrong store by what the database expects in there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import anyio
import msgspec
from msgspec.structs import replace

from roost.core.shelf import SHELF
from roost.domain.ids import mint
from roost.domain.snapshot import head_key
from roost.errors import BlobChanged, BlobsFailed, Conflict, LeaseLost, Unavailable, WrongBlobs
from roost.ports.blobs import Blobs, Pointer
from roost.ports.catalog import Catalog, Record
from roost.ports.workspaces import Workspace, Workspaces

_log = logging.getLogger(__name__)
_KEY: Final = "installation"
_NAME: Final = "blobs"
_SAMPLE: Final = 20  # workspaces whose snapshots are looked for in a store without an id
_LOOK_AGAIN: Final = 10.0  # seconds between two tries to reach a store that was away at the start


class Identity(msgspec.Struct, frozen=True):
    """What the store's object says."""

    id: str


class Installation:
    """One database and its blob store."""

    def __init__(self, catalog: Catalog, rows: Workspaces, blobs: Blobs) -> None:
        self._catalog = catalog
        self._rows = rows
        self._blobs = blobs
        self._unknown: str | None = "the blob store was not looked at yet"

    async def start(self) -> None:
        """Check it once, when a server starts. A store that is away does not stop the start.

        :raises WrongBlobs: it would be wrong the next time, too
        """
        try:
            await self.check()
        except BlobsFailed as error:
            self._unknown = f"the blob store does not answer: {error.message}"
            _log.warning("%s", self._unknown, extra={"action": "blobs"})

    async def run(self) -> None:
        """Check it as soon as it answers, if it was away at the start."""
        while self._unknown is not None:
            await anyio.sleep(_LOOK_AGAIN)
            try:
                await self.check()
            except (BlobsFailed, WrongBlobs, Unavailable) as error:
                self._unknown = f"the blob store cannot be used: {error.message}"
                _log.error("%s", self._unknown, extra={"action": "blobs"})

    def ready(self) -> None:
        """:raises Unavailable: the store is not known to be the right one"""
        if self._unknown is not None:
            raise Unavailable(self._unknown, hint=WrongBlobs.hint)

    async def check(self) -> None:
        """Make sure that the store is this database's, and give both an id if they have none.

        :raises WrongBlobs: it is another one's, or lacks what the database expects
        :raises BlobsFailed: it cannot be reached
        """
        mine, found = await self._mine(), await self._blobs.read(_KEY)
        if mine is None or found is None:
            await self._settle(mine, found)
        elif _id_of(found) != mine.body["id"]:
            raise WrongBlobs(
                f"the blob store belongs to another installation: {_id_of(found)}, this is "
                f"{mine.body['id']}"
            )
        self._unknown = None

    async def adopt(self, *, lost: bool) -> tuple[int, int]:
        """The store is this database's, whatever it says. How many workspaces have snapshots in it, and
        how many lack theirs; with `lost`, those begin without files.
        """
        mine = await self._mine() or await self._named(mint("inst"))
        found = await self._blobs.read(_KEY)
        if found is None or _id_of(found) != mine.body["id"]:
            await self._write(mine.body["id"], found.version if found else None)
        there = lacking = 0
        async with aclosing(self._stored()) as stored:
            async for row in stored:
                if await self._blobs.read(head_key(row.id)) is not None:
                    there += 1
                else:
                    lacking += 1
                    if lost:
                        await self._forget(row)
        return there, lacking

    async def _settle(self, mine: Record | None, found: Pointer | None) -> None:
        """One of the two has no id, or neither has."""
        has_all = await self._has_what_is_expected()
        if has_all is False:
            raise WrongBlobs("the blob store has none of the snapshots that the database names")
        if found is not None and has_all is None:
            raise WrongBlobs(f"the blob store belongs to another installation: {_id_of(found)}")
        mine = mine or await self._named(_id_of(found) if found else mint("inst"))
        if found is None:
            await self._write(mine.body["id"], None)

    async def _has_what_is_expected(self) -> bool | None:
        """Whether the store has snapshots that the database names; None if that names none."""
        sample = await self._rows.stored(limit=_SAMPLE)
        for row in sample:
            if await self._blobs.read(head_key(row.id)) is not None:
                return True
        return False if sample else None

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

    async def _stored(self) -> AsyncGenerator[Workspace, None]:
        """Every row that says there are snapshots."""
        before = None
        while page := await self._rows.stored(before=before, limit=1000):
            for row in page:
                yield row
            before = page[-1].id

    async def _forget(self, row: Workspace) -> None:
        try:
            await self._rows.note(replace(row, sequence=0))
        except LeaseLost:  # somebody works in it now, and stores it anew
            _log.info("%s is in use", row.id, extra={"action": "blobs"})


def _id_of(found: Pointer | None) -> str:
    try:
        return msgspec.json.decode(found.data, type=Identity).id if found else ""
    except msgspec.DecodeError:
        return "one that cannot be read"
