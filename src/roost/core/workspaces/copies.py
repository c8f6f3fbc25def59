"""What a copy of a workspace's files knows of itself, and what the log says about them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from roost.domain.session import State
from roost.domain.snapshot import TurnEnd
from roost.ids import mint
from roost.ports.tree import Root, Tree
from roost.ports.workspaces import Workspace

_NOTE: Final = "copy"


class LocalCopy(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy knows of itself. `clean`: nothing was changed since it was stored.

    `boot`: it was restored in this start of the machine, and may not be on disk yet. `rewound`: the last
    rewind that it has followed. `behind`: it was restored because a node died with newer files, and no
    turn has ended in it since. `used`: in which start of the machine somebody began to work in it; none, once that
    is stored.
    """

    name: str
    root: str
    boot: str = ""
    clean: bool = False
    rewound: int = 0
    behind: bool = False
    used: str = ""


class WorkspacePast(msgspec.Struct, frozen=True):
    """What the log says about a workspace's files before somebody works in them.

    `mark`: they are as that turn has left them; 0 if that cannot be said. `rewound` names the last rewind
    that takes files along, and `to` the mark of the snapshot that it goes back to. `turns`: the same as
    `mark`, if several sessions use the workspace.
    """

    mark: int = 0
    rewound: int = 0
    to: int = 0
    turns: tuple[TurnEnd, ...] = ()

    @classmethod
    def of(cls, state: State) -> WorkspacePast:
        """As a session's state tells it."""
        for rewind in reversed(state.rewinds):
            if rewind.mark:
                return cls(state.turned, rewind.at, rewind.mark)
        return cls(state.turned)


def copies_in(notes: Path) -> list[str]:
    """Of which workspaces there are copies, by what is remembered of them."""
    return [note.stem for note in notes.glob(f"*.{_NOTE}")] if notes.is_dir() else []


def look(tree: Tree) -> tuple[Root | None, LocalCopy | None]:
    """The directory that is there, and what it says of itself."""
    data = tree.recall(_NOTE)
    try:
        copy = msgspec.json.decode(data, type=LocalCopy) if data else None
    except msgspec.DecodeError:
        copy = None
    return tree.root(), copy


def is_living(
    row: Workspace, root: Root | None, copy: LocalCopy | None, tree: Tree, past: WorkspacePast
) -> bool:
    """Whether the directory that is there is the living copy, and was not emptied behind our back.

    One that has not followed the last rewind is not. An empty one may have been emptied by whoever worked in it, if
    that was not stored since; but after a restart of the machine it may also have lost what was not on disk yet.
    """
    if root is None or copy is None or (copy.name, copy.root) != (row.copy, root.identity):
        return False
    if copy.rewound < past.rewound or (copy.boot and copy.boot != tree.boot()):
        return False
    is_used = bool(copy.used) and copy.used == tree.boot()
    return is_used or not (root.empty and row.sequence)


def sign(tree: Tree, copy: LocalCopy) -> None:
    """Let the directory say this of itself."""
    tree.remember(_NOTE, msgspec.json.encode(copy))


def sign_in(tree: Tree, name: str, root: Root, before: LocalCopy | None, rewound: int) -> None:
    """Somebody works in it now."""
    known = before or LocalCopy(name=name, root="")
    now = replace(known, clean=False, used=tree.boot())
    sign(tree, replace(now, name=name, root=root.identity, rewound=rewound))


def sign_anew(tree: Tree, rewound: int, *, behind: bool) -> str:
    """Give it a name; the name."""
    root = tree.root()
    identity = root.identity if root else ""
    copy = LocalCopy(name=mint("copy"), root=identity, rewound=rewound, behind=behind)
    sign(tree, replace(copy, used=tree.boot()))
    return copy.name


def sign_off(tree: Tree) -> None:
    """It is stored, and nobody works in it. What was restored is given time to reach the disk now."""
    _, copy = look(tree)
    if copy is None:
        return
    if copy.boot:
        tree.make_durable()
    sign(tree, replace(copy, boot="", used="", clean=True, behind=False))
