"""The script that makes faults on purpose: what it makes is code, and what guards it is there."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random
from runpy import run_path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants() -> SimpleNamespace:
    return SimpleNamespace(**run_path(str(ROOT / "scripts" / "mutants.py")))


def test_the_faults_in_every_guarded_file_are_code_and_differ(mutants: SimpleNamespace):
    for path in mutants.GUARDS:
        file = mutants.File(path)
        found = list(file.mutants())
        for mutant in Random(1).sample(found, min(5, len(found))):
            made = mutant.made(file.source)
            assert made != file.source
            ast.parse(made)


def test_every_test_that_guards_a_file_is_there(mutants: SimpleNamespace):
    guards = {guard for guards in mutants.GUARDS.values() for guard in guards}
    assert sorted(guard for guard in guards if not (ROOT / guard).is_file()) == []


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("if a:\n    pass", {"(not (a))"}),
        ("a < b", {"(a <= b)"}),
        ("a and b", {"((a) or (b))"}),
        ("await f()", {"pass"}),
        ("raise E", {"pass"}),
        ("def f():\n    return a + 1", {"return None", "(a - 1)"}),
        ("with S(shield=True):\n    b = a", {"False"}),
        ("_log.info(a)", set()),
        ("if (n := f()) is None:\n    pass", {"((n := f()) is not None)"}),
        ("a - (b + c)", {"(a + (b + c))", "(b - c)"}),
        ("if TYPE_CHECKING:\n    f()", set()),
        ("b = f'{a + 1}'", set()),
    ],
)
def test_a_line_is_broken_in_the_ways_that_lines_are(
    mutants: SimpleNamespace, source: str, faults: set[str]
):
    def text(node: ast.AST) -> str:
        return ast.get_source_segment(source, node) or ""

    found = {
        fault
        for node in mutants._code(ast.parse(source))
        for _, fault in mutants._faults(node, text)
    }
    assert found == faults


@pytest.mark.parametrize(
    ("ended", "failed", "verdict"),
    [
        ([0], "", "survived"),
        ([1, 1], "test_a.py::test_b", "killed"),
        ([1, 0], "test_a.py::test_b", "chance"),
        ([1], "test_a.py", "broken"),  # it could not even be imported
        ([2], "", "broken"),
        ([None], "", "killed"),  # it went on for ever
    ],
)
def test_killed_is_what_a_test_notices_twice(
    mutants: SimpleNamespace, ended: list[int | None], failed: str, verdict: str
):
    class Tree(mutants.Tree):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self._seconds, self._took = 1, {"test_a.py": 1}

        def _run(self, wanted: list[str], seconds: float | None) -> int | None:
            return ended.pop(0)

        def _failed(self) -> str:
            return failed

    assert Tree()._judged(["test_a.py"]).verdict == verdict
    assert ended == []
