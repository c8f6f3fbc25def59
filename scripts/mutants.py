"""Makes deliberate faults in the code that carries promises, and asks whether a test notices.

    make mutants ARGS='--count 60 --seed 1'

Each fault is made alone, in a copy of the tree, so nothing is left of a run that is killed. The tests that
guard its file run, the closest first, until one fails. `killed` means that this test, alone, fails again with
the fault and passes without; `chance` that it does not. Where the tests could not even be collected (`broken`),
no test has said anything, and the fault is not counted. What survived or died by chance is printed as a diff:
read it, and write the test that fails, or say why no behaviour differs.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from select import select
from typing import Final, NamedTuple, NoReturn

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
_PYTHON: Final = str(ROOT / ".venv/bin/python")
_CORE = ("turns", "interrupts", "standby", "lost_notifications", "nodes", "dispatch", "sandboxes")
_WORK: Final = [f"tests/core/test_{name}.py" for name in _CORE]
_RUNS: Final = [
    f"tests/core/test_{name}.py" for name in ("start_limit", "broken_agents", "task_runs")
]
_STORE: Final = ["tests/contracts/test_sqlite_contracts.py", "tests/contracts/test_sqlite_store.py"]
_FOLLOW: Final = ["tests/core/test_turns.py", "tests/core/test_lost_notifications.py"]
_PLACES: Final = ["tests/core/test_sandboxes.py", "tests/core/test_trust.py"]
_FILES: Final = ["tests/core/test_local_workspaces.py", "tests/core/test_turn_ends.py"]
_SNAPSHOTS: Final = [
    "tests/workspaces/test_snapshots.py",
    *_FILES,
    "tests/core/test_shared_workspaces.py",
]
_KEYS: Final = ["tests/core/test_revocations.py", "tests/api/test_logins.py"]
_EGRESS: Final = [f"tests/egress/test_{name}.py" for name in ("model", "budget", "host", "network")]

GUARDS: Final[dict[str, list[str]]] = {
    "domain/ledger.py": ["tests/unit/test_ledger.py", *_STORE, "tests/core/test_forks.py"],
    "domain/ledger_writer.py": ["tests/unit/test_ledger.py", *_STORE],
    "stores/sql/log.py": _STORE,
    "stores/sql/batch.py": _STORE,
    "stores/sql/sessions.py": _STORE,
    "stores/sql/catalog.py": _STORE,
    "stores/sql/credentials.py": [*_STORE, "tests/faults/test_kill_vaults.py"],
    "domain/vault.py": ["tests/api/test_vaults.py"],
    "core/vaults/vaults.py": ["tests/api/test_vaults.py"],
    "core/vaults/reseal.py": ["tests/api/test_master_key.py", "tests/faults/test_kill_vaults.py"],
    "stores/sqlite/log.py": _STORE,
    "stores/sqlite/nodes.py": _STORE,
    "core/write/intake.py": ["tests/core/test_intake.py", *_WORK],
    "core/write/standby.py": ["tests/core/test_standby.py", *_WORK],
    "core/work/runner.py": [
        *_WORK,
        *_RUNS,
        "tests/core/test_turn_ends.py",
        "tests/core/test_shared_workspaces.py",
    ],
    "core/work/failures.py": [*_WORK, *_RUNS],
    "core/work/turn.py": _WORK,
    "core/work/leased_log.py": _WORK,
    "core/work/starter.py": [*_PLACES, *_WORK, *_RUNS],
    "core/work/idle.py": ["tests/core/test_standby.py", *_WORK],
    "core/work/dispatch.py": [
        "tests/core/test_dispatch.py",
        "tests/core/test_nodes.py",
        *_WORK,
        *_RUNS,
    ],
    "core/work/handover.py": [
        "tests/core/test_nodes.py",
        "tests/core/test_dispatch.py",
        "tests/core/test_lost_notifications.py",
    ],
    "core/work/nodes.py": ["tests/core/test_nodes.py", *_WORK],
    "core/read/follow.py": [*_FOLLOW, "tests/core/test_fanout.py", "tests/api/test_stream.py"],
    "core/read/fanout.py": ["tests/core/test_fanout.py"],
    "core/work/workspace_queue.py": [
        "tests/core/test_shared_workspaces.py",
        "tests/core/test_lost_notifications.py",
    ],
    "core/sandbox/planner.py": ["tests/core/test_planner.py", "tests/core/test_trust.py"],
    "core/sandbox/offered.py": ["tests/core/test_trust.py", "tests/core/test_sandboxes.py"],
    "core/sandbox/sandboxes.py": [
        *_PLACES,
        "tests/core/test_turn_ends.py",
        "tests/core/test_prestart.py",
    ],
    "core/workspaces/local.py": [*_FILES, "tests/core/test_forks.py"],
    "core/workspaces/sync.py": [*_FILES, "tests/core/test_shared_workspaces.py"],
    "core/workspaces/copies.py": _FILES,
    "core/workspaces/shared.py": [
        "tests/core/test_shared_workspaces.py",
        "tests/core/test_shared_turn_ends.py",
    ],
    "core/snapshots/snapshots.py": _SNAPSHOTS,
    "core/snapshots/heads.py": _SNAPSHOTS,
    "core/snapshots/restore.py": ["tests/workspaces/test_snapshots.py", *_FILES],
    "core/access/keys.py": [*_KEYS, "tests/api/test_access.py"],
    "core/access/logins.py": _KEYS,
    "core/access/revocations.py": [*_KEYS, "tests/core/test_lost_notifications.py"],
    "core/sessions/trust.py": ["tests/core/test_trust.py", "tests/api/test_trust.py"],
    "core/access/permissions.py": ["tests/api/test_access.py", "tests/api/test_workspaces.py"],
    "core/sandbox/budgets.py": ["tests/unit/test_budgets.py"],
    "core/files/intents.py": ["tests/api/test_files.py"],
    "core/files/janitor.py": ["tests/api/test_files.py", "tests/api/test_resources.py"],
    "api/access/auth.py": [
        "tests/api/test_logins.py",
        "tests/api/test_wire.py",
        "tests/api/test_trust.py",
    ],
    "egress/model.py": _EGRESS,
    "egress/metering.py": ["tests/egress/test_budget.py", *_EGRESS],
    "egress/secrets.py": ["tests/egress/test_secrets.py", "tests/egress/test_git.py", *_EGRESS],
    "egress/upstream.py": ["tests/egress/test_secrets.py", "tests/egress/test_git.py", *_EGRESS],
    "egress/substitution.py": [
        "tests/egress/test_substitution.py",
        "tests/egress/test_intercept.py",
    ],
    "egress/intercept.py": ["tests/egress/test_intercept.py"],
    "egress/tls.py": ["tests/egress/test_intercept.py"],
    "egress/mcp.py": ["tests/egress/test_mcp.py"],
    "egress/loopback.py": ["tests/egress/test_mcp.py"],
    "egress/dial.py": ["tests/egress/test_network.py", "tests/egress/test_hosts.py"],
    "egress/hosts.py": ["tests/egress/test_hosts.py", "tests/egress/test_network.py"],
    "blobs/folder.py": ["tests/contracts/test_blobs.py", "tests/workspaces/test_snapshots.py"],
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
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBRARIES: Final = ".libraries"
_OWN: Final = ("roost", "tests", "conftest", "__main__", "__mp_main__")
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
        for node in _code(ast.parse(self.source)):
            for where, text in _faults(node, self._text):
                start, end = self._span(where)
                yield Mutant(self.path, where.lineno, start, end, text)  # type: ignore[attr-defined]

    def _span(self, node: ast.AST) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """What runs: imports for the type checker do not, and inside f-strings are mostly words for people."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.JoinedStr():
            return
        case _:
            yield node
            for child in ast.iter_child_nodes(node):
                yield from _code(child)


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
            if not isinstance(test, ast.Constant) and not _is_turned_anyway(test):
                yield test, f"(not ({text(test)}))"
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield node, f"({_operand(left, text)} {_SWAPPED[type(op)]} {_operand(right, text)})"
        case ast.BoolOp(op=op, values=values):
            other = " or " if isinstance(op, ast.And) else " and "
            yield node, f"({other.join(f'({text(value)})' for value in values)})"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right):
            other = "-" if isinstance(sign, ast.Add) else "+"
            yield node, f"({_operand(left, text)} {other} {_operand(right, text)})"
        case _:
            pass


def _is_turned_anyway(test: ast.expr) -> bool:
    """Whether the other operator is the same fault as `not`: one of the two is enough."""
    ordered = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    return isinstance(test, ast.Compare) and not any(isinstance(op, ordered) for op in test.ops)


def _operand(node: ast.AST, text: Callable[[ast.AST], str]) -> str:
    """With its brackets, which are not part of a node: `(n := f()) is None` compares `f()`."""
    plain = (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript)
    return text(node) if isinstance(node, plain) else f"({text(node)})"


class Said(NamedTuple):
    """What the tests said about a fault, and the test that noticed it."""

    verdict: str
    test: str = ""


class Tree:
    """A copy of the project, in which one fault at a time is made. It needs a process of its own: all
    children of that are ended after each run."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._took: dict[str, float | None] = {}  # by test file, without a fault; None if it fails
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

    def said(self, mutant: Mutant) -> Said:
        """`survived`, `killed`, `chance` if that happened only once, or `broken` if no test could run."""
        guards = [guard for guard in dict.fromkeys(GUARDS[mutant.path]) if self._is_green(guard)]
        if not guards:
            return Said("broken", "every guard fails without a fault")
        path = self._folder / "src" / "roost" / mutant.path
        source = path.read_bytes()
        path.write_bytes(mutant.made(source))
        try:
            said = self._judged(guards)
        finally:
            path.write_bytes(source)
        if said.verdict == "killed" and "::" in said.test and self._run([said.test], None) != 0:
            return Said("chance", said.test)  # it fails without the fault as well, at present
        return said

    def _judged(self, guards: list[str]) -> Said:
        limit = self._seconds + 3 * sum(self._took[guard] or 0 for guard in guards)
        match self._run([*guards, "--cache-clear"], limit):
            case 0:
                return Said("survived")
            case None:
                return Said("killed", f"took more than {limit:.0f} s")
            case 1:
                test = self._failed()
                if "::" not in test:  # with `-x`, a file that cannot be imported is a failure, too
                    return Said("broken", test)
                again = self._run([test], limit)
                return Said("killed" if again in (1, None) else "chance", test)
            case code:
                return Said("broken", f"pytest ended with {code}")

    def _is_green(self, guard: str) -> bool:
        """Without a fault; what fails by itself guards nothing."""
        if guard not in self._took:
            begun = time.monotonic()
            passed = any(self._run([guard], None) == 0 for _ in range(2))  # once may be the machine
            self._took[guard] = time.monotonic() - begun if passed else None
            if not passed:
                print(f"left out, it fails without any fault: {guard}", file=sys.stderr, flush=True)
        return self._took[guard] is not None

    def _run(self, wanted: list[str], seconds: float | None) -> int | None:
        """What pytest ended with; None if that took too long."""
        # Only the code of this copy is imported anew: `import_libraries` has done the rest. Without
        # `plain`, pytest would also rewrite all tests each time, for messages that nobody reads.
        options = ["-q", "-x", "-p", "no:randomly", "--store=sqlite", "--assert=plain"]
        tests = os.fork()
        if not tests:
            self._be_pytest([*options, f"--timeout={self._seconds}", *wanted])
        ended = os.pidfd_open(tests)
        try:
            if not select([ended], [], [], seconds)[0]:
                return None
            return os.waitstatus_to_exitcode(os.waitpid(tests, 0)[1])
        finally:
            os.close(ended)
            _end_children()

    def _be_pytest(self, argv: list[str]) -> NoReturn:
        code = 3
        try:
            _end_with_parent()
            # Not a pipe: a process that outlives the tests would hold it open, and we would wait for it.
            with Path(self._folder, ".said").open("w") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            os.chdir(self._folder)
            source = str(self._folder / "src")  # before the one that .venv points to
            sys.path.insert(0, source)
            os.environ.update(PYTHONPATH=source, PYTHONDONTWRITEBYTECODE="1")
            code = int(pytest.main(argv))
            if "--collect-only" in argv:
                names = (name for name in sys.modules if name.partition(".")[0] not in _OWN)
                Path(_LIBRARIES).write_text("\n".join(names))
        finally:
            os._exit(code)

    def import_libraries(self) -> None:
        """What the tests use beside the project: once, not for each fault."""
        self._run(
            [*{guard for guards in GUARDS.values() for guard in guards}, "--collect-only"], None
        )
        for name in (self._folder / _LIBRARIES).read_text().split():
            with suppress(Exception):  # then each run will do it, as usual
                import_module(name)

    def _failed(self) -> str:
        found = self._folder / ".pytest_cache" / "v" / "cache" / "lastfailed"
        return ", ".join(json.loads(found.read_text()))


def _end_children() -> None:
    """Also of those that the tests have left: they become ours when their parent ends, see `_begin`."""
    found = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := found.read_text().split():
        for pid in map(int, pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _end_with_parent() -> None:
    """Also if that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


_tree: Tree  # of this process


def _begin(folder: str, seconds: float) -> None:
    global _tree
    _end_with_parent()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own = Path(folder, str(os.getpid()))
    own.mkdir()
    _tree = Tree(own, seconds)
    _tree.import_libraries()


def _judge(mutant: Mutant) -> Said:
    return _tree.said(mutant)


def main() -> int:
    """Print who survived, and a table."""
    asked = _arguments()
    files = {path: File(path) for path in sorted(GUARDS) if asked.only in path}
    everything = [mutant for file in files.values() for mutant in file.mutants()]
    sample = random.Random(asked.seed).sample(everything, min(asked.count, len(everything)))
    told: Counter[tuple[str, str]] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ProcessPoolExecutor(asked.jobs, None, _begin, (folder, asked.seconds)) as pool,
    ):
        for mutant, said in zip(sample, pool.map(_judge, sample), strict=True):
            told[mutant.path, said.verdict] += 1
            print(
                f"{said.verdict:<9} src/roost/{mutant.path}:{mutant.line}  {said.test}", flush=True
            )
            if said.verdict != "killed":
                print(_difference(mutant, files[mutant.path].source), flush=True)
    _print_table(told, asked.seed, len(everything))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--only", default="", help="in files whose path has this in it")
    parser.add_argument(
        "--seconds",
        type=float,
        default=90,
        help="for one test; all of a fault have as many more than three times what they take without it",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    return parser.parse_args()


def _difference(mutant: Mutant, source: bytes) -> str:
    before, after = (text.decode().splitlines() for text in (source, mutant.made(source)))
    return "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=2))[2:])


def _print_table(told: Counter[tuple[str, str]], seed: int, everything: int) -> None:
    verdicts = ("killed", "survived", "chance", "broken")
    print(f"\n{'file':<34}" + "".join(f"{verdict:>9}" for verdict in verdicts))
    for path in sorted({path for path, _ in told}):
        print(f"{path:<34}" + "".join(f"{told[path, verdict]:>9}" for verdict in verdicts))
    total = Counter(verdict for (_, verdict), count in told.items() for _ in range(count))
    counted = told.total() - total["broken"]
    print(
        f"{total['killed']} of {counted} killed; seed {seed}, out of {everything} possible faults"
    )


if __name__ == "__main__":
    sys.exit(main())
