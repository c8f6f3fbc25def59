"""Two trees in one: what a session had for itself, and the workspace that it shared with others.

A session with a workspace of its own has its home in there. So a fork that leaves a shared workspace, and
takes a copy of it along, needs both in one tree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from roost.domain.snapshot import TreeEntry, order

_Tree = Mapping[bytes, TreeEntry]


def united(
    home: Sequence[TreeEntry], shared: Sequence[TreeEntry], own: Collection[bytes]
) -> list[TreeEntry]:
    """One tree's entries, in order. Where both have a name, the home's counts in what is called one of
    `own`, and the shared one's elsewhere. Nothing belongs to anybody else.
    """
    mine = {entry.path: replace(entry, owner=None) for entry in home}
    theirs = {entry.path: replace(entry, owner=None) for entry in shared}
    kept = {**mine, **theirs}
    kept.update((path, entry) for path, entry in mine.items() if order(path)[0] in own)
    return _with_links(_below_directories(kept), mine, theirs)


def _below_directories(entries: _Tree) -> dict[bytes, TreeEntry]:
    """Without what has no directory to be in, because the other tree has something else there."""
    found: dict[bytes, TreeEntry] = {}
    for path in sorted(entries, key=order):
        parent = path.rpartition(b"/")[0]
        if not parent or (parent in found and found[parent].kind == "directory"):
            found[path] = entries[path]
    return found


def _with_links(entries: _Tree, *trees: _Tree) -> list[TreeEntry]:
    """A second name of something that gave way becomes the thing itself."""
    found = []
    for path, entry in entries.items():
        if entry.kind == "link":
            (source,) = (tree for tree in trees if tree.get(path) is entry)
            if entries.get(entry.target) is not source[entry.target]:
                entry = replace(source[entry.target], path=path)
        found.append(entry)
    return found
