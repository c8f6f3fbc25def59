"""Where a server keeps what sandboxes are made with, on a machine that has other users."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from roost.sandboxes import state as module
from roost.sandboxes.state import default_state, write_whole


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where another user may make anything before we do."""
    uid = os.geteuid() or 4242
    monkeypatch.setattr(module.os, "geteuid", lambda: uid)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module._another.cache_clear()
    return tmp_path / f"roost-{uid}"


def test_it_is_a_directory_that_nobody_else_can_enter(place: Path) -> None:
    assert default_state() == place
    assert place.stat().st_mode & 0o777 == 0o700
    os.chown(place, module.os.geteuid(), -1)
    place.chmod(0o755)
    assert default_state() == place
    assert place.stat().st_mode & 0o777 == 0o700


def _writable(place: Path) -> None:
    place.mkdir()
    os.chown(place, module.os.geteuid(), -1)
    place.chmod(0o770)


def _link(place: Path) -> None:
    place.with_name("theirs").mkdir()
    place.symlink_to(place.with_name("theirs"))


def _dangling(place: Path) -> None:
    place.symlink_to(place.with_name("nowhere"))


@pytest.mark.parametrize("taken", [_writable, _link, _dangling, Path.touch])
def test_what_another_user_put_there_is_not_used_and_stops_nobody(
    place: Path, taken: Callable[[Path], None]
) -> None:
    taken(place)
    before = place.lstat()
    state = default_state()
    assert state.name.startswith(f"{place.name}-")
    assert (state.is_symlink(), state.stat().st_mode & 0o777) == (False, 0o700)
    assert default_state() == state, "one for each process, not for each sandbox"
    assert place.lstat() == before


def test_a_directory_of_another_user_is_not_used(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: 4243)  # whoever runs this is another one
    taken = place.with_name("roost-4243")
    taken.mkdir(mode=0o700)
    assert default_state() != taken


@pytest.mark.parametrize("content", [b"", b"hal", b"\xff\xff", b"whole and more"])
def test_a_file_that_a_power_cut_left_is_written_again(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    write_whole(file, "whole")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("whole", 0o644)
    before = file.stat().st_ino
    write_whole(file, "whole")
    assert file.stat().st_ino == before, "a sandbox may be looking at it"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_to_a_file_is_replaced_and_what_it_leads_to_is_not_touched(tmp_path: Path) -> None:
    theirs, file = tmp_path / "theirs", tmp_path / "file"
    theirs.write_text("theirs")
    file.symlink_to(theirs)
    write_whole(file, "whole")
    assert (file.is_symlink(), file.read_text(), theirs.read_text()) == (False, "whole", "theirs")
