"""Tables and JSON, for people and programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from roost.cli.screen import clean


def print_json(value: object) -> None:
    """The value as JSON: indented for a person, on one line for a program."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, ensure_ascii=False, indent=indent))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under headings, in columns as wide as they need: nothing is cut, `cut` and `awk` work."""
    # Names are whatever somebody called a thing: they must not steer the terminal.
    named = [[clean(cell) for cell in row] for row in rows]
    table = [[name.upper() for name in columns], *named]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    for row in table:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def when(moment: str | None) -> str:
    """A moment without its fraction of a second."""
    return (moment or "")[:19].replace("T", " ")
