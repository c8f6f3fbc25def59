"""Repeating what failed, until the store answers or there is no use in waiting longer."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import anyio

from roost.errors import BlobChanged, BlobNotFound, BlobsFailed, DiskFull
from roost.ports.blobs import Blobs, Pointer, Stored

_log = logging.getLogger(__name__)
_PAUSES: Final = (0.1, 0.4, 1.6)

T = TypeVar("T")


class SteadyBlobs:
    """`ports.blobs.Blobs`, in front of one that fails at times.

    :param pauses: seconds before each repetition
    """

    def __init__(self, inner: Blobs, pauses: Sequence[float] = _PAUSES) -> None:
        self._inner = inner
        self._pauses = pauses

    async def put(self, key: str, data: bytes) -> None:
        await self._steadily(partial(self._inner.put, key, data))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._steadily(partial(self._inner.get, key, start, end))

    async def list(self, prefix: str) -> Sequence[Stored]:
        return await self._steadily(partial(self._inner.list, prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._steadily(partial(self._inner.delete, keys))

    async def read(self, key: str) -> Pointer | None:
        return await self._steadily(partial(self._inner.read, key))

    async def swap(self, key: str, data: bytes, version: str | None) -> str:
        """A try that failed may have written all the same: then the pointer holds exactly this."""
        try:
            return await self._steadily(partial(self._inner.swap, key, data, version))
        except BlobChanged:
            found = await self.read(key)
            if found is not None and found.data == data:
                return found.version
            raise

    async def _steadily(self, work: Callable[[], Awaitable[T]]) -> T:
        for pause in self._pauses:
            try:
                return await work()
            except (BlobNotFound, BlobChanged, DiskFull):
                raise
            except BlobsFailed as error:
                _log.warning("%s; again", error.message, extra={"action": "blobs"})
                await anyio.sleep(pause * random.uniform(0.5, 1.5))
        return await work()
