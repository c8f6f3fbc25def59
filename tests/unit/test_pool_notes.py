"""What is noted of containers in a pool: whether one may have files that are nowhere else, and whose it is."""

from __future__ import annotations

from pathlib import Path

from roost.ports.sandbox_provider import LocalVolume, Plan
from roost.sandboxes import sandbox_names
from roost.sandboxes.pool.notes import Notes

ONE = "roost-1"


def test_files_are_lost_with_a_container_that_was_not_closed(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    assert not notes.opened(ONE, "a")
    notes.write(ONE, "a", is_changed=True)
    assert Notes(tmp_path / "notes").opened(ONE, "b")
    notes.write(ONE, "b", is_changed=False)
    assert not notes.opened(ONE, "c")
    notes.write(ONE, "c", is_changed=True)
    notes.mark(ONE, "b", is_changed=False)  # an older one, which is closed late
    notes.remove(ONE, "b")
    assert notes.opened(ONE, "c")
    notes.mark(ONE, "c", is_changed=False, is_lost=False)
    notes.remove(ONE, "c")
    assert not notes.opened(ONE, "d")
    assert [path.name for path in (tmp_path / "notes").iterdir()] == [ONE]


def test_that_files_were_lost_is_noted_until_the_agent_knows(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    notes.opened(ONE, "a")
    notes.mark(ONE, "a", is_changed=True)
    assert notes.opened(ONE, "b") == notes.opened(ONE, "b")  # until it is fetched or lost
    notes.mark(ONE, "b", is_changed=False, is_lost=True)
    notes.mark(ONE, "b", is_changed=True)
    notes.mark(ONE, "b", is_changed=False)  # it is closed without a turn, and nothing is left in it
    notes.remove(ONE, "b")
    assert list(notes.orphaned()) == []
    assert notes.opened(ONE, "c")
    notes.mark(ONE, "c", is_changed=False, is_lost=False)
    notes.remove(ONE, "c")
    assert not notes.opened(ONE, "d")


def test_a_note_that_cannot_be_read_may_say_anything(tmp_path: Path) -> None:
    for text in ("", "[]", "{"):
        (tmp_path / ONE).write_text(text)
        assert list(Notes(tmp_path).orphaned()) == []
        assert Notes(tmp_path).opened(ONE, "a")


def test_only_what_a_dead_server_has_left_is_swept_and_only_once(tmp_path: Path) -> None:
    volume = LocalVolume(tmp_path)
    plan = Plan(session_id="sesn_1", generation=1, home=volume, workspace=volume)
    own = sandbox_names.name_of(plan)
    holder, _, rest = own.removeprefix("roost-").partition("-")
    namespace, pid, start = holder.split(".")
    dead = f"roost-{namespace}.{pid}.{int(start) + 1}-{rest}"
    notes = Notes(tmp_path / "notes")
    notes.opened(ONE, own)
    notes.opened("roost-2", dead)
    notes.write("roost-2", dead, is_changed=True)
    assert list(notes.orphaned()) == [("roost-2", 1, True)]
    notes.ended("roost-2")
    notes.ended("roost-3")
    assert list(notes.orphaned()) == []
    assert notes.opened("roost-2", own)
