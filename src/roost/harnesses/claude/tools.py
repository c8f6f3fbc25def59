"""What an agent may use, in the words of both sides.

The API says `bash`, the CLI says `Bash`. Custom tools are served to the CLI as an MCP server whose
other end is this process; the model sees them under their own names, unless one of those is taken by
a tool of the CLI. `AskUserQuestion` is the CLI's own way to put a question to a person: in
the API a call that only a client can answer is `agent.custom_tool_use`, so that is what it becomes,
with the questions as its input and the client's result as the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from roost.harnesses.json_lines import Json
from roost.harnesses.permissions import SKILL, SUBAGENT, Tool, starts_subagents
from roost.harnesses.questions import QUESTION

BUILT_IN: Final[Mapping[str, str]] = {
    "bash": "Bash",
    "read": "Read",
    "write": "Write",
    "edit": "Edit",
    "glob": "Glob",
    "grep": "Grep",
    "web_fetch": "WebFetch",
    "web_search": "WebSearch",
}
_NOT_CONFINABLE = {"bash", "web_fetch"}
_OUR_NAMES = {theirs: ours for ours, theirs in BUILT_IN.items()}
_THEIRS = {QUESTION, SKILL, SUBAGENT, *BUILT_IN.values()}
_PROTOCOL = "2025-06-18"
_NOT_FOUND = {"code": -32601, "message": "This server offers tools and nothing else."}


class Toolbox:
    """The tools of one agent. If it is `confined`, it has none that cannot be kept in a directory."""

    def __init__(self, agent: Json, *, confined: bool = False) -> None:
        tools = agent.get("tools") or []
        self.custom = [tool for tool in tools if tool["type"] == "custom"]
        left_out = _NOT_CONFINABLE if confined else set()
        self.built_in = [name for name in _enabled(tools) if name not in left_out]
        self.has_skills = bool(agent.get("skills"))
        self.has_subagents = starts_subagents(agent) and not confined
        self.servers: dict[str, str] = {s["name"]: s["url"] for s in agent.get("mcp_servers") or []}
        self.custom_server = _free_name(self.servers)
        self.custom_names_are_free = _THEIRS.isdisjoint(tool["name"] for tool in self.custom)
        self.asks_questions = any(_is_toolset(t) and t["default_config"]["enabled"] for t in tools)
        self._prefixes = {f"mcp__{_plain(name)}__": name for name in self.servers}
        prefix = "" if self.custom_names_are_free else f"mcp__{self.custom_server}__"
        self._custom_names = {prefix + tool["name"]: tool["name"] for tool in self.custom}

    def is_custom(self, name: str) -> bool:
        """Whether the CLI calls a tool by this name that a client carries out."""
        return name in self._custom_names

    def of(self, name: str) -> Tool:
        """The tool the CLI calls by this name, whether the agent may use it or not."""
        if name in self._custom_names:
            return Tool("custom", self._custom_names[name])
        if name == QUESTION:
            return Tool("question", name)
        for prefix in sorted(self._prefixes, key=len, reverse=True):
            if name.startswith(prefix):
                return Tool("mcp", name.removeprefix(prefix), self._prefixes[prefix])
        return Tool("builtin", _OUR_NAMES.get(name, name))

    def logged(self, type: str, fields: Json) -> Tool:
        """The tool that a logged call is of."""
        name = fields["name"]
        if type == "agent.mcp_tool_use":
            return Tool("mcp", name, fields["mcp_server_name"])
        if type == "agent.tool_use":
            return Tool("builtin", name)
        return Tool("custom" if name in self._custom_names.values() else "question", name)

    def serve(self, message: Json) -> Json | None:
        """The reply to a JSON-RPC message for the custom tools; None for a call of one of them."""
        method = message.get("method")
        if method == "tools/call":
            return None
        if "id" not in message:
            return {"jsonrpc": "2.0", "result": {}}  # a notification; its carrier wants a reply
        if method == "initialize":
            return reply(message, self._introduction(message))
        if method == "tools/list":
            return reply(message, {"tools": [_listed(tool) for tool in self.custom]})
        if method == "ping":
            return reply(message, {})
        return {"jsonrpc": "2.0", "id": message["id"], "error": _NOT_FOUND}

    def _introduction(self, message: Json) -> Json:
        asked = message.get("params") or {}
        return {
            "protocolVersion": asked.get("protocolVersion") or _PROTOCOL,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": self.custom_server, "version": "1"},
        }


def reply(message: Json, result: Json) -> Json:
    """The JSON-RPC response to a message, with this result."""
    return {"jsonrpc": "2.0", "id": message.get("id"), "result": result}


def _is_toolset(tool: Json) -> bool:
    return bool(tool["type"] == "agent_toolset_20260401")


def _enabled(tools: Sequence[Json]) -> list[str]:
    for tool in filter(_is_toolset, tools):
        own = {config["name"]: config["enabled"] for config in tool["configs"]}
        default = tool["default_config"]["enabled"]
        return [name for name in BUILT_IN if own.get(name, default)]
    return []


def _free_name(taken: Mapping[str, str]) -> str:
    name = "custom"
    while name in {_plain(other) for other in taken}:
        name += "_"
    return name


def _plain(name: str) -> str:
    """A server's name as the CLI puts it into the names of its tools."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _listed(tool: Json) -> Json:
    return {
        "name": tool["name"],
        "description": tool["description"],
        "inputSchema": tool["input_schema"],
    }
