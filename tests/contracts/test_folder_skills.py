"""Skills on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from roost.domain.skill import File
from roost.errors import NotFound, Unavailable
from roost.stores.skills import FolderSkills


def names(place: Path) -> list[str]:
    return [path.name for path in place.iterdir()]


def below(place: Path) -> list[Path]:
    return [place, *place.rglob("*")]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


FILES = [File("SKILL.md", b"---"), File("bin/run", b"#!/bin/sh", executable=True)]


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
        await skills.keep("skillver_1", [*FILES, File("x" * 300, b"")])
    assert names(tmp_path) == []
