"""Reading the documentation as a test does: tables, headings, links."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def rows(name: str) -> list[list[str]]:
    """The cells of every table row in a page."""
    lines = (line for line in text(name).splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def import_errors() -> None:
    """Import every module that defines an error with a code of its own."""
    for path in (ROOT / "src").rglob("*.py"):
        if re.search(r'^    code(: ClassVar\[str\])? = "', path.read_text(), re.M):
            importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
