"""The official examples of workers, as they are: copied next to a server, started, and read.

They belong to the SDKs and are not part of Roost. `SDK_SOURCES` names a directory with clones of
`anthropic-sdk-python` and `anthropic-sdk-typescript`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.journeys.test_workers import ROOT, TYPESCRIPT, SelfHosted
from tests.parts import need

from roost.builtin_model.app import SeenRequest
from roost.builtin_model.script import Fault
from roost.testing.in_memory_runner import script
from roost.testing.live import LiveServer
from roost.testing.scripted_model import ScriptedModel, in_a_thread

SOURCES = Path(os.environ.get("SDK_SOURCES", "/nowhere"))
PYTHON = SOURCES / "anthropic-sdk-python/examples"
SCRIPTS = SOURCES / "anthropic-sdk-typescript/examples"
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(not PYTHON.is_dir(), reason="SDK_SOURCES names no clones of the SDKs"),
]
RUN = {"tool": "bash", "input": {"command": "pwd"}}
TIME = {"tool": "current_time", "input": {}}


class PromptedModel(ScriptedModel):
    """Does what the examples' prompts ask for, in words of their own."""

    def seen(self, request: SeenRequest) -> Fault | None:
        for message in request.body.get("messages", []):
            for block in message["content"] if message["role"] == "user" else []:
                if "SCRIPT" in block.get("text", "SCRIPT"):
                    continue
                tools = [RUN, TIME] if "time" in block["text"] else [RUN]
                block["text"] += script({"tools": tools}, {"text": "It is late."})
        return super().seen(request)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[SelfHosted]:
    model = PromptedModel()
    with in_a_thread(model):
        given = {"ANTHROPIC_API_KEY": "any", "ANTHROPIC_BASE_URL": model.url}
        with LiveServer(tmp_path / "data", **given) as server:
            yield SelfHosted(server, tmp_path)


def run(place: SelfHosted, example: Path, **more: str) -> str:
    """What an example prints, which has to end well."""
    here = place.root / example.suffix[1:]
    here.mkdir()
    shutil.copy(example, here)
    command = [sys.executable]
    if example.suffix == ".ts":
        need("the TypeScript SDK 1.8.0", (TYPESCRIPT / "node_modules").exists(), "scripts/setup")
        (here / "node_modules").symlink_to(TYPESCRIPT / "node_modules")
        (here / "package.json").write_text('{"type": "module"}')
        command = [str(ROOT / ".venv/bin/node")]
    environ = {
        "PATH": os.environ["PATH"],
        "ANTHROPIC_BASE_URL": place.server.url,
        "ANTHROPIC_API_KEY": place.server.key,
        "ANTHROPIC_ENVIRONMENT_ID": place.environment.id,
        "ANTHROPIC_ENVIRONMENT_KEY": place.key,
        "ANTHROPIC_WORKDIR": str(here),
        **more,
    }
    ended = subprocess.run(
        [*command, example.name], cwd=here, env=environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, (ended.stdout, ended.stderr, place.server.output[-3000:])
    return ended.stdout


@pytest.mark.parametrize("sources", [PYTHON, SCRIPTS], ids=["python", "typescript"])
def test_a_worker_with_a_tool_of_its_own(place: SelfHosted, sources: Path):
    [example] = sources.glob("managed-agents-self-hosted-sandbox-worker.*")
    said = run(place, example)
    assert "agent.message: It is late." in said
    assert f"user.tool_result: {place.root}" in said
    assert "user.custom_tool_result" in said
    assert list(place.client.beta.sessions.list()) == [], "it cleans up"


def test_every_call_is_observed(place: SelfHosted):
    said = run(place, PYTHON / "managed-agents-observe-tool-calls.py")
    assert "bash {'command': 'pwd'} is_error=False posted=True" in said


def test_an_item_that_was_claimed_elsewhere(place: SelfHosted):
    place.agent = place.client.beta.agents.create(
        name="coder",
        model="claude-opus-5-5",
        tools=[{"type": "agent_toolset_20260401"}, _CURRENT_TIME],
    )
    session = place.session({"tools": [RUN, TIME]}, {"text": "It is late."})
    at = f"{place.server.url}/v1/environments/{place.environment.id}/work"
    given = {"authorization": f"Bearer {place.key}", "anthropic-version": "2023-06-01"}
    headers = {**given, "anthropic-beta": "managed-agents-2026-04-01"}
    item = place.until(lambda: httpx2.get(f"{at}/poll", headers=headers).json())
    assert httpx2.post(f"{at}/{item['id']}/ack", headers=headers).status_code == 200
    about = {"ANTHROPIC_WORK_ID": item["id"], "ANTHROPIC_SESSION_ID": session}
    assert "work item handled" in run(place, SCRIPTS / "managed-agents-worker-dispatch.ts", **about)
    assert place.has_ended(session)
    assert [each.split("/")[1] for each in place.results(session)] == [place.root.parts[1]]


_CURRENT_TIME: Any = {
    "type": "custom",
    "name": "current_time",
    "description": "Tells the time.",
    "input_schema": {"type": "object", "properties": {}},
}
