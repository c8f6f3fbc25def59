"""Files that clients have uploaded, and copies and outputs that belong to sessions.

The bytes are in the blob store, in parts; what else is known is a record. Before anything is written or
removed, a note of it is put on a shelf that is looked through now and then. So whatever a crash leaves
half done is found by its note: bytes without a record are removed, and a record never lacks its bytes.

    upload:  note → bytes → record → no note          delete:  note → no record → no bytes → no note

A fork's messages name files that the session it came from has copies of. It gets records of its own with the
same bytes, which are counted once in a quota, and stay until the last record that has them goes. A hold is
a record that is named like the file whose bytes they are:

    share:  record → hold → is the other's claim still there? if not, no record
    delete:  no hold → no bytes, if nobody else has them → no record
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import IO, Final

from anyio import to_thread
from msgspec.structs import replace

from roost.core.access.sessions import Act, SessionAccess
from roost.core.files.intents import Intents
from roost.domain.events import Micros
from roost.domain.file import PART, FilePart, StoredFile, file_of, part_key, prefix_of
from roost.errors import (
    FileExpired,
    NotFound,
    SnapshotCorrupt,
    StorageQuotaExceeded,
    Unavailable,
)
from roost.ids import mint
from roost.ports.blobs import Blobs
from roost.ports.catalog import Catalog, Kind, Record, RecordQuery
from roost.ports.keys import Key

_PAGE: Final = 1000
_SHARE: Final = 16  # servers that may each take a share of the room before one counts again
_LEAST: Final = 1024  # bytes that a file counts in a quota, however small it is


def now() -> Micros:
    """By this machine's clock, which only files that expire go by."""
    return time.time_ns() // 1000


class Allowance:
    """How much of something there may be under each name; `most` 0: any amount.

    Counting takes long, so it is done seldom while there is much room.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._free: dict[str, int] = {}

    async def take(self, name: str, size: int, count: Callable[[], Awaitable[int]]) -> int | None:
        """None if there is room for so much more, which is then taken; else how much there is."""
        if not self.most:
            return None
        if size > self._free.get(name, 0):
            used = await count()
            if used + size > self.most:
                self._free.pop(name, None)
                return used
            self._free[name] = max(size, (self.most - used) // _SHARE)
        self._free[name] -= size
        return None


class FileStore:
    """All files. `quota`: how many bytes a tenant may keep; 0: as many as it likes."""

    def __init__(
        self,
        catalog: Catalog,
        blobs: Blobs,
        access: SessionAccess,
        *,
        quota: int = 0,
        clock: Callable[[], Micros] = now,
    ) -> None:
        self.shelf = Intents(catalog)
        self._catalog = catalog
        self._blobs = blobs
        self._access = access
        self._quota = Allowance(quota)
        self._clock = clock

    async def add(
        self,
        tenant: str,
        file: StoredFile,
        data: IO[bytes],
        *,
        created_by: str,
        seconds: int | None = None,
    ) -> Record:
        """Keep a file, for so many seconds or for good. `created_by`: whose it is.

        :raises StorageQuotaExceeded: :raises BlobsFailed: nothing is kept
        """
        size = await to_thread.run_sync(_size, data)
        await self._check_quota(tenant, size)
        if seconds is not None:
            file = replace(file, expires_at=self._clock() + seconds * 1_000_000)
        return await self._kept(tenant, file, _pieces(data), created_by)

    async def copy(self, caller: Key, record: Record, scope: str) -> Record:
        """A copy with an id of its own, which belongs to a session. Raises as `add`."""
        return await self._copy(caller, record, scope, None)

    async def attach(self, caller: Key, record: Record, scope: str) -> Record:
        """Such a copy, of a file that a message to the session names. Raises as `add`."""
        return await self._copy(caller, record, scope, record.id)

    async def _copy(self, caller: Key, record: Record, scope: str, attached: str | None) -> Record:
        """It is no output of the session, even if the original was one of another's."""
        await self._check_quota(record.tenant, file_of(record.body).size)
        own = {
            "name": scope,
            "attached": attached,
            **dict.fromkeys(("expires_at", "origin", "held")),
        }
        file = replace(file_of(record.body), **own)
        return await self._kept(record.tenant, file, self.content(record), caller.principal)

    async def share(self, caller: Key, record: Record, scope: str) -> None:
        """Let another session have a session's copy, with the same bytes, which nobody pays for twice.

        Nothing happens if that is just being removed.
        """
        held = record.body.get("held") or record.id
        body = replace(file_of(record.body), name=scope, held=held).body
        made, tenant = mint("file"), record.tenant
        await self._catalog.add(
            "file", tenant, made, body, unique_name=False, created_by=caller.principal
        )
        hold = {"name": held, "file": made}
        await self._catalog.add("file_hold", tenant, _hold_of(made), hold, unique_name=False)
        # Whoever removes that one takes its claim away first, and then looks for holds.
        if not await self._has_claim(record):
            await self.drop(tenant, made)

    async def _has_claim(self, record: Record) -> bool:
        held = record.body.get("held") is not None
        kind: Kind = "file_hold" if held else "file"
        return await self._is_there(kind, record.tenant, _hold_of(record.id) if held else record.id)

    async def _is_there(self, kind: Kind, tenant: str, record_id: str) -> bool:
        try:
            await self._catalog.get(kind, tenant, record_id)
        except NotFound:
            return False
        return True

    async def seen(self, caller: Key, file_id: str, act: Act = "see") -> Record:
        """A file, if the caller may do that with it. :raises NotFound: :raises Forbidden: see `Access`"""
        record = await self.get(caller.tenant, file_id)
        await self._access.check_file(caller, record, act)
        return record

    async def get(self, tenant: str, file_id: str) -> Record:
        """For the server itself; requests ask for `seen`.

        :raises NotFound: absent, or another tenant's :raises FileExpired:
        """
        try:
            record = await self._catalog.get("file", tenant, file_id)
        except NotFound:
            raise NotFound(f"file {file_id} was not found") from None
        if self.is_over(record):
            raise FileExpired(f"file {file_id} has expired")
        return record

    def is_over(self, record: Record) -> bool:
        """Whether its time is up."""
        expires_at = record.body.get("expires_at")
        return expires_at is not None and expires_at <= self._clock()

    async def shown(self, caller: Key, records: Iterable[Record]) -> list[Record]:
        """Those whose time is not up, and that the caller may see."""
        found = []
        for record in records:
            with suppress(NotFound):
                await self._access.check_file(caller, record)
                if not self.is_over(record):
                    found.append(record)
        return found

    async def page(self, query: RecordQuery) -> list[Record]:
        """A page of files, newest first; also of those whose time is up and that are not gone yet."""
        return await self._catalog.page(query)

    async def of_session(self, tenant: str, session_id: str) -> list[Record]:
        """All files that belong to a session, newest first."""
        query = RecordQuery(kind="file", tenant=tenant, name=session_id)
        return [record async for record in self.walk(query)]

    async def delete(self, tenant: str, file_id: str) -> None:
        """Remove the file. That is noted first, so that a crash leaves no bytes behind.

        :raises NotFound:
        :raises BlobsFailed: nothing is removed
        """
        await self.get(tenant, file_id)
        await self._blobs.delete([])  # a store that is away, or a wrong one, refuses
        note = await self.shelf.note(tenant, file=file_id, deleted=True)
        await self.drop(tenant, file_id)
        await self.shelf.settle(note)

    async def part(self, record: Record, index: int) -> bytes:
        """The bytes of one part, checked against their digest.

        :raises BlobsFailed:
        :raises SnapshotCorrupt: not what was stored
        """
        part = file_of(record.body).parts[index]
        data = await self._blobs.get(part_key(record.body.get("held") or record.id, index))
        if len(data) != part.size or _digest(data) != part.digest:
            raise SnapshotCorrupt(f"a part of {record.id} is damaged")
        return data

    async def content(self, record: Record) -> AsyncGenerator[bytes, None]:
        """All of its bytes, part by part. :raises BlobsFailed:"""
        for index in range(len(record.body["parts"])):
            yield await self.part(record, index)

    async def drop(self, tenant: str, file_id: str) -> None:
        """Remove a file's record, then its bytes, unless others have them; whatever of it there is."""
        try:
            held = (await self._catalog.get("file", tenant, file_id)).body.get("held")
        except NotFound:
            held = None
        if held is None:
            await self._forget("file", tenant, file_id)
            await self._drop_bytes(tenant, file_id)
            return
        await self._forget("file_hold", tenant, _hold_of(file_id))
        await self._drop_bytes(tenant, held)
        await self._forget("file", tenant, file_id)  # last: until then, this is done again

    async def _forget(self, kind: Kind, tenant: str, record_id: str) -> None:
        with suppress(NotFound):
            await self._catalog.delete(kind, tenant, record_id)

    async def _drop_bytes(self, tenant: str, file_id: str) -> None:
        """Remove what is stored as this file, if it has no record any more, and nobody holds it."""
        in_use = await self._is_there("file", tenant, file_id)
        if in_use or await self._catalog.named("file_hold", tenant, file_id):
            return
        found = await self._blobs.list(prefix_of(file_id))
        await self._blobs.delete([stored.key for stored in found])

    async def _kept(
        self, tenant: str, file: StoredFile, pieces: AsyncGenerator[bytes, None], created_by: str
    ) -> Record:
        file_id = mint("file")
        note = await self.shelf.note(tenant, file=file_id)
        # Failing here leaves the note, which leads to what is to be removed.
        parts = [part async for part in self._stored(file_id, pieces)]
        body = replace(file, parts=tuple(parts)).body
        record = await self._catalog.add(
            "file", tenant, file_id, body, unique_name=False, created_by=created_by
        )
        try:
            await self.shelf.finish(note)
        except Unavailable:
            await self.drop(tenant, file_id)
            raise
        if file.expires_at is None:
            await self.shelf.settle(note)
        return record

    async def _stored(
        self, file_id: str, pieces: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[FilePart, None]:
        index = 0
        async for piece in pieces:
            await self._blobs.put(part_key(file_id, index), piece)
            yield FilePart(len(piece), _digest(piece))
            index += 1

    async def _check_quota(self, tenant: str, size: int) -> None:
        size = max(size, _LEAST)
        used = await self._quota.take(tenant, size, partial(self._used, tenant))
        if used is not None:
            raise StorageQuotaExceeded(
                f"{used} bytes of files are kept, and {size} more would be over {self._quota.most}"
            )

    async def _used(self, tenant: str) -> int:
        # The newest come first: those that share before what they share.
        used, counted = 0, set[str]()
        async for record in self.walk(RecordQuery(kind="file", tenant=tenant)):
            held = record.body.get("held")
            size = 0 if (held or record.id) in counted else file_of(record.body).size
            used += max(size, _LEAST)
            if held is not None:
                counted.add(held)
        return used

    async def walk(self, query: RecordQuery) -> AsyncGenerator[Record, None]:
        """All that a listing would show, over all its pages."""
        query = replace(query, limit=_PAGE)
        while True:
            found = await self._catalog.page(query)
            for record in found:
                yield record
            if len(found) < _PAGE:
                return
            query = replace(query, after=found[-1].id)


class Reader:
    """Reads a file from any place on, one part in memory at a time."""

    def __init__(self, store: FileStore, record: Record) -> None:
        self._store = store
        self._record = record
        self._held: tuple[int, bytes] | None = None

    async def read(self, start: int, size: int) -> bytes:
        """Bytes from there on, no further than to the end of a part."""
        index, at = divmod(start, PART)
        if self._held is None or self._held[0] != index:
            self._held = (index, await self._store.part(self._record, index))
        return self._held[1][at : at + size]


def _hold_of(file_id: str) -> str:
    return f"hold_{file_id}"


def _size(data: IO[bytes]) -> int:
    size = data.seek(0, 2)
    data.seek(0)
    return size


async def _pieces(data: IO[bytes]) -> AsyncGenerator[bytes, None]:
    while piece := await to_thread.run_sync(data.read, PART):
        yield piece


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()
