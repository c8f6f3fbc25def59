"""The real Claude Code, whose files are lost with its machine, and come back with its memory."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from tests.journeys.chat import Chat, bash, printed, said, script
from tests.stores import rows_of, url_of
from tests.workspaces.s3_server import BUCKET, s3_server

from roost.testing.live import LiveServer

KEY = "rst_a-key-that-both-servers-know-0123456789"


def settled(data: Path, session_id: str) -> bool:
    return rows_of(data, "SELECT state FROM workspaces WHERE id = ?", session_id) == [("idle",)]


def wait_until_settled(data: Path, session_id: str) -> None:
    deadline = time.monotonic() + 60
    while not settled(data, session_id):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def remembers(chat: Chat) -> None:
    """All files, and the whole conversation."""
    events = chat.turn(script(bash("cat note.txt folder/link"), {"text": "there"}))
    assert printed(events) == ["mine\nmine"]
    assert "3 user messages" in said(chat.turn("How much do you remember?"))[0]


MAKE = bash("echo mine > note.txt; mkdir folder; ln -s ../note.txt folder/link")


@pytest.mark.chaos
def test_files_lost_while_the_session_sleeps_come_back(tmp_path: Path):
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="0") as server:
        chat = Chat(server)
        chat.turn(script(MAKE, {"text": "made"}))
        wait_until_settled(server.data, chat.session.id)
        shutil.rmtree(chat.home)
        remembers(chat)
        assert (chat.home / "folder" / "link").is_symlink()


def test_a_turn_that_was_not_stored_when_the_server_was_killed_is_stored_at_the_next_start(
    tmp_path: Path,
):
    with LiveServer(tmp_path / "data") as server:
        chat = Chat(server)
        chat.turn(script(MAKE, {"text": "made"}))
        server.kill()
        assert not settled(server.data, chat.session.id)
        server.start()
        wait_until_settled(server.data, chat.session.id)
        server.stop()
        shutil.rmtree(chat.home)
        server.start()
        remembers(chat)


@pytest.mark.parametrize("store", ["folder", pytest.param("s3", marks=pytest.mark.chaos)])
def test_a_session_goes_on_on_another_machine(tmp_path: Path, store: str):
    """Another data directory, the same database and blobs: all that is left of the first machine."""
    (tmp_path / "kept").mkdir()
    environ = {"ROOST_DATABASE_URL": url_of(tmp_path / "kept"), "ROOST_API_KEY": KEY}
    if store == "folder":
        go_on_elsewhere(tmp_path, environ | {"ROOST_BLOBS_URL": f"file://{tmp_path}/kept/blobs"})
        return
    with s3_server(tmp_path / "s3") as s3:
        url = {"ROOST_BLOBS_URL": f"s3://{BUCKET}/roost"}
        go_on_elsewhere(tmp_path, environ | url | s3.environ)


def go_on_elsewhere(tmp_path: Path, environ: dict[str, str]) -> None:
    with LiveServer(tmp_path / "first", **environ) as first:
        chat = Chat(first, key=KEY)
        chat.turn(script(MAKE, {"text": "made"}))
        first.stop()
    shutil.rmtree(tmp_path / "first")
    with LiveServer(tmp_path / "second", **environ) as second:
        chat.move_to(second)
        remembers(chat)
