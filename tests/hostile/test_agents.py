"""Every agent program that is hostile: what it runs by its own tools finds no way out, no secret and no neighbour.

`test_probes` runs the probes in a bare sandbox. Here each agent runs them in its session's, with its program, its
egress and the server around it.
"""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.harnesses import codex_session
from tests.harnesses.acp_agents import agents_file, claude_agent_acp, opencode
from tests.hostile.probed_sandbox import (
    HARMLESS,
    PROBES,
    SECRET,
    need_bubblewrap,
    not_blocked,
    things_outside,
)
from tests.journeys import chat as claude_session
from tests.journeys.chat import Chat, client_of, printed, said, script, serving

from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel

KEY = "sk-very-secret-model-key-0123456789"
UPLOADS = "/mnt/session/uploads"


def in_messages(command: str) -> dict[str, Any]:
    return {"tool": "bash", "input": {"command": command}}


def in_opencode(command: str) -> dict[str, Any]:
    return {"tool": "bash", "input": {"command": command, "description": "Looks around"}}


AGENTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "claude": claude_session.bash,
    "codex": codex_session.run,
    "messages": in_messages,
    "claude-acp": claude_session.bash,
    "opencode": in_opencode,
}
RECORDS = {"claude": ".claude", "codex": ".codex", "claude-acp": ".claude", "opencode": ".acp"}
MODEL = {"codex": "responses"}
AT_A_PORT = {"claude-acp", "opencode"}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder everybody can get to: nothing but the sandbox is in the way."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    need_bubblewrap()
    codex_session.installed_codex()
    with serving(ScriptedModel(require_key=KEY)) as url:
        models = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1"}
        keys = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY, "TEST_SECRET": SECRET}
        speaking = {"claude-acp": claude_agent_acp().agent, "opencode": opencode().agent}
        given = {**models, **keys, **agents_file(folder, **speaking)}
        with LiveServer(folder / "data", ROOST_SLEEP_AFTER="60", **given) as live:
            yield live


@pytest.fixture(scope="module")
def neighbour(server: LiveServer) -> Path:
    """A file of another session."""
    other = Chat(server, harness="messages")
    other.turn(script(in_messages("echo my neighbour must not read this >note"), {"text": "ok"}))
    return other.home / "note"


def program() -> bytes:
    """The probes as one file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for module in PROBES.rglob("*.py"):
            archive.write(module, Path("roost/testing/probes", module.relative_to(PROBES)))
        for package in ("roost", "roost/testing"):
            archive.writestr(f"{package}/__init__.py", "")
        run = "from roost.testing.probes.inside.__main__ import main\nmain()\n"
        archive.writestr("__main__.py", run)
    return made.getvalue()


SLOW = pytest.param("opencode", marks=pytest.mark.chaos)  # it starts slowly


@pytest.fixture(params=[*(name for name in AGENTS if name != "opencode"), SLOW])
def chat(request: pytest.FixtureRequest, server: LiveServer) -> Chat:
    uploaded = client_of(server).beta.files.upload(file=("probes.pyz", program()))
    probes = {"type": "file", "file_id": uploaded.id, "mount_path": "probes.pyz"}
    networking = {"type": "limited", "allowed_hosts": ["example.invalid"]}
    return Chat(server, harness=request.param, networking=networking, resources=[probes])


def runs(chat: Chat, command: str) -> list[Any]:
    """The events of a turn in which the agent runs a command by its own tool."""
    events = chat.turn(script(AGENTS[chat.fields()["harness"]](command), {"text": "Done."}))
    assert said(events) == ["Done."]
    return events


def test_every_probe_that_an_agent_runs_is_blocked(
    chat: Chat, server: LiveServer, neighbour: Path, folder: Path
):
    with tempfile.TemporaryDirectory(dir=folder) as name:
        Path(name).chmod(0o755)
        with things_outside(Path(name)) as facts:
            facts |= {
                "victim": server.pid,
                "port": urlsplit(server.url).port,
                "other": str(neighbour),
                "database": str(server.data / "roost.db"),
                "workspace": str(chat.home),
                "record": RECORDS.get(chat.fields()["harness"], ".claude"),
            }
            given = json.dumps(facts)
            command = f"python3 {UPLOADS}/probes.pyz >/workspace/found <<'END'\n{given}\nEND"
            runs(chat, command)
    found = json.loads((chat.home / "found").read_text())
    assert len(found) >= 50
    assert not_blocked(found) == {}
    assert {name for name, got in found.items() if got["verdict"] == "info"} <= HARMLESS


def test_no_secret_and_no_neighbour_is_where_an_agent_can_look(
    chat: Chat, server: LiveServer, neighbour: Path
):
    look = (
        f"cat {neighbour}; ls {server.data} /root; cat {server.data}/keys/admin.key; "
        "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; env; ls -a /home; "
        f"curl -sS -m 3 {server.url}/healthz; "
        "grep -rs 'sk-[v]ery' /home /workspace /tmp /run /etc; echo looked"
    )
    (output,) = printed(runs(chat, look))
    assert "_API_KEY=placeholder" in output
    assert "looked" in output.splitlines()  # opencode puts errors after the rest
    assert '"status"' not in output
    everything = output + str([event.to_dict() for event in chat.events()]) + server.output
    for secret in (KEY, server.key, SECRET):
        assert secret not in everything
    assert "must not read" not in output


def test_what_an_agent_may_not_reach_is_refused_and_said_in_the_log(chat: Chat):
    path = MODEL.get(chat.fields()["harness"], "messages")
    asked = '{"model": "a-dear-one", "max_tokens": 1, "messages": [], "input": []}'
    place = "--unix-socket /run/roost/model.sock http://localhost"
    if chat.fields()["harness"] in AT_A_PORT:
        place = "--noproxy '*' http://127.0.0.1:8701"
    model = f"curl -sS {place}/v1/{path} -d '{asked}'"
    events = runs(
        chat,
        f"curl -sS -m 5 http://somewhere.invalid/; {model} -H 'content-type: application/json'",
    )
    errors = [event.error.message for event in events if event.type == "session.error"]
    assert errors[0] == "the sandbox may not reach somewhere.invalid:80: host_not_allowed"
    assert errors[1].endswith(": model_not_allowed")
    assert "this session may not use 'a-dear-one'" in printed(events)[0]
