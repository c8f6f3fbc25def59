"""Keeping away from a store that is not this installation's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from roost.errors import BlobNotFound
from roost.ports.blobs import Blobs, Pointer, Stored


class GuardedBlobs:
    """`ports.blobs.Blobs`, of which nothing is believed to be gone, and to which nothing is written, unless it
    is the right store at that moment: a folder may be unmounted, or a bucket emptied, while servers run.

    :param check: raises `BlobsFailed` if it is not the right store, or cannot be asked
    """

    def __init__(self, inner: Blobs, check: Callable[[], Awaitable[None]]) -> None:
        self._inner = inner
        self._check = check

    async def put(self, key: str, data: bytes) -> None:
        await self._check()
        await self._inner.put(key, data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        try:
            return await self._inner.get(key, start, end)
        except BlobNotFound:
            await self._check()
            raise

    async def list(self, prefix: str) -> Sequence[Stored]:
        found = await self._inner.list(prefix)
        if not found:
            await self._check()
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        await self._check()
        if keys:
            await self._inner.delete(keys)

    async def read(self, key: str) -> Pointer | None:
        found = await self._inner.read(key)
        if found is None:
            await self._check()
        return found

    async def swap(self, key: str, data: bytes, version: str | None) -> str:
        await self._check()
        return await self._inner.swap(key, data, version)
