"""Makes deliberate faults in the code that carries promises, and asks whether a test notices.

    make mutants ARGS='--count 60 --seed 1'

Each fault is made alone, in a copy of the tree, so nothing is left of a run that is killed. The tests that
guard its file run, the closest first, until one fails. What none of them notices is printed as a diff: read
it, and write the test that fails, or say why no behaviour differs.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
_PYTHON: Final = str(ROOT / ".venv/bin/python")
_CORE = ("turns", "interrupts", "handover", "lost_rings", "drain", "dispatch", "places")
_WORK: Final = [f"tests/core/test_{name}.py" for name in _CORE]
_STORE: Final = ["tests/contracts/test_sqlite_contracts.py", "tests/contracts/test_sqlite_store.py"]
_FOLLOW: Final = ["tests/core/test_turns.py", "tests/core/test_lost_rings.py"]
_PLACES: Final = ["tests/core/test_places.py", "tests/core/test_trust.py"]
_FILES: Final = ["tests/core/test_files.py", "tests/core/test_turn_files.py"]
_KEYS: Final = ["tests/core/test_revocations.py", "tests/api/test_logins.py"]
_EGRESS: Final = [f"tests/egress/test_{name}.py" for name in ("model", "budget", "host", "network")]

GUARDS: Final[dict[str, list[str]]] = {
    "domain/ledger.py": ["tests/unit/test_ledger.py", *_STORE, "tests/core/test_forks.py"],
    "domain/pen.py": ["tests/unit/test_ledger.py", *_STORE],
    "stores/sql/operations.py": _STORE,
    "stores/sql/sheet.py": _STORE,
    "stores/sqlite/log.py": _STORE,
    "stores/sqlite/nodes.py": _STORE,
    "core/intake.py": _WORK,
    "core/handover.py": ["tests/core/test_handover.py", *_WORK],
    "core/runner.py": [*_WORK, "tests/core/test_turn_files.py", "tests/core/test_commons.py"],
    "core/turn.py": _WORK,
    "core/rest.py": ["tests/core/test_handover.py", *_WORK],
    "core/dispatch.py": ["tests/core/test_dispatch.py", "tests/core/test_drain.py", *_WORK],
    "core/member.py": ["tests/core/test_drain.py", *_WORK],
    "core/follow.py": [*_FOLLOW, "tests/core/test_fanout.py", "tests/api/test_stream.py"],
    "core/fanout.py": ["tests/core/test_fanout.py"],
    "core/gate.py": ["tests/core/test_commons.py", "tests/core/test_lost_rings.py"],
    "core/places.py": [*_PLACES, "tests/core/test_turn_files.py", "tests/core/test_pool.py"],
    "core/files.py": [*_FILES, "tests/core/test_forks.py"],
    "core/sync.py": [*_FILES, "tests/core/test_commons.py"],
    "core/copies.py": _FILES,
    "core/commons.py": ["tests/core/test_commons.py", "tests/core/test_shared_turns.py"],
    "core/workspaces/snapshots.py": ["tests/workspaces/test_snapshots.py", *_FILES],
    "core/workspaces/heads.py": ["tests/workspaces/test_snapshots.py", *_FILES],
    "core/workspaces/restore.py": ["tests/workspaces/test_snapshots.py", *_FILES],
    "core/keys.py": [*_KEYS, "tests/api/test_access.py"],
    "core/logins.py": _KEYS,
    "core/revocations.py": [*_KEYS, "tests/core/test_lost_rings.py"],
    "core/trust.py": ["tests/core/test_trust.py", "tests/api/test_trust.py"],
    "core/access.py": ["tests/api/test_access.py", "tests/api/test_workspaces.py"],
    "core/budgets.py": ["tests/unit/test_budgets.py"],
    "core/shelf.py": ["tests/api/test_files.py"],
    "core/filekeeper.py": ["tests/api/test_files.py", "tests/api/test_resources.py"],
    "api/auth.py": [
        "tests/api/test_logins.py",
        "tests/api/test_wire.py",
        "tests/api/test_trust.py",
    ],
    "egress/model.py": _EGRESS,
    "egress/budget.py": ["tests/egress/test_budget.py", *_EGRESS],
    "egress/secrets.py": ["tests/egress/test_secrets.py", "tests/egress/test_git.py", *_EGRESS],
    "egress/upstream.py": ["tests/egress/test_secrets.py", "tests/egress/test_git.py", *_EGRESS],
    "egress/addresses.py": ["tests/egress/test_network.py", "tests/egress/test_hosts.py"],
    "egress/hosts.py": ["tests/egress/test_hosts.py", "tests/egress/test_network.py"],
    "blobs/folder.py": ["tests/contracts/test_blobs.py", "tests/workspaces/test_folder.py"],
}
"""Which tests guard a file of `src/roost`, the closest first."""

_SWAPPED: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_UNTOUCHED: Final = ("_log.", "super().__init__")  # what is logged is no promise


class Mutant(NamedTuple):
    """`text` is what is written from `start` to `end`, which are offsets in the file's bytes."""

    path: str
    line: int
    start: int
    end: int
    text: str

    def made(self, source: bytes) -> bytes:
        """The file with the fault."""
        return source[: self.start] + self.text.encode() + source[self.end :]


class File:
    """A source file, and what can be done to it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.source = (ROOT / "src" / "roost" / path).read_bytes()
        lines = self.source.splitlines(keepends=True)
        self._starts = [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]

    def mutants(self) -> Iterator[Mutant]:
        """All of them."""
        for node in ast.walk(ast.parse(self.source)):
            for where, text in _faults(node, self._text):
                start, end = self._span(where)
                yield Mutant(self.path, where.lineno, start, end, text)  # type: ignore[attr-defined]

    def _span(self, node: ast.AST) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()


def _faults(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[tuple[ast.AST, str]]:
    """What is to be written in place of what."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise():
            if not text(node).startswith(_UNTOUCHED):
                yield node, "pass"
        case ast.Return(value=ast.expr() as value) if text(value) != "None":
            yield node, "return None"
        case ast.keyword(arg="shield" | "keep" | "again", value=ast.Constant(value=bool(on))):
            yield node.value, str(not on)
        case _:
            yield from _other_ways(node, text)


def _other_ways(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[tuple[ast.AST, str]]:
    """The same condition or sum, the other way round."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.Constant):
                yield test, f"(not ({text(test)}))"
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield node, f"({text(left)} {_SWAPPED[type(op)]} {text(right)})"
        case ast.BoolOp(op=op, values=values):
            other = " or " if isinstance(op, ast.And) else " and "
            yield node, f"({other.join(f'({text(value)})' for value in values)})"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right):
            yield node, f"({text(left)} {'-' if isinstance(sign, ast.Add) else '+'} {text(right)})"
        case _:
            pass


class Tree:
    """A copy of the project, in which one fault at a time is made."""

    green: Final[dict[str, bool]] = {}  # which test files pass without a fault, for all copies

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        wanted = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout.decode()
        for name in filter(None, wanted.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        for name in (".venv", ".tools"):
            (folder / name).symlink_to(ROOT / name)
        # By the content of each file: a fault that is made within a second is noticed, too.
        argv = [_PYTHON, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
        subprocess.run([*argv, "src", "tests"], cwd=folder, check=True)

    def verdict(self, mutant: Mutant, source: bytes) -> str:
        """`killed`, `killed by time`, or `survived`."""
        guards = [guard for guard in dict.fromkeys(GUARDS[mutant.path]) if self._is_green(guard)]
        path = self._folder / "src" / "roost" / mutant.path
        path.write_bytes(mutant.made(source))
        try:
            return {0: "survived", None: "killed by time"}.get(self._run(guards), "killed")
        finally:
            path.write_bytes(source)

    def _is_green(self, guard: str) -> bool:
        """Without a fault; what fails by itself guards nothing."""
        if guard not in self.green:
            self.green[guard] = self._run([guard]) == 0
            if not self.green[guard]:
                print(f"left out, it fails without any fault: {guard}", file=sys.stderr)
        return self.green[guard]

    def _run(self, guards: list[str]) -> int | None:
        """What pytest ended with; None if that took too long."""
        options = ["-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "--store=sqlite"]
        source = str(self._folder / "src")  # before the one that .venv points to
        environ = {**os.environ, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [_PYTHON, "-m", "pytest", *options, *guards]
        try:
            return subprocess.run(
                argv, cwd=self._folder, env=environ, capture_output=True, timeout=self._seconds
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def main() -> int:
    """Print who survived, and a table."""
    asked = _arguments()
    files = {path: File(path) for path in sorted(GUARDS) if asked.only in path}
    everything = [mutant for file in files.values() for mutant in file.mutants()]
    sample = random.Random(asked.seed).sample(everything, min(asked.count, len(everything)))
    told: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(asked.jobs):
            trees.put(Tree(Path(folder, str(number)), asked.seconds))

        def judge(mutant: Mutant) -> tuple[Mutant, str]:
            tree = trees.get()
            try:
                return mutant, tree.verdict(mutant, files[mutant.path].source)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(asked.jobs) as pool:
            for mutant, verdict in pool.map(judge, sample):
                told[mutant.path, verdict.split()[0]] += 1
                print(f"{verdict:<15} src/roost/{mutant.path}:{mutant.line}", flush=True)
                if verdict == "survived":
                    print(_difference(mutant, files[mutant.path].source), flush=True)
    _print_table(told, asked.seed, len(everything))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--only", default="", help="in files whose path has this in it")
    parser.add_argument("--seconds", type=float, default=300, help="for the tests of one fault")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    return parser.parse_args()


def _difference(mutant: Mutant, source: bytes) -> str:
    before, after = (text.decode().splitlines() for text in (source, mutant.made(source)))
    return "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=2))[2:])


def _print_table(told: Counter[tuple[str, str]], seed: int, everything: int) -> None:
    print(f"\n{'file':<34}{'faults':>7}{'killed':>7}{'survived':>9}")
    for path in sorted({path for path, _ in told}):
        killed, survived = told[path, "killed"], told[path, "survived"]
        print(f"{path:<34}{killed + survived:>7}{killed:>7}{survived:>9}")
    killed = sum(count for (_, verdict), count in told.items() if verdict == "killed")
    print(f"{killed} of {told.total()} killed; seed {seed}, out of {everything} possible faults")


if __name__ == "__main__":
    sys.exit(main())
