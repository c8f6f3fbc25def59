"""Locks of layers: who waits for one, and which are counted among those that are there."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from roost.errors import SandboxUnavailable
from roost.ports.packages import LayersKept
from roost.sandboxes.layer_directory import LayerDirectory, Surplus


def unused(locks: LayerDirectory, days: float) -> list[str]:
    return [layer.name for layer in Surplus(locks.known(), LayersKept(days=days))]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_a_layer_that_is_removed_while_it_is_noted_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    locks, touch = LayerDirectory(tmp_path), Path.touch

    def touched(path: Path, mode: int) -> None:
        touch(path, mode)
        locks.forget(path.stem)

    locks.touch("layer")
    os.utime(tmp_path / "layer.lock", (1, 1))
    locks.touch("layer")
    assert unused(locks, days=1) == []
    monkeypatch.setattr(Path, "touch", touched)
    locks.touch("layer")


async def test_nobody_waits_for_the_lock_of_a_layer_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roost.sandboxes.layer_directory._LOOK_SECONDS", 0.01)
    locks, looked, is_whole = LayerDirectory(tmp_path), anyio.Event(), False

    async def is_there() -> bool:
        looked.set()
        return is_whole

    async def build() -> None:
        with anyio.fail_after(60):
            async with locks.alone("layer", is_there) as found:
                assert found

    with locks.locked("layer", fcntl.LOCK_SH):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(build)
            await looked.wait()
            is_whole = True
    async with locks.alone("layer", is_there) as found:
        assert found, "it was built while somebody waited for its lock"


@pytest.mark.parametrize("left", ["nothing", "the layer", "nobody knows"])
async def test_what_a_failed_build_has_left_is_collected(tmp_path: Path, left: str):
    """An engine may have made the image though its answer did not come."""
    locks, is_over = LayerDirectory(tmp_path), False

    async def is_there() -> bool:
        if is_over and left == "nobody knows":
            raise SandboxUnavailable("no answer")
        return is_over and left == "the layer"

    async def build() -> None:
        nonlocal is_over
        async with locks.alone("layer", is_there) as found:
            assert not found
            is_over = True
            scope.cancel()
            await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await build()
    assert scope.cancelled_caught
    assert unused(locks, days=-1) == ([] if left == "nothing" else ["layer"])


def test_a_layer_that_is_gone_or_was_used_since_is_not_removed(tmp_path: Path):
    locks = LayerDirectory(tmp_path)
    locks.touch("layer")
    os.utime(tmp_path / "layer.lock", (1, 1))
    [layer] = locks.known()
    layer = locks.count(layer, 5)
    assert locks.known() == [layer], "to count it is no use of it"
    locks.touch("layer")
    with ExitStack() as held:
        assert not locks.try_lock_unused(layer, held)
    locks.forget("layer")
    with ExitStack() as held:
        assert not locks.try_lock_unused(layer, held)
    assert locks.known() == [], "nor is it counted again"
    assert locks.count(layer, 6).bytes == 6
    assert locks.known() == []


def test_what_a_power_cut_leaves_of_a_count_is_counted_again(tmp_path: Path):
    locks = LayerDirectory(tmp_path)
    locks.touch("layer")
    (tmp_path / "layer.lock").write_bytes(b"\0\0\0\0")
    [layer] = locks.known()
    assert layer.bytes is None
    for taken in (12_345, 6):
        locks.count(layer, taken)
        assert [each.bytes for each in locks.known()] == [taken]
