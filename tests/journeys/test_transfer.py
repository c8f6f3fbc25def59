"""The real Claude Code, taken to another server; and one that began outside of any server."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.journeys.chat import Chat
from tests.journeys.test_forks import expected, files, remembers, talk

from roost.cli.main import run
from roost.testing.live import LiveServer

Roost = Callable[..., Any]


@pytest.fixture
def roost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Roost:
    """The command, run in this process: what it has to say."""

    def call(server: LiveServer, *arguments: str) -> Any:
        monkeypatch.setenv("ROOST_URL", server.url)
        monkeypatch.setenv("ROOST_API_KEY", server.key)
        monkeypatch.setattr(sys, "argv", ["roost", "sessions", *arguments])
        with pytest.raises(SystemExit) as left:
            run()
        said = capsys.readouterr()
        assert not left.value.code, said.err
        return json.loads(said.out) if "--json" in arguments else said.out

    return call


def as_chat(chat: Chat, session_id: str) -> Chat:
    other = copy.copy(chat)
    other.session = chat.client.beta.sessions.retrieve(session_id)
    return other


def test_a_session_goes_on_elsewhere_with_its_files_and_its_memory(tmp_path: Path, roost: Roost):
    archive = tmp_path / "mine.roost"
    with LiveServer(tmp_path / "one", ROOST_SLEEP_AFTER="0") as first:
        chat = Chat(first)
        talk(chat, 3)
        roost(first, "export", chat.session.id, "--at", "2", "-o", str(archive))
        assert len(roost(first, "turns", chat.session.id, "--json")) == 3
        fork = roost(first, "fork", chat.session.id, "--at", "1", "--title", "other", "--json")
        assert (fork["title"], files(as_chat(chat, fork["id"]))) == ("other", expected(1))
        roost(first, "rewind", fork["id"], "--to", "1", "--keep-files")
        [transcript] = chat.home.glob(".claude/projects/-workspace/*.jsonl")
        with LiveServer(tmp_path / "two") as second:
            there = Chat(second)
            agent, place = there.session.agent.id, there.session.environment_id
            named = ["--agent", agent, "--environment", place, "--json"]
            taken = as_chat(there, roost(second, "import", str(archive), *named)["id"])
            assert files(taken) == expected(2)
            remembers(taken, 2)
            # A session of Claude Code is a transcript, and the directory it worked in.
            workdir = ["--workdir", str(chat.home)]
            own = roost(second, "import", str(transcript), *workdir, *named)
            local = as_chat(there, own["id"])
            assert files(local) == expected(3)
            remembers(local, 3)
