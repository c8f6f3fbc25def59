"""The real Codex with a session in memory: what its tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harnesses.claude_session import Served
from tests.harnesses.sandboxed_harness import SandboxedHarness
from tests.parts import need

from roost.errors import RoostError
from roost.harnesses.codex import CodexHarness, bundled_program

MODEL = "gpt-6.1-sol"
"""A model that Codex knows; one that it does not know, it treats in another way."""


def installed_codex() -> Path:
    """The directory of the program, or the reason why its tests cannot run."""
    try:
        return bundled_program()
    except RoostError as error:
        need("Codex", None, f"make setup ({error})")
        raise


def codex_harness(model: Served, root: Path) -> SandboxedHarness:
    """Codex in plain processes, talking to that model."""
    (own := root / "tmp").mkdir()  # a sandbox has one; sessions in memory all have the same id
    environ = {
        "OPENAI_BASE_URL": f"{model.url}/v1",
        "OPENAI_API_KEY": "placeholder",
        "TMPDIR": str(own),
    }
    harness = CodexHarness(installed_codex(), seeds=root, mounted=False, environ=environ, retries=2)
    return SandboxedHarness(harness, root, mark=b"app-server")


def run(command: str, **more: Any) -> dict[str, Any]:
    """The model's call of the tool that runs commands."""
    return {"tool": "exec_command", "input": {"cmd": command, **more}}
