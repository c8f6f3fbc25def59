"""Removing trees that somebody hostile has made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.test_archives import deepest_of, in_each_other

from roost import disk
from roost.disk import remove


@in_each_other
def test_a_tree_deeper_than_any_path_is_removed(tmp_path: Path, levels: int, name: str):
    top = tmp_path / "top"
    top.mkdir()
    with deepest_of(top, levels, name) as at:
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    remove(top)
    assert not top.exists()


def test_a_directory_that_is_moved_away_meanwhile_takes_nothing_else_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    top, others = tmp_path / "top", tmp_path / "others"
    (top / "a" / "b").mkdir(parents=True)
    for name in ("a", "one"):
        (others / name).mkdir(parents=True)
    (others / "one" / "file").write_text("another session's")
    real = disk._emptied

    def emptied(name: str, at: int) -> disk._Level:
        if name == "b":
            (top / "a" / "b").rename(others / "b")  # now its `..` is the directory of the others
        return real(name, at)

    monkeypatch.setattr(disk, "_emptied", emptied)
    with pytest.raises(OSError, match="moved"):
        remove(top)
    assert (others / "one" / "file").read_text() == "another session's"


def test_a_directory_with_very_many_others_in_it_is_looked_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(300):
        (tmp_path / "top" / f"{number}").mkdir(parents=True)
    looks = []
    real = disk._emptied
    monkeypatch.setattr(disk, "_emptied", lambda *given: looks.append(given) or real(*given))
    remove(tmp_path / "top")
    assert len(looks) == 301
