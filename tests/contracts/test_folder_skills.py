"""Skills on disk, and in the blob store."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest

from roost.blobs.folder import FolderBlobs
from roost.domain.skill import SkillFile
from roost.errors import BlobNotFound, BlobsFailed, NotFound, SnapshotCorrupt, Unavailable
from roost.stores.skills import BlobSkills, FolderSkills


def names(place: Path) -> list[str]:
    return [path.name for path in place.iterdir()]


def below(place: Path) -> list[Path]:
    return [place, *place.rglob("*")]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


FILES = [SkillFile("SKILL.md", b"---"), SkillFile("bin/run", b"#!/bin/sh", executable=True)]


async def test_files_come_back_as_they_were_and_everybody_may_read_them(tmp_path: Path):
    skills = FolderSkills(tmp_path / "skills")
    await skills.keep("skillver_1", FILES)
    place = await skills.where("skillver_1")
    assert place is not None
    assert await skills.read("skillver_1") == FILES
    modes = {path.name: mode_of(path) for path in below(place)}
    assert modes == {"skillver_1": 0o755, "SKILL.md": 0o644, "bin": 0o755, "run": 0o755}
    assert mode_of(tmp_path / "skills") == 0o700
    await skills.drop("skillver_1")
    await skills.drop("skillver_1")
    assert await skills.where("skillver_1") is None
    with pytest.raises(NotFound):
        await skills.read("skillver_1")


async def test_what_a_crash_left_half_written_is_gone_at_the_next_start(tmp_path: Path):
    """Before its rename, a directory has a name that nobody asks for."""
    skills = FolderSkills(tmp_path)
    await skills.keep("skillver_1", FILES)
    (tmp_path / "new_0123").mkdir()
    (tmp_path / "new_0123" / "SKILL.md").write_bytes(b"half")
    again = FolderSkills(tmp_path)
    assert names(tmp_path) == ["skillver_1"]
    assert await again.read("skillver_1") == FILES


async def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path: Path):
    skills = FolderSkills(tmp_path)
    with pytest.raises(Unavailable):
        await skills.keep("skillver_1", [*FILES, SkillFile("x" * 300, b"")])
    assert names(tmp_path) == []


def server(folder: Path, name: str) -> BlobSkills:
    """One of several on the same store."""
    return BlobSkills(FolderBlobs(folder / "blobs"), FolderSkills(folder / name))


async def test_what_one_server_keeps_every_server_shows(tmp_path: Path):
    red, blue = server(tmp_path, "red"), server(tmp_path, "blue")
    await red.keep("skillver_1", FILES)
    assert await blue.read("skillver_1") == FILES
    place = await blue.where("skillver_1")
    assert place is not None
    assert (place / "bin" / "run").read_bytes() == b"#!/bin/sh"
    assert mode_of(place / "bin" / "run") == 0o755
    assert await blue.where("skillver_1") == place
    await red.drop("skillver_1")
    for ask in (red.where, blue.read):
        with pytest.raises(BlobNotFound):
            await ask("skillver_1")


async def test_what_is_unpacked_is_forgotten_at_the_next_start_and_unpacked_again(tmp_path: Path):
    red = server(tmp_path, "red")
    await red.keep("skillver_1", FILES)
    await red.where("skillver_1")
    again = server(tmp_path, "red")
    assert names(tmp_path / "red") == []
    assert await again.where("skillver_1") == tmp_path / "red" / "skillver_1"


async def test_two_that_unpack_at_once_both_get_it(tmp_path: Path):
    red = server(tmp_path, "red")
    await red.keep("skillver_1", FILES)
    found: list[Path | None] = []

    async def look() -> None:
        found.append(await red.where("skillver_1"))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(look)
    assert found == [tmp_path / "red" / "skillver_1"] * 8
    assert names(tmp_path / "red") == ["skillver_1"]


async def test_an_object_that_somebody_has_changed_leads_nowhere(tmp_path: Path):
    blobs = FolderBlobs(tmp_path / "blobs")
    red = server(tmp_path, "red")
    for bad in (b"\xff", msgspec.msgpack.encode([SkillFile("../out", b"x")])):
        await blobs.put("skills/skillver_1", bad)
        assert await red.where("skillver_1") is None
        with pytest.raises(SnapshotCorrupt):
            await red.read("skillver_1")
    assert not (tmp_path / "out").exists()


async def test_a_store_that_refuses_is_said_to_whoever_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def refuse(*_: object) -> None:
        raise BlobsFailed("no route")

    monkeypatch.setattr(FolderBlobs, "put", refuse)
    with pytest.raises(BlobsFailed):
        await server(tmp_path, "red").keep("skillver_1", FILES)
