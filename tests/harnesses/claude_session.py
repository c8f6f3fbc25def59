"""The real claude CLI with a session in memory: what its tests share."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec.structs import replace
from tests.harnesses.sandboxed_harness import SandboxedHarness
from tests.parts import need

from roost.errors import RoostError
from roost.harnesses.claude import ClaudeHarness, bundled_cli
from roost.ports.harness import Conversation, Emit, Output
from roost.serve.http import listening
from roost.testing.in_memory_runner import InMemoryRunner, Watch, with_mcp, with_toolset
from roost.testing.scripted_model import ScriptedModel, docs_server

END = {"type": "end_turn"}


__all__ = ["docs_server"]


class Served(ScriptedModel):
    def last_request(self) -> str:
        return json.dumps(self.requests[-1].body, ensure_ascii=False)


class Board(InMemoryRunner):
    """A desk whose session can be changed."""

    def change_agent(self, agent: dict[str, Any]) -> None:
        """As an update of the session does."""
        self._session = replace(self._session, spec=replace(self._session.spec, agent=agent))

    def told(self) -> list[str]:
        """The types of what was said and done, in order."""
        return [type for type, _ in self.conversation]


def installed_cli() -> Path:
    """The CLI, or the reason why its tests cannot run."""
    try:
        return bundled_cli()
    except RoostError as error:
        need("the claude CLI", None, f"uv pip install claude-agent-sdk==0.2.182 ({error})")
        raise


@asynccontextmanager
async def serving() -> AsyncGenerator[Served, None]:
    """The scripted model on a port of its own."""
    model = Served()
    async with listening(model, "127.0.0.1", 0) as model.url:
        yield model


def sandboxed_harness(model: Served, root: Path) -> SandboxedHarness:
    """The CLI in plain processes, talking to that model."""
    environ = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "placeholder"}
    return SandboxedHarness(
        ClaudeHarness(installed_cli(), mounted=False, environ=environ, retries=2), root
    )


agent = with_toolset
with_servers = with_mcp


def bash(command: str) -> dict[str, Any]:
    return {"tool": "Bash", "input": {"command": command}}


def once(matches: Callable[[Output], bool], act: Callable[[], Any]) -> Watch:
    """Does something at the first output that matches."""
    done: list[Output] = []

    async def watch(_: Conversation, output: Output) -> None:
        if not done and matches(output):
            done.append(output)
            await anyio.sleep(0.3)  # so that what the output announces is under way
            act()

    return watch


async def appears(path: Path, word: str = "") -> None:
    """Wait until somebody has made that file, and the word is in it."""
    file = anyio.Path(path)
    while not (await file.exists() and (not word or word in await file.read_text())):  # noqa: ASYNC110 - another's
        await anyio.sleep(0.02)


async def noted(sandboxed: SandboxedHarness, word: str) -> None:
    """Wait until the CLI has written a message with that word down, which it does a moment after it was so.

    Its requests to the model come first, with the names of all tools. They do not count.
    """
    while not _has_message(sandboxed, word):  # noqa: ASYNC110 - another's file
        await anyio.sleep(0.02)


def _has_message(sandboxed: SandboxedHarness, word: str) -> bool:
    kept = (sandboxed.home / ".claude" / "projects").glob("*/*.jsonl")
    whole = (line for file in kept for line in file.read_bytes().split(b"\n")[:-1])
    found = (line for line in whole if word.encode() in line)
    return any(json.loads(line)["type"] in ("user", "assistant") for line in found)


def emits(type: str) -> Callable[[Output], bool]:
    return lambda output: isinstance(output, Emit) and output.drafts[0].type == type


def config(name: str, *, enabled: bool = True, policy: str = "always_allow") -> dict[str, Any]:
    return {
        "name": name,
        "type": name,
        "enabled": enabled,
        "permission_policy": {"type": policy},
    }


def spans_are_paired(runner: InMemoryRunner) -> bool:
    starts = [entry.id for entry in runner.events("span.model_request_start")]
    ends = [e.fields["model_request_start_id"] for e in runner.events("span.model_request_end")]
    return bool(starts) and starts == ends
