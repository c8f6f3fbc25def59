"""The tests are for every machine a newcomer has: what of that can be checked on one machine."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.docs.reading import ROOT
from tests.parts import need
from tests.workspaces.trees import TreeChanger, picture

from roost.testing import postgres
from roost.testing.postgres import PostgresServer, programs
from roost.testing.reachable import reachable

SOURCES = [
    path for room in ("src", "tests", "scripts", "bench") for path in (ROOT / room).rglob("*.py")
]
LEAST_STACK = 128 * 1024  # of a thread, on aarch64
LARGEST_PAGE = 64 * 1024


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder as root's home is: nobody else gets in."""
    need("root", os.geteuid() == 0, "sudo make test: only root runs programs as somebody else")
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


@contextmanager
def somebody() -> Iterator[None]:
    """An ordinary user for a while, if this is root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_thread_has_a_stack_that_some_architecture_refuses() -> None:
    sizes = [
        prod(int(factor) for factor in size.split("*"))
        for path in SOURCES
        for size in re.findall(r"stack_size\(([\d_ *]+)\)", path.read_text())
    ]
    assert sizes, "nobody sets one any more: this test can go"
    assert [s for s in sizes if s < LEAST_STACK or s % LARGEST_PAGE] == []


def test_no_system_call_is_made_by_a_number_of_one_architecture() -> None:
    literal = re.compile(r"\bsyscall\(\s*\d+")
    assert [path.name for path in SOURCES if literal.search(path.read_text())] == []


def test_a_program_below_a_private_folder_can_be_run_by_another_user(private: Path) -> None:
    program = private / "package" / "bin" / "hello"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\ncat "$(dirname "$0")/../../package.libs/word"\n')
    program.chmod(0o755)
    (private / "package.libs").mkdir()
    (private / "package.libs" / "word").write_text("hello")
    nobody = pwd.getpwnam("nobody").pw_uid
    found = reachable(program, private / "package")
    assert subprocess.check_output([found], user=nobody, cwd="/") == b"hello"
    with pytest.raises(PermissionError):
        subprocess.check_output([program], user=nobody, cwd="/")


def test_a_database_starts_from_a_checkout_below_a_private_folder(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = programs()
    need("PostgreSQL", found, "make setup")
    assert found is not None
    package = found.parents[1]
    for name in (package.name, f"{package.name}.libs"):
        (private / name).symlink_to(package.with_name(name))
    monkeypatch.setattr(postgres, "programs", lambda _: private / found.relative_to(package.parent))
    server = PostgresServer()
    try:
        server.make()
    finally:
        server.stop()


def test_the_trees_that_tests_draw_can_be_read_by_an_ordinary_user() -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        with somebody():
            for seed in range(20):
                tree = Path(folder, f"{seed}")  # of its own: every step looks at all of one
                TreeChanger(tree, seed).work(100)
                assert picture(tree)
