"""The agent, its sandbox or the whole server is killed while the real Codex works: as with Claude Code.

Codex is told the conversation from the log, so here nothing happens twice, not even talk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.faults.test_kill_claude import VICTIMS, Worker, kill_at_random
from tests.harnesses.codex_session import MODEL, installed_codex, run

from roost.harnesses.codex.harness import INSIDE


class CodexWorker(Worker):
    """A session with Codex."""

    harness = "codex"
    program = f"{INSIDE}/bin/codex"
    model = MODEL

    @staticmethod
    def settings(url: str, folder: Path) -> dict[str, str]:
        return {"OPENAI_BASE_URL": f"{url}/v1"}

    def name_of(self, session_id: str) -> str:
        return session_id

    def runs(self, command: str) -> dict[str, Any]:
        return run(command)


@pytest.fixture(autouse=True)
def installed() -> None:
    installed_codex()


@pytest.mark.timeout(900)
def test_whatever_is_killed_codex_answers_every_message_and_runs_nothing_twice(tmp_path: Path):
    kill_at_random(tmp_path, 4, 2, kind=CodexWorker)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", VICTIMS)
def test_one_kind_of_victim_killed_a_hundred_times_neither_loses_nor_doubles_work_of_codex(
    tmp_path: Path, victim: str
):
    kill_at_random(tmp_path, 100, 4, [victim], kind=CodexWorker)
