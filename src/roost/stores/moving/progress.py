"""What a move says about itself while it is under way."""

from __future__ import annotations

from typing import Literal, NamedTuple


class MoveProgress(NamedTuple):
    """So many rows of a table are done; or a sentence, if there is one."""

    step: Literal["copy", "check", "note"]
    table: str = ""
    done: int = 0
    total: int = 0
    said: str = ""


def note(said: str) -> MoveProgress:
    """A sentence for a person."""
    return MoveProgress("note", said=said)
