"""One word for each thing: words that were replaced do not come back where people read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.reading import ROOT, text

# What was said, as an expression, and what to say instead. docs/glossary.md has the words in use.
RETIRED = {
    r"ways? out": "egress",
    r"roads?": "proxy",
    r"bells?|rings?|rang|rung": "notifier, notify",
    r"shelf|shelves": "intents",
    r"purses?": "budget",
    r"errands?": "server tools",
    r"commons": "shared workspace",
    r"strays": "orphans",
    r"vacancy": "sandbox",
    r"started ahead": "prestarted",
    r"places?": "sandbox, path, position, slot",
    r"living": "live",
    r"at rest|rests": "idle",
    r"at work": "running",
    r"mends?|mended": "fix",
    r"landlords?|inns?|estates?|gardeners?": "the plain word",
    r"without a word|in peace|comes? about|cannot be had|does not understand": "plain English",
}
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] + [
    str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))
]
SOURCES = sorted((ROOT / "src" / "roost").rglob("*.py"))
OUR_OWN = {"testing"}  # what only those read who write tests
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|FROM)\b")


@pytest.mark.parametrize("page", PAGES)
def test_no_page_uses_a_retired_word(page: str) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text(page), flags=re.S)
    assert list(_found(prose)) == []


def test_no_message_uses_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {said!r}: {word}"
        for path in SOURCES
        if not OUR_OWN & set(path.relative_to(ROOT / "src" / "roost").parts)
        for said in _messages(path)
        for word in _found(said)
    ]
    assert not found, "\n".join(found)


def _found(prose: str) -> Iterator[str]:
    for retired, better in RETIRED.items():
        for match in re.finditer(rf"\b(?:{retired})\b", prose, re.I):
            around = prose[max(0, match.start() - 30) : match.end() + 30]
            yield f"{match[0]!r} in {around!r}: say {better}"


def _messages(path: Path) -> Iterator[str]:
    """Texts of several words in the code: messages, hints, help. Not its docstrings, nor SQL."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            said = node.value if isinstance(node.value, str) else ""
            if " " in said.strip() and not SQL.search(said):
                yield said
