"""A home and a shared workspace, in one tree."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from roost.domain.snapshot import SnapshotPart, TreeEntry, check_tree, order
from roost.domain.union import united

OWN = {b".claude"}
_NAMES = [b".claude", b"a", b"a-b", b"b"]


def file(path: str, content: str = "x", **fields: object) -> TreeEntry:
    data = content.encode()
    part = SnapshotPart(data, "pack", 0, 0, len(data))
    return TreeEntry("file", path.encode(), 0o644, size=len(data), parts=(part,), **fields)  # type: ignore[arg-type]


def folder(path: str) -> TreeEntry:
    return TreeEntry("directory", path.encode(), 0o755)


def link(path: str, target: str) -> TreeEntry:
    return TreeEntry("link", path.encode(), target=target.encode())


def content(entries: Sequence[TreeEntry]) -> dict[str, str]:
    return {
        entry.path.decode(): entry.parts[0].digest.decode()
        for entry in entries
        if entry.kind == "file"
    }


def test_both_are_there_and_each_counts_where_it_is_at_home():
    home = [folder(".claude"), file(".claude/log", "mine"), file(".profile", "mine")]
    shared = [
        folder(".claude"),
        file(".claude/log", "theirs"),
        file(".claude/rules", "theirs"),
        file(".profile", "theirs"),
        file("notes", "theirs", owner=(5, 5)),
    ]
    both = united(home, shared, OWN)
    assert content(both) == {
        ".claude/log": "mine",
        ".claude/rules": "theirs",
        ".profile": "theirs",
        "notes": "theirs",
    }
    assert {entry.owner for entry in both} == {None}


def test_what_has_no_directory_any_more_is_left_out():
    home = [folder("a"), file("a/b"), folder("a/c"), file("a/c/d")]
    assert content(united(home, [file("a", "theirs")], OWN)) == {"a": "theirs"}
    assert content(united([folder(".claude"), file(".claude/log")], [file(".claude")], OWN)) == {
        ".claude/log": "x"
    }


def test_another_name_of_something_that_gave_way_is_that_thing_itself():
    home = [file("a", "mine"), link("b", "a"), file("c", "mine"), link("d", "c")]
    both = united(home, [file("a", "theirs")], OWN)
    assert content(both) == {"a": "theirs", "b": "mine", "c": "mine"}
    assert [entry.target for entry in both if entry.kind == "link"] == [b"c"]


@st.composite
def trees(draw: st.DrawFn) -> list[TreeEntry]:
    """Any tree with a few names, three levels deep."""
    found: list[TreeEntry] = []

    def grow(prefix: bytes, depth: int) -> None:
        for name in sorted(draw(st.sets(st.sampled_from(_NAMES)))):
            path = prefix + name
            kinds = ["file", "link", "directory"] if depth else ["file", "link"]
            kind = draw(st.sampled_from(kinds))
            targets = [entry.path for entry in found if entry.kind == "file"]
            if kind == "directory":
                found.append(TreeEntry("directory", path))
                grow(path + b"/", depth - 1)
            elif kind == "link" and targets:
                found.append(TreeEntry("link", path, target=draw(st.sampled_from(targets))))
            else:
                found.append(file(path.decode(), f"{draw(st.integers(0, 9))}"))

    grow(b"", 2)
    return sorted(found, key=lambda entry: order(entry.path))


@given(trees(), trees())
def test_whatever_the_two_are_the_one_can_be_restored(
    home: list[TreeEntry], shared: list[TreeEntry]
):
    both = united(home, shared, OWN)
    kinds = {b"": "directory"}
    before = None
    for entry in both:
        check_tree(before, entry)
        before = entry
        assert kinds[entry.path.rpartition(b"/")[0]] == "directory"
        kinds[entry.path] = entry.kind
    for entry in both:
        assert entry.kind != "link" or kinds[entry.target] == "file"
    outside = [e for e in shared if e.kind == "file" and order(e.path)[0] not in OWN]
    assert set(outside) <= set(both)
