"""The real Codex, in a real sandbox, through the real server and its egress, with the official SDK."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harnesses.codex_session import MODEL, installed_codex, run
from tests.journeys.chat import Chat, client_of, printed, said, script, serving
from tests.journeys.test_attachments import PDF, png

from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    installed_codex()
    with LiveServer(tmp_path / "data", ROOST_SLEEP_AFTER="60") as live:
        yield live


MANIFEST = "---\nname: greeting\ndescription: How to say KUMQUAT.\n---\nSay it.\n"


def test_codex_works_in_its_sandbox_and_goes_on_after_a_restart(tmp_path: Path):
    model = ScriptedModel(require_key="sk-the-real-key")
    with serving(model) as url:
        environ = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-the-real-key"}
        with LiveServer(tmp_path / "data", **environ) as server:
            work_and_go_on(server, model)


def work_and_go_on(server: LiveServer, model: ScriptedModel) -> None:
    files = [("greeting/SKILL.md", MANIFEST.encode()), ("greeting/words.txt", b"Good day.")]
    skill = client_of(server).beta.skills.create(files=files)
    skills = [{"type": "custom", "skill_id": skill.id}]
    chat = Chat(server, harness="codex", agent={"model": MODEL, "skills": skills})
    looks = run("pwd; echo $HOME; echo key=$OPENAI_API_KEY; echo kept > kept.txt")
    reads = run("cat ~/.codex/skills/greeting/words.txt")
    events = chat.turn(script(looks, reads, {"thinking": "Hm.", "text": "One."}))
    assert printed(events) == ["/workspace\n/home/sandbox\nkey=placeholder", "Good day."]
    assert said(events) == ["One."]
    assert "How to say KUMQUAT." in str(model.requests[-1].body)
    assert {request.path for request in model.requests} == {"/v1/responses"}
    assert "session.error" not in {event.type for event in events}  # nothing else was reached for
    server.stop()
    server.start()
    chat.move_to(server)
    events = chat.turn(script(run("cat kept.txt"), {"text": "Two."}))
    assert (printed(events), said(events)) == (["kept"], ["Two."])
    session = chat.client.beta.sessions.retrieve(chat.session.id)
    assert session.usage.input_tokens > 0
    # Messages, the answers and the calls of both turns are in what the model was asked last.
    assert "3 user messages" in said(chat.turn("Do you remember?"))[0]


def test_files_that_a_message_names_reach_codex_and_stay_known_after_a_kill(tmp_path: Path):
    installed_codex()
    model = ScriptedModel()
    with serving(model) as url:
        environ = {"OPENAI_BASE_URL": f"{url}/v1", "ROOST_SLEEP_AFTER": "0"}
        with LiveServer(tmp_path / "data", **environ) as server:
            chat = Chat(server, harness="codex", agent={"model": MODEL})
            show_files(chat, model)
            server.kill()
            server.start()
            chat.move_to(server)
            events = chat.turn(script(run("cat ~/.codex/documents/*-b.pdf"), {"text": "Two."}))
            assert (printed(events)[0].encode(), said(events)) == (PDF.strip(), ["Two."])
            assert_shown(model)


def show_files(chat: Chat, model: ScriptedModel) -> None:
    upload = chat.client.beta.files.upload
    files = {
        "image": upload(file=("a.png", png(), "image/png")),
        "document": upload(file=("b.pdf", PDF, "application/pdf")),
    }
    plan = upload(file=("c.md", b"# KUMQUAT", "text/markdown"))
    named = [*files.items(), ("document", plan)]
    content: Any = [
        {"type": "text", "text": script({"text": "One."})},
        *({"type": kind, "source": {"type": "file", "file_id": file.id}} for kind, file in named),
    ]
    chat.client.beta.sessions.events.send(
        chat.session.id, events=[{"type": "user.message", "content": content}]
    )
    chat.wait_for("agent.message")
    chat.wait_until_idle()
    assert_shown(model)


def assert_shown(model: ScriptedModel) -> None:
    asked = str(model.requests[-1].body)
    assert asked.count("'type': 'input_image'") == 1
    assert "c.md:\\n# KUMQUAT" in asked
    assert (
        "b.pdf (application/pdf" in asked and "in the file /home/sandbox/.codex/documents" in asked
    )


def is_made(seed: Path) -> bool:
    return not seed.name.startswith("making-")


def test_what_every_codex_begins_with_is_made_once_and_no_agent_can_forge_it(server: LiveServer):
    """It is not there when the first sandbox is opened. What an agent puts in its place is not taken for it."""
    shows = run("tr '\\0' '\\n' </proc/$PPID/cmdline | grep catalog")
    seed = "/run/roost/codex-seed"
    forges = run(
        f"mkdir -p {seed}; echo '{{}}' >{seed}/models.json; touch {seed}/x.sqlite; kill -9 $PPID"
    )
    first = Chat(server, harness="codex", agent={"model": MODEL})
    events = first.turn(script(forges, shows, {"text": "One."}))
    assert said(events) == ["One."] and 'json="/tmp/codex-' in printed(events)[-1], printed(events)
    deadline = time.monotonic() + 300
    while not [each for each in server.data.glob("codex/*/models.json") if is_made(each.parent)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    second = Chat(server, harness="codex", agent={"model": MODEL})
    events = second.turn(script(shows, {"text": "Two."}))
    assert said(events) == ["Two."] and f'json="{seed}/models' in printed(events)[-1], printed(
        events
    )


def test_a_server_killed_in_the_middle_of_a_command_goes_on_and_runs_nothing_twice(
    server: LiveServer,
):
    chat = Chat(server, harness="codex", agent={"model": MODEL})
    chat.send(script(run("echo ran >> count.txt; sleep 30"), {"text": "finished"}))
    deadline = time.monotonic() + 60
    while not (chat.home / "count.txt").exists():
        assert time.monotonic() < deadline, [event.type for event in chat.events()]
        time.sleep(0.05)
    server.kill()
    server.start()
    chat.wait_until_idle()
    assert (chat.home / "count.txt").read_text() == "ran\n"
    events = chat.events()
    assert "its outcome is unknown" in printed(events)[0]
    assert said(events) == ["finished"]
    assert len({event.id for event in events}) == len(events)


def test_an_approval_outlives_the_agent_and_counts_once(server: LiveServer):
    ask = {
        "type": "agent_toolset_20260401",
        "default_config": {"permission_policy": {"type": "always_ask"}},
    }
    chat = Chat(server, harness="codex", agent={"model": MODEL, "tools": [ask]})
    events = chat.turn(script(run("echo ran >> count.txt; cat count.txt"), {"text": "Done."}))
    assert events[-1].stop_reason.type == "requires_action"
    (call,) = [event for event in events if event.type == "agent.tool_use"]
    server.kill()
    server.start()
    chat.move_to(server)
    chat.client.beta.sessions.events.send(
        chat.session.id,
        events=[{"type": "user.tool_confirmation", "tool_use_id": call.id, "result": "allow"}],
    )
    chat.wait_for("agent.message")
    chat.wait_until_idle()
    events = chat.events()
    assert (printed(events), said(events)) == (["ran"], ["Done."])
