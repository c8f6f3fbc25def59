"""Files that must outlive a power cut, beside those in the blob store; and the model of one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from roost.config import Settings
from roost.disk import make_folder, sync_folder
from roost.domain.skill import SkillFile
from roost.sandboxes.file_exchange import FolderExchange
from roost.serve.first_start import home_of, prepare, token_secret, write_private
from roost.serve.master_key import master_keys
from roost.stores.skills import FolderSkills
from roost.testing.power_cut import PowerCut


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (disk := tmp_path / "disk").mkdir()
    return disk


def test_what_was_not_synced_is_there_or_is_not_or_half(tmp_path: Path, disk: Path):
    (disk / "before").write_text("before")
    cut = PowerCut(disk)
    with cut.watching():
        (disk / "before").rename(disk / "moved")
        (disk / "new").write_text("new!")
        found = [
            {path.name: path.read_text() for path in left.iterdir()}
            for left in cut.outcomes(tmp_path / "left", count=100)
        ]
    assert found[0] == {"before": "before"}
    assert {one.get("new") for one in found} == {None, "", "ne", "new!"}
    assert {one.get("moved") for one in found} == {None, "before"}
    assert {} in found, "a name can be lost at both places"


def test_a_file_is_durable_when_it_and_its_name_and_its_folder_are(tmp_path: Path, disk: Path):
    cut = PowerCut(disk)
    steps: list[Callable[[], object]] = [
        lambda: (disk / "a").mkdir(),
        lambda: (disk / "a/b").write_text("text"),
        lambda: _sync(disk / "a/b"),
        lambda: sync_folder(disk / "a"),
        lambda: sync_folder(disk),
    ]
    with cut.watching():
        for done, step in enumerate(steps, 1):
            step()
            least = next(cut.outcomes(tmp_path / "left"))
            assert (least / "a/b").exists() == (done == len(steps))
    assert (least / "a/b").read_text() == "text"


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def test_a_folder_is_durable_down_from_the_first_that_was_missing(tmp_path: Path, disk: Path):
    cut = PowerCut(disk)
    with cut.watching():
        make_folder(disk / "a" / "b" / "c", mode=0o700)
        for left in cut.outcomes(tmp_path / "left"):
            assert (left / "a" / "b" / "c").stat().st_mode & 0o777 == 0o700


def keys_of(data: Path) -> list[str]:
    """As a server that starts reads them, or makes them if there are none."""
    prepare(data)
    master_keys(Settings.model_validate({"data": data}))
    write_private(data / "keys" / "admin.key", "roost_1")
    made = [token_secret(data).decode(), home_of(data)]
    return [*made, *(path.read_text() for path in sorted((data / "keys").iterdir()))]


def test_keys_that_a_server_has_begun_to_use_outlive_a_power_cut(tmp_path: Path, disk: Path):
    cut = PowerCut(disk)
    with cut.watching():
        made = keys_of(disk / "srv" / "data")
        for left in cut.outcomes(tmp_path / "left"):
            assert keys_of(left / "srv" / "data") == made


def test_a_key_that_is_replaced_is_the_old_one_or_the_new_one(tmp_path: Path, disk: Path):
    write_private(disk / "key", "old")
    cut = PowerCut(disk)
    left: list[Path] = []
    with cut.watching(lambda: left.extend(cut.outcomes(tmp_path / "left", count=9))):
        write_private(disk / "key", "new")
        last = next(cut.outcomes(tmp_path / "left"))
    assert {(path / "key").read_text() for path in left} <= {"old\n", "new\n"}
    assert (last / "key").read_text() == "new\n"


async def test_a_skill_that_was_kept_outlives_a_power_cut_and_is_whole(tmp_path: Path, disk: Path):
    files = [
        SkillFile("SKILL.md", b"---"),
        SkillFile("bin/deep/run", b"#!/bin/sh", executable=True),
    ]
    cut = PowerCut(disk)
    left: list[Path] = []
    with cut.watching(lambda: left.extend(cut.outcomes(tmp_path / "left"))):
        await FolderSkills(disk / "skills").keep("skillver_1", files)
        after = list(cut.outcomes(tmp_path / "left"))
    for path in after:
        assert await FolderSkills(path / "skills").read("skillver_1") == files
    for path in left:
        skills = FolderSkills(path / "skills")
        if await skills.where("skillver_1"):
            assert await skills.read("skillver_1") == files


UPLOADS = {"a/one.csv": "file_1", "two.csv": "file_2"}


async def content(file_id: str) -> AsyncIterator[bytes]:
    for _ in range(10):
        yield file_id.encode() * 100


async def test_an_agent_sees_its_uploads_whole_after_a_power_cut(tmp_path: Path, disk: Path):
    """Whatever the index names is not fetched again."""
    cut = PowerCut(disk)
    left: list[Path] = []
    with cut.watching(lambda: left.extend(cut.outcomes(tmp_path / "left"))):
        await FolderExchange(disk / "shown", range(0)).uploads("sesn_1", UPLOADS, content)
        left.extend(cut.outcomes(tmp_path / "left", count=20))
    for path in left:
        place = await FolderExchange(path / "shown", range(0)).uploads("sesn_1", UPLOADS, content)
        for name, file_id in UPLOADS.items():
            assert (place / name).read_bytes() == file_id.encode() * 1000


async def test_an_upload_that_was_taken_away_is_not_shown_after_a_power_cut(
    tmp_path: Path, disk: Path
):
    shown = FolderExchange(disk / "shown", range(0))
    await shown.uploads("sesn_1", UPLOADS, content)
    cut = PowerCut(disk)
    left: list[Path] = []
    with cut.watching(lambda: left.extend(cut.outcomes(tmp_path / "left"))):
        await shown.uploads("sesn_1", {"two.csv": "file_2"}, content)
        left.extend(cut.outcomes(tmp_path / "left", count=20))
    for path in left:
        again = FolderExchange(path / "shown", range(0))
        place = await again.uploads("sesn_1", {"two.csv": "file_2"}, content)
        assert [found.name for found in place.rglob("*") if found.is_file()] == ["two.csv"]
