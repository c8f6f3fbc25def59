"""A harness that another package brings: the one of CONTRIBUTING, installed as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest
from tests.docs.reading import text
from tests.journeys.chat import Chat

from roost.testing.live import LiveServer


def _blocks(kind: str) -> list[str]:
    """The examples in the section about harnesses."""
    section = text("CONTRIBUTING.md").split("### Add a harness")[1].split("\n### ")[0]
    return [dedent(block) for block in re.findall(rf"```{kind}\n(.*?)```", section, re.S)]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory on the path, with what an installer leaves of a package."""
    [code] = [block for block in _blocks("python") if "def make(" in block]
    [declared] = _blocks("toml")
    [(name, value)] = re.findall(r'^(\w+) = "(.+)"$', declared, re.M)
    package, about = tmp_path / "site" / "parrot", tmp_path / "site" / "parrot-1.0.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "__init__.py").write_text(code)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[roost.harnesses]\n{name} = {value}\n")
    return tmp_path / "site"


def test_a_session_runs_on_it(site: Path, tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data", PYTHONPATH=str(site)) as server:
        chat = Chat(server, harness="parrot")
        assert [_said(event) for event in chat.turn("Polly?") if event.type == "agent.message"] == [
            "Polly?"
        ]
        server.kill()
        server.start()
        chat.move_to(server)
        assert "Still there?" in map(_said, chat.turn("Still there?"))


def test_it_can_be_what_sessions_get_that_name_none(site: Path, tmp_path: Path) -> None:
    environ = {"PYTHONPATH": str(site), "ROOST_HARNESS": "parrot"}
    with LiveServer(tmp_path / "data", **environ) as server:
        chat = Chat(server, harness="scripted")
        made = chat.client.beta.sessions.create(
            agent=chat.session.agent.id, environment_id=chat.session.environment_id
        )
        assert made.to_dict()["harness"] == "parrot"


def test_one_that_does_not_work_stops_no_server_and_is_named(site: Path, tmp_path: Path) -> None:
    (site / "parrot" / "__init__.py").write_text("import a_thing_that_nobody_has\n")
    with LiveServer(tmp_path / "data", PYTHONPATH=str(site)) as server:
        assert "the harness 'parrot' cannot be imported" in server.output
        with pytest.raises(Exception, match="harness: 'parrot' is not available here"):
            Chat(server, harness="parrot")


def test_a_server_says_which_harnesses_there_are_if_its_setting_names_none(tmp_path: Path) -> None:
    server = LiveServer(tmp_path / "data", ROOST_HARNESS="parrot")
    with pytest.raises(RuntimeError, match="there is no harness 'parrot'") as refused:
        server.start()
    assert "There is: claude, codex, messages, code, scripted." in str(refused.value)


def _said(event: object) -> str:
    content = getattr(event, "content", None) or ()
    return "".join(getattr(block, "text", "") for block in content)
