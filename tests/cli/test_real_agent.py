"""`roost chat` in a terminal with the real Claude Code, as somebody meets it who has just started a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Roost
from tests.cli.test_chat import Terminal
from tests.journeys.chat import bash, script, serving

from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

QUESTION = {
    "question": "Which colour?",
    "header": "Colour",
    "multiSelect": False,
    "options": [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}],
}


def test_the_first_agent_works_asks_before_it_changes_something_and_takes_answers(
    roost: Roost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = script(
        bash("echo done > made.txt"),
        {"tool": "AskUserQuestion", "input": {"questions": [QUESTION]}},
        {"text": "all is done"},
    )
    with (
        serving(ScriptedModel()) as url,
        LiveServer(tmp_path / "data", ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="k") as server,
    ):
        monkeypatch.setenv("ROOST_API_KEY", server.key)
        monkeypatch.setenv("ROOST_URL", server.url)
        team = roost("vaults", "create", "team")[1].strip()
        with Terminal(server.url, "chat", "--vault", "team", work) as terminal:
            terminal.wait_for("allow bash")
            terminal.wait_for("? [y/N] ")
            terminal.type("y\n")
            terminal.wait_for("2. Blue")
            terminal.wait_for("your own words: ")
            terminal.type("2\n")
            terminal.wait_for("all is done")
            terminal.wait_for("> ")
            terminal.type("\x04")
            assert terminal.exit_code() == 0
        [made] = (server.data / "vault" / ".workspaces").glob("*/made.txt")
        assert made.read_text() == "done\n"
        [session] = json.loads(roost("sessions", "ls", "--json")[1])
        assert session["vault_ids"] == [team]
        assert team in roost("sessions", "show", session["id"])[1]
