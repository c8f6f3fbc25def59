"""The real Claude Code on two servers with one PostgreSQL: its session moves, with files and memory."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.journeys.chat import Chat, bash, printed, said, script

from roost.testing.live import LiveServer
from roost.testing.postgres import PostgresServer

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("nodes")]

KEY = "roost_the_same_key_on_every_node_0123456789"


def test_a_drained_server_hands_a_warm_session_over_with_files_and_memory(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    environ = {
        "ROOST_DATABASE_URL": anyio.run(postgres.new),
        "ROOST_API_KEY": KEY,
        "ROOST_BLOBS_URL": f"file://{tmp_path}/blobs",
    }
    with (
        LiveServer(tmp_path / "a", ROOST_NODE_NAME="a", **environ) as a,
        LiveServer(tmp_path / "b", ROOST_NODE_NAME="b", **environ) as b,
    ):
        chat = Chat(a, key=KEY)
        assert said(chat.turn(script(bash("echo mine > note.txt"), {"text": "made"}))) == ["made"]
        home, other = (a, b) if note_in(a, chat).exists() else (b, a)
        began = time.monotonic()
        path = f"{other.url}/roost/v1/nodes/{home.data.name}/drain"
        asked = httpx2.post(path, headers={"x-api-key": KEY}, json={})
        assert asked.status_code == 200, asked.text
        events = chat.turn(script(bash("cat note.txt"), {"text": "there"}))
        print(f"answered {time.monotonic() - began:.2f} s after the drain was asked for")
        assert printed(events) == ["mine"]
        assert note_in(other, chat).read_text() == "mine\n"
        assert "3 user messages" in said(chat.turn("How much do you remember?"))[0]


def note_in(server: LiveServer, chat: Chat) -> Path:
    return server.data / "vault" / ".workspaces" / chat.session.id / "note.txt"


def test_a_session_goes_on_at_the_other_server_when_its_own_is_stopped(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    environ = {
        "ROOST_DATABASE_URL": anyio.run(postgres.new),
        "ROOST_API_KEY": KEY,
        "ROOST_BLOBS_URL": f"file://{tmp_path}/blobs",
    }
    with LiveServer(tmp_path / "a", **environ) as a:
        chat = Chat(a, key=KEY)
        assert said(chat.turn(script(bash("echo mine > note.txt"), {"text": "made"}))) == ["made"]
        with LiveServer(tmp_path / "b", **environ) as b:
            assert a.stop() == 0
            chat.move_to(b)
            events = chat.turn(script(bash("cat note.txt"), {"text": "there"}))
            assert printed(events) == ["mine"]
            assert "3 user messages" in said(chat.turn("How much do you remember?"))[0]
            assert chat.home.is_relative_to(tmp_path / "b")
