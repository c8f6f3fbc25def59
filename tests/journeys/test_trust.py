"""The real agent on the host: with full trust, or kept in the vault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from tests.journeys.chat import Chat, bash, printed, said, script, serving
from tests.stores import Databases

from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

FREE = {"type": "unrestricted"}
SECRET = "sk-very-secret-model-key-0123456789"


@pytest.fixture(scope="module")
def server(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    data = tmp_path_factory.mktemp("trust") / "data"
    with serving(ScriptedModel(keep=1)) as url:
        model = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": SECRET}
        with LiveServer(data, ROOST_TRUST_LEVELS="sandboxed,vault,full", **model) as live:
            yield live


def call(tool: str, **given: str) -> dict[str, Any]:
    return {"tool": tool, "input": given}


def test_with_full_trust_it_works_on_the_host_and_keeps_its_transcript_to_itself(
    server: LiveServer,
):
    vault = server.data / "vault"
    chat = Chat(server, networking=FREE, trust_level="full")
    look = "pwd; echo $HOME; env; echo made by the agent > made.txt"
    (output,) = printed(chat.turn(script(bash(look), {"text": "ok"})))
    assert output.splitlines()[:2] == [str(vault), str(server.data)]  # LiveServer's own HOME
    assert "ANTHROPIC_API_KEY=placeholder" in output
    assert SECRET not in output
    assert (vault / "made.txt").read_text() == "made by the agent\n"
    (transcript,) = (chat.home / ".claude" / "projects").glob("*/*.jsonl")
    assert transcript.stem == chat.fields()["sdk_session_id"]
    assert not (server.data / ".claude").exists()
    server.kill()
    server.start()
    assert "2 user messages" in said(chat.turn("Do you remember?"))[0]
    assert {"trust_level": "full", "sandbox": "host"}.items() <= chat.fields().items()


def test_in_the_vault_every_tool_stays_in_the_vault(server: LiveServer):
    vault, outside = server.data / "vault", server.data / "outside"
    for folder in (vault / "notes", outside):
        folder.mkdir(parents=True, exist_ok=True)
    (vault / "notes" / "note.txt").write_text("needle in a note\n")
    (outside / "secret.txt").write_text("needle in a secret\n")
    (vault / "out").symlink_to(outside)
    (vault / "dangling").symlink_to(outside / "planted.txt")
    other = Chat(server, networking=FREE, trust_level="vault")
    other.turn(script(call("Write", file_path="needle.txt", content="x"), {"text": "needle"}))
    (other.home / "needle.txt").write_text("needle of another session\n")
    refused = [
        bash("cat /etc/passwd"),
        call("WebFetch", url=f"{server.url}/healthz", prompt="What does it say?"),
        call("Read", file_path=str(outside / "secret.txt")),
        call("Read", file_path="../outside/secret.txt"),
        call("Read", file_path="out/secret.txt"),
        call("Read", file_path="~/.claude/.claude.json"),
        call("Read", file_path=str(other.home / "needle.txt")),
        call("Write", file_path="dangling", content="planted"),
        call("Write", file_path="out/planted.txt", content="planted"),
        call("Grep", pattern="needle", path="out", output_mode="content"),
        call("Grep", pattern="needle", path=".workspaces", output_mode="content"),
        call("Glob", pattern=f"{outside}/*"),
        call("Glob", pattern="*", path=".."),
    ]
    allowed = [
        call("Read", file_path="notes/note.txt"),
        call("Grep", pattern="needle", output_mode="content"),
        call("Glob", pattern="**/*"),
        call("Write", file_path=str(vault / "new" / "file.txt"), content="made"),
        call("Edit", file_path="new/../new/file.txt", old_string="made", new_string="changed"),
    ]
    chat = Chat(server, networking=FREE, trust_level="vault")
    events = chat.turn(script(*refused, *allowed, {"text": "that was all"}))
    verdicts = [e.evaluated_permission for e in events if e.type == "agent.tool_use"]
    assert verdicts == ["deny"] * len(refused) + ["allow"] * len(allowed)
    results = [e for e in events if e.type == "agent.tool_result"]
    assert [e.is_error for e in results] == [True] * len(refused) + [False] * len(allowed)
    told = printed(events)
    assert all("No such tool" in text for text in told[:2])
    # Some the agent's own program refuses before it asks: what searches must not find, and links.
    reasons = ("Refused: ", "denied", "symbolic link")
    assert all(any(reason in text for reason in reasons) for text in told[2 : len(refused)])
    assert sum("Refused: " in text for text in told) >= 7
    read, found, listed, *_ = told[len(refused) :]
    assert "needle in a note" in read
    assert found == "notes/note.txt:1:needle in a note"
    assert "notes/note.txt" in listed
    assert ".workspaces" not in listed
    assert "secret" not in listed
    assert (vault / "new" / "file.txt").read_text() == "changed"
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert said(events) == ["that was all"]


def test_in_the_vault_every_tool_of_the_loop_stays_in_the_vault(server: LiveServer):
    """The same for `messages`, whose searches are Roost's own: they find nothing that a link or a file that names
    hidden directories leads to.
    """
    vault, outside = server.data / "vault", server.data / "elsewhere"
    for folder in (vault / "notes", outside):
        folder.mkdir(parents=True, exist_ok=True)
    (vault / "notes" / "pin.txt").write_text("pin in a note\n")
    (outside / "secret.txt").write_text("pin in a secret\n")
    (vault / "way").symlink_to(outside)
    loop = {"harness": "messages", "networking": FREE, "trust_level": "vault"}
    other = Chat(server, **loop)
    other.turn(script(call("write", file_path="pin.txt", content="x"), {"text": "pin"}))
    other.home.mkdir(exist_ok=True)
    (other.home / "pin.txt").write_text("pin of another session\n")
    refused = [
        bash("cat /etc/passwd") | {"tool": "bash"},
        call("web_fetch", url=f"{server.url}/healthz"),
        call("read", file_path="../elsewhere/secret.txt"),
        call("read", file_path="way/secret.txt"),
        call("read", file_path=str(other.home / "pin.txt")),
        call("write", file_path="way/planted.txt", content="planted"),
        call("grep", pattern="pin", path="way"),
        call("grep", pattern="pin", path=".workspaces"),
        call("glob", pattern="*", path=".."),
    ]
    allowed = [
        call("write", file_path=".ignore", content="!.workspaces\n"),
        call("grep", pattern="^pin (in|of)"),
        call("glob", pattern="**/*"),
        call("glob", pattern="way/*"),
        call("glob", pattern=".workspaces/*/*"),
    ]
    chat = Chat(server, **loop)
    events = chat.turn(script(*refused, *allowed, {"text": "that was all"}))
    verdicts = [e.evaluated_permission for e in events if e.type == "agent.tool_use"]
    assert verdicts == ["deny"] * len(refused) + ["allow"] * len(allowed)
    told = printed(events)
    assert all("Refused: " in text for text in told[2 : len(refused)]), told
    _, found, listed, *none = told[len(refused) :]
    assert found == f"{vault}/notes/pin.txt:1:pin in a note"
    assert f"{vault}/notes/pin.txt" in listed.splitlines()
    assert not any(word in listed for word in (".workspaces", "secret", str(outside)))
    assert none == ["no matches", "no matches"]
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]


def test_what_the_host_could_not_keep_to_is_refused_at_once(server: LiveServer):
    chat = Chat(server)
    for level in ("vault", "full"):
        with pytest.raises(
            anthropic.BadRequestError, match="limited networking cannot be enforced"
        ):
            chat.begin(trust_level=level)


def test_a_level_taken_back_by_the_operator_waits_and_comes_back_as_it_was(tmp_path: Path):
    with LiveServer(tmp_path / "data", ROOST_TRUST_LEVELS="full", ROOST_STOP_SECONDS="1") as server:
        chat = Chat(server, networking=FREE, trust_level="full")
        chat.turn(script({"text": "here"}))
        restart(server, "sandboxed")
        chat.send(script(bash("pwd"), {"text": "here again"}))
        chat.wait_for("session.status_rescheduled")
        (error,) = [event.error for event in chat.events() if event.type == "session.error"]
        assert error.retry_status.type == "retrying"
        assert "does not offer the trust level 'full'" in error.message
        assert "ROOST_TRUST_LEVELS" in error.message
        with pytest.raises(anthropic.BadRequestError, match="does not offer"):
            chat.begin(trust_level="full")
        restart(server, "sandboxed,full")
        chat.wait_until_idle()
        assert printed(chat.events()) == [str(server.data / "vault")]
        assert said(chat.events()) == ["here", "here again"]
        assert chat.fields()["trust_level"] == "full"


def restart(server: LiveServer, levels: str) -> None:
    server.stop()
    server._environ["ROOST_TRUST_LEVELS"] = levels
    server.start()
