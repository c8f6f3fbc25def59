"""A sandboxed chat stays sandboxed, and remembers: the two things a seed system lost.

Its test plan and its acceptance list are here, with the real agent, in each kind of sandbox. Of what it
put off, choosing and sharing named workspaces is not built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest
from tests.hostile.probed_sandbox import need_bubblewrap
from tests.journeys.chat import Chat, bash, printed, said, script, warm_agents
from tests.journeys.engines import Bubblewrap, Docker, Kind, SandboxEngine
from tests.stores import Databases, rows_of

from roost.testing.live import LiveServer

FREE = {"type": "unrestricted"}


@pytest.fixture(
    scope="module",
    params=[
        "bubblewrap",
        pytest.param("docker", marks=[pytest.mark.chaos, pytest.mark.xdist_group("docker")]),
    ],
)
def sandbox_kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture(scope="module")
def engine(sandbox_kind: Kind, request: pytest.FixtureRequest) -> SandboxEngine:
    if sandbox_kind == "docker":
        return Docker(request.getfixturevalue("docker"))
    need_bubblewrap()
    return Bubblewrap()


@pytest.fixture(scope="module")
def server(
    databases: Databases, engine: SandboxEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """Agents sleep at once: every message is another run of the sandbox, and goes on from its files."""
    data = tmp_path_factory.mktemp("persistence") / "data"
    environ = {"ROOST_SLEEP_AFTER": "0.3", "ROOST_TRUST_LEVELS": "sandboxed,vault"}
    with LiveServer(data, **environ, **engine.environ) as live:
        yield live


def stored(server: LiveServer, session_id: str) -> dict[str, Any]:
    """What the database has of a session."""
    row = "SELECT spec FROM specs JOIN sessions ON num = session WHERE id = ?"
    [(spec,)] = rows_of(server.data, row, session_id)
    found: dict[str, Any] = msgspec.json.decode(spec)
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def until_gone(chat: Chat, engine: SandboxEngine) -> None:
    """Until the agent sleeps, and nothing is left of its sandbox."""
    session = chat.session.id
    until(lambda: not warm_agents(chat.server) and not engine.sandboxes_of(session))


def transcripts(chat: Chat) -> list[Path]:
    return list((chat.home / ".claude/projects/-workspace").glob("*.jsonl"))


def test_the_test_plan(server: LiveServer, engine: SandboxEngine):
    # 1. Start a sandboxed chat, send the first message: the database has its trust level.
    chat = Chat(server)
    first = chat.turn(script(bash("id -un; pwd; echo mine > note.txt"), {"text": "noted"}))
    assert printed(first) == ["sandbox\n/workspace"]
    assert said(first) == ["noted"]
    assert stored(server, chat.session.id)["trust_level"] == "sandboxed"
    until_gone(chat, engine)

    # 2. Send the second message: the session is found.
    # 3. Its answer knows of the first message.
    before = {session.id for session in chat.client.beta.sessions.list()}
    second = chat.turn("And what did I say before?")
    assert "2 user messages" in said(second)[0]
    assert {session.id for session in chat.client.beta.sessions.list()} == before
    assert chat.fields()["trust_level"] == "sandboxed"

    # 4. The transcript is in the session's workspace.
    (transcript,) = transcripts(chat)
    assert transcript.stem == chat.fields()["sdk_session_id"]

    # 5. Stop the engine, send a message: a clear error, and no silent fallback.
    until_gone(chat, engine)
    engine.missing(server)
    chat.send(script(bash("id -un; cat note.txt"), {"text": "still here"}))
    chat.wait_for("session.status_rescheduled")
    (error,) = [event.error for event in chat.events() if event.type == "session.error"]
    assert error.retry_status.type == "retrying"
    assert {"docker": "engine", "bubblewrap": "bubblewrap"}[engine.kind] in error.message
    assert len(transcript.read_text().split("still here")) == 1
    assert chat.fields()["trust_level"] == "sandboxed"
    engine.back(server)
    chat.wait_until_idle()
    assert printed(chat.events())[-1] == "sandbox\nmine"

    # 6. Restart: the session is there, and goes on.
    assert server.stop() == 0
    server.start()
    third = chat.turn(script(bash("cat note.txt"), {"text": "still there"}))
    assert printed(third) == ["mine"]
    assert "5 user messages" in said(chat.turn("How many was that?"))[0]
    assert chat.fields()["trust_level"] == "sandboxed"
    assert transcripts(chat) == [transcript]


def test_a_session_has_a_workspace_of_its_own_that_it_can_write_to(server: LiveServer):
    """Nobody else's transcript is within its reach, nor is the directory that all of them are in; its own is
    in its home, and not among the files it works on.
    """
    first, second = Chat(server), Chat(server)
    first.turn(script(bash("echo my neighbour must not read this > own.txt"), {"text": "ok"}))
    assert (first.home / "own.txt").exists()
    look = (
        f"cat {first.home}/own.txt {transcripts(first)[0]}; ls -A {first.home.parent}; "
        "ls -d ~/.claude/projects/-workspace/*.jsonl; touch .claude/x 2>/dev/null || echo refused; "
        "touch /workspace/w /home/sandbox/h && ls -A /workspace /workspace/.claude"
    )
    (output,) = printed(second.turn(script(bash(look), {"text": "looked"})))
    assert "must not read" not in output
    assert first.session.id not in output.replace(str(first.home), "")
    sdk_id = second.fields()["sdk_session_id"]
    transcript = f"/home/sandbox/.claude/projects/-workspace/{sdk_id}.jsonl"
    assert output.splitlines()[-8:] == [
        *(transcript, "refused", "/workspace:", ".claude", "h", "w"),
        *("", "/workspace/.claude:"),
    ]
    assert (second.home / "w").exists()


def test_nothing_of_a_sandbox_is_left_after_each_message(server: LiveServer, engine: SandboxEngine):
    chat = Chat(server)
    for number in (1, 2):
        chat.turn(script(bash("echo $$ >/tmp/here; ls /tmp/here"), {"text": f"{number}"}))
        until_gone(chat, engine)
    assert len(transcripts(chat)) == 1


def test_a_mount_scope_shows_the_vault_read_only_and_no_other_session(server: LiveServer):
    vault = server.data / "vault"
    (vault / "letters").mkdir(parents=True, exist_ok=True)
    (vault / "letters" / "one.txt").write_text("dear reader")
    (vault / "to-key").unlink(missing_ok=True)
    (vault / "to-key").symlink_to(server.data / "keys" / "admin.key")
    chat = Chat(server, mount_scope="workspace+vault")
    look = (
        "cat /vault/letters/one.txt; echo; ls -A /vault/.workspaces; cat /vault/to-key; "
        "touch /vault/new /vault/.workspaces/new; pwd; touch mine"
    )
    (output,) = printed(chat.turn(script(bash(look), {"text": "looked"})))
    assert output.startswith("dear reader\n")
    assert server.key not in output
    assert "sesn_" not in output
    assert output.splitlines()[-1] == "/workspace"
    assert (chat.home / "mine").exists()
    assert not (vault / "new").exists()
    assert chat.fields()["mount_scope"] == "workspace+vault"


def test_a_new_session_without_an_engine_is_refused_unless_it_names_a_fallback(
    server: LiveServer, engine: SandboxEngine
):
    chat = Chat(server, networking=FREE)
    engine.missing(server)
    try:
        with pytest.raises(anthropic.InternalServerError) as refused:
            chat.begin()
        assert refused.value.status_code == 503
        error: Any = refused.value.body
        assert error["error"]["details"]["error_code"] == "sandbox_unavailable"
        assert error["error"]["details"]["hint"]
        chat.session = chat.begin(sandbox_fallback="vault")
        if engine.kind == "docker":
            other = chat.begin(sandbox_fallback="bubblewrap")
            assert (other.model_extra or {})["sandbox"] == "bubblewrap"
    finally:
        engine.back(server)
    # Once it is back, what was recorded stays.
    noted = {"trust_level": "vault", "sandbox": "host", "sandbox_fallback": "vault"}
    assert noted.items() <= chat.fields().items()
    assert said(chat.turn(script({"text": "in the vault"}))) == ["in the vault"]
    if engine.kind == "docker":
        chat.session = other
        assert printed(chat.turn(script(bash("id -un"), {"text": "."}))) == ["sandbox"]
        assert chat.fields()["sandbox"] == "bubblewrap"
