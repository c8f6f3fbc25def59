"""The real Claude Code, taken to another server; and one that began outside of any server."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.journeys.chat import Chat
from tests.journeys.test_forks import expected, files, remembers, talk

from roost.testing.live import LiveServer

pytestmark = pytest.mark.timeout(300)  # several agents are started


def roost(server: LiveServer, *arguments: str) -> Any:
    environ = {"PATH": os.environ["PATH"], "ROOST_API_KEY": server.key, "ROOST_URL": server.url}
    done = subprocess.run(
        [sys.executable, "-m", "roost", "sessions", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def as_chat(chat: Chat, session_id: str) -> Chat:
    other = copy.copy(chat)
    other.session = chat.client.beta.sessions.retrieve(session_id)
    return other


def test_a_session_goes_on_elsewhere_with_its_files_and_its_memory(tmp_path: Path):
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
