"""Objects by key, and pointers that change only if nobody else has changed them.

Promises, each checked by `roost.testing.blobs_contract`:

* an object is there whole or not at all, and stays when `put` has returned, whatever dies;
* what is put is got, and listed, by everybody at once;
* of several `swap`s from the same version one succeeds.

Keys are words of letters, digits, `.`, `_` and `-`, with slashes between them. Whoever reads does not
believe: what a snapshot consists of is checked by its hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Stored(msgspec.Struct, frozen=True):
    """An object, as a listing shows it."""

    key: str
    size: int


class Pointer(msgspec.Struct, frozen=True):
    """A pointer's bytes, and which version of it they are."""

    data: bytes
    version: str


class Blobs(Protocol):
    """A store of objects. Every method raises `BlobsFailed` if the store cannot be reached, or refuses."""

    async def put(self, key: str, data: bytes) -> None:
        """Keep an object. Again with the same key: it is replaced. Returns once it is durable."""
        ...

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """An object's bytes, or those from `start` up to `end`. :raises BlobNotFound:"""
        ...

    async def list(self, prefix: str) -> Sequence[Stored]:
        """All objects and pointers whose key begins with the prefix, in no order."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are no error. Dying half way leaves some.

        Without any keys: find out whether objects could be removed, as far as that is known in advance.
        """
        ...

    async def read(self, key: str) -> Pointer | None:
        """A pointer, as it is now; None if nobody has written it."""
        ...

    async def swap(self, key: str, data: bytes, version: str | None) -> str:
        """Write a pointer if it still has this version (None: is not there); gives the new version.

        No two things written to a pointer are the same: a version may be made of what was written.
        After `BlobsFailed` it may have been written or not; reading it again tells.

        :raises BlobChanged: it has another version
        """
        ...
