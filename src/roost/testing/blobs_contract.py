"""The contract of blob stores: subclass, give the fixture `blobs`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import os

import anyio
import pytest

from roost.errors import BlobChanged, BlobNotFound, BlobsFailed
from roost.ports.blobs import Blobs


class BlobsContract:
    """What snapshots rely on, wherever they are kept. The store is empty, or has other keys."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def blobs(self) -> Blobs:
        """A store."""
        raise NotImplementedError

    @pytest.fixture
    def name(self) -> str:
        """A folder that no other test uses."""
        return f"contract/{os.urandom(6).hex()}"

    async def test_what_is_put_is_got(self, blobs: Blobs, name: str) -> None:
        for size in (0, 1, 100_000, 9 << 20):
            data = os.urandom(size)
            await blobs.put(f"{name}/object", data)
            assert await blobs.get(f"{name}/object") == data

    async def test_a_range_of_an_object_is_got(self, blobs: Blobs, name: str) -> None:
        await blobs.put(f"{name}/object", b"0123456789")
        assert await blobs.get(f"{name}/object", 2, 5) == b"234"
        assert await blobs.get(f"{name}/object", 7) == b"789"

    async def test_an_object_is_replaced_by_another_under_its_key(
        self, blobs: Blobs, name: str
    ) -> None:
        await blobs.put(f"{name}/object", b"long before")
        await blobs.put(f"{name}/object", b"after")
        assert await blobs.get(f"{name}/object") == b"after"

    async def test_what_is_not_there_is_not_found(self, blobs: Blobs, name: str) -> None:
        with pytest.raises(BlobNotFound):
            await blobs.get(f"{name}/nothing")
        assert await blobs.read(f"{name}/nothing") is None

    async def test_a_listing_shows_every_key_with_the_prefix(self, blobs: Blobs, name: str) -> None:
        for key in ("a/one", "a/two-b", "ab/three", "four"):
            await blobs.put(f"{name}/{key}", key.encode())
        await blobs.swap(f"{name}/a/head", b"pointer", None)
        found = {stored.key: stored.size for stored in await blobs.list(f"{name}/a/")}
        assert found == {f"{name}/a/one": 5, f"{name}/a/two-b": 7, f"{name}/a/head": 7}
        assert len(await blobs.list(f"{name}/a")) == 4
        assert await blobs.list(f"{name}/none/") == []

    async def test_deleting_what_is_gone_is_no_error(self, blobs: Blobs, name: str) -> None:
        await blobs.put(f"{name}/one", b"1")
        await blobs.put(f"{name}/two", b"2")
        await blobs.delete([f"{name}/one", f"{name}/never"])
        await blobs.delete([f"{name}/one"])
        assert [stored.key for stored in await blobs.list(f"{name}/")] == [f"{name}/two"]

    async def test_a_pointer_moves_only_from_the_version_that_was_read(
        self, blobs: Blobs, name: str
    ) -> None:
        key = f"{name}/head"
        first = await blobs.swap(key, b"first", None)
        with pytest.raises(BlobChanged):
            await blobs.swap(key, b"another first", None)
        second = await blobs.swap(key, b"second", first)
        with pytest.raises(BlobChanged):
            await blobs.swap(key, b"another second", first)
        found = await blobs.read(key)
        assert found is not None
        assert (found.data, found.version) == (b"second", second)

    async def test_of_many_who_move_a_pointer_at_once_one_succeeds(
        self, blobs: Blobs, name: str
    ) -> None:
        key, version = f"{name}/head", None
        won: list[tuple[bytes, str]] = []

        async def move(data: bytes, version: str | None) -> None:
            try:
                won.append((data, await blobs.swap(key, data, version)))
            except BlobsFailed as error:  # a store may also say that it is contended
                assert not isinstance(error, BlobNotFound)

        for turn in range(3):
            won.clear()
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(move, b"%d %d" % (turn, number), version)
            ((data, version),) = won
            found = await blobs.read(key)
            assert found is not None
            assert (found.data, found.version) == (data, version)
