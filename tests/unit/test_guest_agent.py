"""The agent in a pool's container, alone: its events, its session file, its turns, signing in, asking."""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import roost
from roost import guest
from roost.guest import confirm, detached, events, run_chat, run_init
from roost.guest.events import EventType, emit_event
from roost.guest.session_store import SessionState, SessionStore

PLANTED = Path(__file__).parent.parent / "pool" / "planted_sdk"
SDK = "claude_agent_sdk"
Json = dict[str, Any]


class Container:
    """A home, a folder of programs, and an SDK that is planted."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.home = root / "home"
        self.bin = root / "bin"
        for path in (self.home, self.bin):
            path.mkdir(parents=True)
        self.session_file = self.home / ".roost" / "session.json"
        self.patch = patch
        self.enter()

    def enter(self) -> None:
        self.patch.setenv("HOME", str(self.home))
        self.patch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        self.patch.delenv("CLAUDE_CONFIG_DIR", raising=False)

    async def chat(self, message: str) -> list[Json]:
        with told() as stream:
            await run_chat(message)
        return stream.events

    async def init(self) -> list[Json]:
        with told() as stream:
            await run_init("a-team")
        return stream.events

    def az(self, script: str) -> None:
        path = self.bin / "az"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


class Told(io.StringIO):
    """What is told, as far as it is."""

    @property
    def events(self) -> list[Json]:
        return [json.loads(line) for line in self.getvalue().splitlines()]

    async def until(self, kind: str) -> Json:
        with anyio.fail_after(120):
            while True:
                for event in self.events:
                    if event["type"] == kind:
                        return event
                await anyio.sleep(0.02)


@contextmanager
def told() -> Iterator[Told]:
    stream = Told()
    events.tell_to(stream)
    yield stream


@pytest.fixture(autouse=True)
def sdk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spec = importlib.util.spec_from_file_location(SDK, PLANTED / SDK / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, SDK, module)
    spec.loader.exec_module(module)
    yield
    events._told.clear()


def _text(events: list[Json]) -> str:
    return "".join(event["content"] for event in events if event["type"] == "text")


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Container:
    return Container(tmp_path, monkeypatch)


def test_it_can_be_imported_with_the_standard_library_alone(tmp_path: Path) -> None:
    source, package = Path(roost.__file__).parent, tmp_path / "roost"
    package.mkdir()
    shutil.copy(source / "__init__.py", package)
    shutil.copytree(source / "guest", package / "guest")
    code = """
from roost.guest import run_init, run_chat, EventType
from roost.guest.session_store import SessionStore, SessionState
import sys
print('Imports OK', 'anyio' in sys.modules, 'claude_agent_sdk' in sys.modules)
"""
    environ = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-S", "-c", code]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert ran.stdout == "Imports OK False False\n"


def test_an_event_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit_event(EventType.PROGRESS, step="test", message="Testing")
    emit_event("text", content='é \ud800 \0 "\n')
    out = capsys.readouterr().out
    assert out.splitlines()[0] == '{"type": "progress", "step": "test", "message": "Testing"}'
    assert json.loads(out.splitlines()[1])["content"] == 'é \ud800 \0 "\n'
    assert len(EventType) == 8
    with pytest.raises(ValueError, match="another"):
        emit_event("another")


def test_a_state_is_saved_loaded_and_cleared(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "below" / "test.json")
    assert store.load() is None and not store.exists() and not store.clear()
    assert store.save(SessionState("test-123", initialized=True, metadata={"a": 1}))
    assert store.load() == SessionState("test-123", "omnia-data", True, 0, {"a": 1})
    assert [path.name for path in store.path.parent.iterdir()] == ["test.json"]
    assert store.clear() and not store.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"session_id": 5}', '{"session_id": "a", "team": 1}']
)
def test_a_file_that_is_damaged_is_moved_aside(tmp_path: Path, text: str) -> None:
    store = SessionStore(tmp_path / "s.json")
    store.path.write_text(text)
    assert store.load() is None
    assert "s.json cannot be read" in store.problem
    assert (tmp_path / "s.json.corrupt").read_text() == text
    assert store.save(SessionState("new")) and store.load() == SessionState("new")


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = SessionStore(tmp_path / "file" / "s.json")
    assert not store.save(SessionState("a"))
    assert "cannot be written" in store.problem


async def test_turns_go_on_with_the_same_conversation(container: Container) -> None:
    first = await container.chat("one")
    assert [event["type"] for event in first] == ["progress", "text", "done"]
    assert _text(first).startswith("messages 1,")
    second = await container.chat("two")
    assert second[0]["message"] == "resuming the conversation"
    assert _text(second).startswith("messages 2,")
    assert (second[-1]["session_id"], second[-1]["turns"]) == (first[-1]["session_id"], 2)
    container.session_file.write_text("{damaged")
    third = await container.chat("three")
    assert "cannot be read" in third[0]["message"]
    assert (_text(third)[:11], third[-1]["turns"]) == ("messages 1,", 1)


async def test_a_team_has_options_of_its_own(container: Container) -> None:
    teams = container.home / ".roost" / "teams"
    teams.mkdir(parents=True)
    (teams / "a-team.json").write_text('{"model": "m-1"}')
    assert (await container.init())[-2]["model"] == "m-1"
    assert (await container.chat("one"))[0]["model"] == "m-1"
    (teams / "a-team.json").write_text('{"modle": "m-1"}')
    [error] = await container.chat("one")
    assert "team a-team" in error["error"] and "modle" in error["error"]


async def test_what_goes_wrong_is_the_last_event(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await container.chat('PLAY {"fails": "overloaded"}')
    assert told[-1] == {"type": "error", "error": "overloaded"}
    monkeypatch.setitem(sys.modules, SDK, None)
    [error] = await container.chat("one")
    assert "the container has no claude-agent-sdk" in error["error"]
    [error] = await container.init()
    assert "the container has no claude-agent-sdk" in error["error"]


async def test_a_session_is_begun_where_az_is_signed_in_or_missing(container: Container) -> None:
    done = (await container.init())[-1]
    assert (done["type"], done["turns"]) == ("done", 0)
    container.az("exit 0")
    again = await container.init()
    assert again[1]["message"] == "az is signed in"
    assert again[-1]["session_id"] == done["session_id"]
    before = guest.get_status()
    assert (before["initialized"], before["team"], before["turns"]) == (True, "a-team", 0)
    assert guest.clear() == {"status": "cleared"}
    assert guest.get_status()["exists"] is False and guest.clear() == {"status": "empty"}


LOGIN = """
test "$1" = account && exit 1
echo 'WARNING: To sign in, use a web browser to open the page https://microsoft.com/devicelogin and enter the code ABCD12345 to authenticate.' >&2
"""


async def test_a_code_is_told_and_waited_for(container: Container, tmp_path: Path) -> None:
    container.az(f"{LOGIN}\nwhile ! test -e {tmp_path}/entered; do sleep 0.05; done")
    with told() as stream:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_init)
            code = await stream.until("device_code")
            assert (code["code"], code["url"]) == ("ABCD12345", "https://microsoft.com/devicelogin")
            assert "done" not in [event["type"] for event in stream.events]
            (tmp_path / "entered").touch()
    assert stream.events[-1]["type"] == "done"


async def test_nobody_signs_in(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    container.az(f"{LOGIN}\necho 'ERROR: the code has expired' >&2; exit 1")
    assert (await container.init())[-1]["error"] == "az login failed: ERROR: the code has expired"
    container.az(f"{LOGIN}\nsleep 1000")
    monkeypatch.setenv("ROOST_GUEST_LOGIN_SECONDS", "0.5")
    error = (await container.init())[-1]
    assert "nobody has signed in to Azure within 0.5 seconds" in error["error"]


async def test_what_would_change_something_waits_for_a_yes(
    container: Container, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    play = f"PLAY {json.dumps({'tool': {'file_path': str(target)}})}"
    with told() as stream:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_chat, play)
            asked = await stream.until("confirm_request")
            assert (asked["tool_name"], asked["description"]) == ("Write", f"Write: {target}")
            assert asked["details"] == {"file_path": str(target)} and not target.exists()
            assert confirm(asked["request_id"], True)
    assert {"type": "tool_end", "name": "Write", "success": True} in stream.events
    assert target.read_text() == "written" and not confirm(asked["request_id"], True)


async def test_an_answer_may_come_after_the_turn(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOST_GUEST_CONFIRM_SECONDS", "0.2")
    target = tmp_path / "target"
    play = f"PLAY {json.dumps({'tool': {'file_path': str(target)}})}"
    told = await container.chat(play)
    assert "nobody has confirmed this within 0.2 seconds" in _text(told)
    [asked] = [event for event in told if event["type"] == "confirm_request"]
    assert confirm(asked["request_id"], True) and not confirm("0" * 32, True)
    told = await container.chat(play)
    assert "confirm_request" not in [event["type"] for event in told]
    assert target.read_text() == "written"


async def test_two_turns_at_once_are_taken_one_after_the_other(container: Container) -> None:
    play = f"PLAY {json.dumps({'pieces': 5, 'pause': 0.02})}"
    with told() as stream:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(run_chat, play)
    done = [event for event in stream.events if event["type"] == "done"]
    assert [event["turns"] for event in done] == [1, 2]
    assert len({event["session_id"] for event in done}) == 1
    assert _text(stream.events).count("messages 2,") == 1


async def test_a_conversation_goes_on_in_another_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, packed = Container(tmp_path / "1", monkeypatch), str(tmp_path / "packed")
    done = (await one.chat("one"))[-1]
    assert guest.pack(packed)["size"] > 0
    other = Container(tmp_path / "2", monkeypatch)
    assert guest.pack(str(tmp_path / "none")) == {"size": 0, "version": 0}
    assert [guest.unpack(packed)["taken"] for _ in range(2)] == [True, False]
    told = await other.chat("two")
    assert _text(told).startswith("messages 2,")
    assert (told[-1]["session_id"], told[-1]["turns"]) == (done["session_id"], 2)


async def test_the_path_of_the_session_file_is_a_setting(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "elsewhere" / "s.json"
    monkeypatch.setenv("ROOST_GUEST_SESSION_FILE", str(path))
    await container.chat("one")
    assert SessionStore(path).load() is not None and not container.session_file.exists()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_container_has_one_name_though_two_ask_first(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = detached._write
    names: list[str] = []

    def slow(path: Path, value: Json) -> None:
        if not names:  # another one asks before this one has written
            names.append("")
            names[0] = detached.container()
        write(path, value)

    monkeypatch.setattr(detached, "_write", slow)
    assert [detached.container(), detached.container()] == 2 * names
    assert [path.name for path in (container.home / ".roost").iterdir()] == ["container"]
