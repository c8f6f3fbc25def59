"""The contract of blob stores: subclass, give the fixture `blobs`, inherit the tests."""

# ruff: noqa: D102 - the names are sentences

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from roost.errors import BlobChanged, BlobNotFound, BlobsFailed
from roost.ports.blobs import Blobs
from roost.testing.power_cut import PowerCut


class BlobsContract:
    """What snapshots rely on, wherever they are kept. The store is empty, or has other keys."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def blobs(self) -> Blobs:
        """The store that is tested, empty."""
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


class FolderBlobsContract(BlobsContract):
    """The same, and what else is expected of a store in a directory of this machine."""

    @pytest.fixture
    def opened(self) -> Callable[[Path], Blobs]:
        """Opens a store in a directory, which need not be there."""
        raise NotImplementedError

    @pytest.fixture
    async def blobs(self, opened: Callable[[Path], Blobs], tmp_path: Path) -> Blobs:
        return opened(tmp_path / "blobs")

    @pytest.mark.parametrize("first", ["put", "swap"])
    async def test_whatever_was_acknowledged_outlives_a_power_cut(
        self, opened: Callable[[Path], Blobs], tmp_path: Path, first: str
    ) -> None:
        (disk := tmp_path / "disk").mkdir()
        cut = PowerCut(disk)
        blobs = opened(disk / "some" / "blobs")
        stored: dict[str, bytes | None] = {}
        version = None
        steps = ["a/one", "a/b/two", "head", "a/one", "-a/b/two", "head", "-a/one", "a/one"]
        with cut.watching():
            for number, step in enumerate(["head", *steps] if first == "swap" else steps):
                key, data = step.removeprefix("-"), b"%d" % number * 1000
                if step.startswith("-"):
                    await blobs.delete([key])
                elif key == "head":
                    version = await blobs.swap(key, data, version)
                else:
                    await blobs.put(key, data)
                stored[key] = None if step.startswith("-") else data
                for left in cut.outcomes(tmp_path / "left", seed=number):
                    assert await _found(opened(left / "some" / "blobs"), stored) == stored

    async def test_a_power_cut_leaves_the_old_object_or_the_new_one(
        self, opened: Callable[[Path], Blobs], tmp_path: Path
    ) -> None:
        (disk := tmp_path / "disk").mkdir()
        cut = PowerCut(disk)
        blobs, left = opened(disk / "blobs"), list[Path]()
        old, new = b"old" * 1000, b"new" * 2000
        with cut.watching():
            await blobs.put("a/key", old)
            version = await blobs.swap("head", old, None)
        cut = PowerCut(disk)
        with cut.watching(lambda: left.extend(cut.outcomes(tmp_path / "left", count=9))):
            await blobs.put("a/key", new)
            await blobs.swap("head", new, version)
        assert left
        for path in left:
            found = await _found(opened(path / "blobs"), {"a/key": None, "head": None})
            assert set(found.values()) <= {old, new}, path

    async def test_an_object_is_kept_though_its_folder_was_removed(
        self, blobs: Blobs, tmp_path: Path
    ) -> None:
        await blobs.put("a/b/one", b"1")
        shutil.rmtree(tmp_path / "blobs" / "a")
        await blobs.put("a/b/two", b"2")
        assert await blobs.get("a/b/two") == b"2"

    @pytest.mark.parametrize("sync", range(1, 6))
    async def test_an_object_is_durable_though_somebody_else_just_makes_its_folder(
        self, opened: Callable[[Path], Blobs], tmp_path: Path, sync: int
    ) -> None:
        (disk := tmp_path / "disk").mkdir()
        cut = PowerCut(disk)
        pause = _Pause(sync)
        with cut.watching(pause.before):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(opened(disk / "blobs").put, "a/b/other", b"other")
                await anyio.to_thread.run_sync(pause.reached.wait, 10)
                try:
                    await opened(disk / "blobs").put("a/b/mine", b"mine")
                    for left in cut.outcomes(tmp_path / "left"):
                        assert await opened(left / "blobs").get("a/b/mine") == b"mine"
                finally:
                    pause.go.set()


class _Pause:
    """Stops whoever comes to a sync with this number, and nobody after that."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.reached, self.go = threading.Event(), threading.Event()

    def before(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            self.go.wait(60)


async def _found(blobs: Blobs, keys: dict[str, bytes | None]) -> dict[str, bytes | None]:
    """What there is under these keys; there must be no others."""
    listed = {stored.key for stored in await blobs.list("")}
    assert listed <= keys.keys()
    return {key: await blobs.get(key) if key in listed else None for key in keys}
