"""The shape of the code: functions that a person can read in one go."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.docs.reading import ROOT

LONGEST_FUNCTION = 60
SHORT = 20
SHARE_OF_SHORT = 0.80

FILES = sorted((ROOT / "src" / "roost").rglob("*.py"))


def test_no_function_is_too_long_and_most_are_short() -> None:
    lengths = {name: length for path in FILES for name, length in _functions(path)}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FUNCTION} == {}
    short = sum(1 for length in lengths.values() if length <= SHORT) / len(lengths)
    assert short >= SHARE_OF_SHORT, f"{short:.0%} of functions have at most {SHORT} lines"


def _functions(path: Path) -> list[tuple[str, int]]:
    """Each function with the number of lines of its body, the docstring apart."""
    return [
        (f"{_name(path)}:{node.lineno} {node.name}", _length(node))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return 0 if not body else (body[-1].end_lineno or 0) - body[0].lineno + 1


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))
