"""What every Codex begins with: made by the real program, once."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.harnesses.codex_session import installed_codex

from roost.harnesses.codex.launch import PINNED, PLAIN_MODELS
from roost.harnesses.codex.seed import CATALOG, CodexSeed


def test_a_seed_has_whole_databases_and_a_catalog_that_gives_each_model_plain_tools(tmp_path: Path):
    seed = CodexSeed(PINNED, PLAIN_MODELS, tmp_path / "seeds")
    seed.make(installed_codex())
    assert [*(tmp_path / "seeds").iterdir()] == [seed.path]
    models = msgspec.json.decode((seed.path / CATALOG).read_bytes())["models"]
    assert len(models) > 3 and {model.get("tool_mode") for model in models} == {None}
    databases = {path.name for path in seed.path.iterdir()} - {CATALOG}
    assert databases and all(name.endswith(".sqlite") for name in databases)
    for name in databases:
        with closing(sqlite3.connect(seed.path / name)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert database.execute("SELECT count(*) FROM _sqlx_migrations").fetchone() > (0,)
    CodexSeed(PINNED, PLAIN_MODELS, tmp_path / "seeds").make(tmp_path / "no program")
    assert CodexSeed("1.0", PLAIN_MODELS, tmp_path).path.name != seed.path.name


def test_a_program_that_cannot_be_run_leaves_nothing_and_stops_nobody(tmp_path: Path):
    seed = CodexSeed(PINNED, PLAIN_MODELS, tmp_path / "seeds")
    seed.make(tmp_path)
    assert [*(tmp_path / "seeds").iterdir()] == []


@pytest.mark.parametrize(
    "script",
    [
        "echo '{}'",
        "echo '{\"models\":[{}]}'",
        "echo '{\"models\":[{}]}'; : >state.sqlite",
    ],
    ids=["no models", "no databases", "an empty database"],
)
def test_what_is_not_whole_is_no_seed_and_what_a_kill_has_left_goes(tmp_path: Path, script: str):
    program, left = tmp_path / "bin" / "codex", tmp_path / "seeds" / "making-1"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    left.mkdir(parents=True)
    os.utime(left, (1, 1))
    CodexSeed(PINNED, PLAIN_MODELS, tmp_path / "seeds").make(tmp_path)
    assert [*(tmp_path / "seeds").iterdir()] == []
