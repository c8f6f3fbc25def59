"""The shipped harnesses behind a real server: the kit that every harness passes, once for each of them."""

from __future__ import annotations

from typing import Any

from tests.harnesses.codex_session import MODEL, run

from roost.testing.harness_contract import BEHIND_A_SERVER, proved_by
from roost.testing.harness_sessions import HarnessSessions


class TestClaudeSessions(HarnessSessions):
    harness = "claude"


class TestMessagesSessions(HarnessSessions):
    harness = "messages"

    def runs(self, command: str) -> dict[str, Any]:
        return {"tool": "bash", "input": {"command": command}}


class TestCodexSessions(HarnessSessions):
    harness = "codex"
    model_id = MODEL

    def runs(self, command: str) -> dict[str, Any]:
        return run(command)


class TestScriptedSessions(HarnessSessions):
    harness = "scripted"


def test_the_kit_proves_what_the_other_kit_leaves_to_it() -> None:
    assert proved_by(HarnessSessions) >= BEHIND_A_SERVER
