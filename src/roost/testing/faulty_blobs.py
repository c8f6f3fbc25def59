"""A blob store that fails on demand, in each of the ways stores fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

import anyio

from roost.errors import BlobsFailed
from roost.ports.blobs import Blobs, Pointer, Stored

Fault = Literal["refused", "answer lost", "slow", "cut", "wrong bytes"]
FAULTS: tuple[Fault, ...] = ("refused", "answer lost", "slow", "cut", "wrong bytes")

T = TypeVar("T")


class FaultyBlobs:
    """`ports.blobs.Blobs`. Counts its calls; `fails` says for each number what goes wrong, if anything.

    Bytes are cut or wrong only on the way back: on the way there, a store checks them, and refuses.
    """

    def __init__(self, inner: Blobs, fails: Callable[[int], Fault | None]) -> None:
        self.calls = 0
        self._inner = inner
        self._fails = fails

    async def put(self, key: str, data: bytes) -> None:
        """As the port says, unless it fails."""
        fault = self._next()
        if fault in ("cut", "wrong bytes"):
            raise BlobsFailed("the checksum of the upload is wrong")
        await _around(fault, self._inner.put(key, data))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """As the port says, unless it fails."""
        fault = self._next()
        return _spoilt(fault, await _around(fault, self._inner.get(key, start, end)))

    async def list(self, prefix: str) -> Sequence[Stored]:
        """As the port says, unless it fails."""
        fault = self._next()
        if fault in ("cut", "wrong bytes"):
            raise BlobsFailed("the listing cannot be read")
        return await _around(fault, self._inner.list(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        """As the port says, unless it fails."""
        fault = self._next()
        if fault == "cut":
            await self._inner.delete(keys[: len(keys) // 2])
            raise BlobsFailed("the connection broke")
        await _around(fault, self._inner.delete(keys))

    async def read(self, key: str) -> Pointer | None:
        """As the port says, unless it fails."""
        fault = self._next()
        found = await _around(fault, self._inner.read(key))
        return found and Pointer(_spoilt(fault, found.data), found.version)

    async def swap(self, key: str, data: bytes, version: str | None) -> str:
        """As the port says, unless it fails."""
        fault = self._next()
        if fault in ("cut", "wrong bytes"):
            raise BlobsFailed("the checksum of the upload is wrong")
        return await _around(fault, self._inner.swap(key, data, version))

    def _next(self) -> Fault | None:
        self.calls += 1
        return self._fails(self.calls)


async def _around(fault: Fault | None, work: Awaitable[T]) -> T:
    if fault == "refused":
        if hasattr(work, "close"):
            work.close()
        raise BlobsFailed("500 Internal Server Error")
    if fault == "slow":
        await anyio.sleep(0.05)
    answer = await work
    if fault == "answer lost":
        raise BlobsFailed("the connection broke before the answer")
    return answer


def _spoilt(fault: Fault | None, data: bytes) -> bytes:
    if fault == "cut":
        return data[: len(data) // 2]
    if fault == "wrong bytes" and data:
        return data[:-1] + bytes([data[-1] ^ 0x40])
    return data
