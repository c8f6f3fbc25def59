"""Which calls run, which are refused, and which wait for a person.

The CLI is told to ask before every call, and it is answered here. So a call runs only after its
event is in the log, whatever the policy says: a crash can then leave a call whose outcome is
unknown, but never one that nobody has heard of.

Where no walls keep the agent in (`Confinement`), this is also where its tools are kept in. Only tools that
say which files they touch can be: a command line cannot, and neither can what fetches pages, from a
machine whose own addresses are within its reach. Those are refused, whatever the policy says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from roost.harnesses.claude.domains import kept_to
from roost.harnesses.claude.shapes import Json
from roost.harnesses.claude.tools import CONFINABLE, SKILL, Tool
from roost.harnesses.fence import Fence, ToolRefused
from roost.ports.harness import Confinement

_HARMLESS = {"read", "glob", "grep"}
_SEARCHES = {"glob", "grep"}  # without a path they begin where the agent works
_ON_THE_WEB = {"web_fetch", "web_search"}
_WITHOUT_FILES = {"web_search"}  # the model's own doing


class Verdict(msgspec.Struct, frozen=True):
    """What is to happen to a call. Without an `evaluation` it was refused before any policy; the
    agent is told the `reason`, if there is a particular one.
    """

    permission: Literal["allow", "ask", "deny"]
    evaluation: Json | None = None
    reason: str | None = None

    def fields(self) -> Json:
        """As the fields of a tool use event."""
        shown: Json = {"evaluated_permission": self.permission}
        return shown | ({"evaluation": self.evaluation} if self.evaluation else {})


_NOT_ENABLED = Verdict("deny")


class Policy:
    """The permission policies of one agent, and the bounds it has to be kept in."""

    def __init__(self, agent: Json, bounds: Confinement | None = None) -> None:
        self._fence = None if bounds is None else Fence(bounds)
        tools = agent.get("tools") or []
        self._built_in = next((t for t in tools if t["type"] == "agent_toolset_20260401"), None)
        self._mcp = {t["mcp_server_name"]: t for t in tools if t["type"] == "mcp_toolset"}
        self._custom = {t["name"] for t in tools if t["type"] == "custom"}
        self._has_skills = bool(agent.get("skills"))

    def judge(self, tool: Tool, given: Json) -> Verdict:
        """What is to happen to a call of this tool."""
        try:
            self.kept_in(tool, given)
        except ToolRefused as refusal:
            return Verdict("deny", reason=str(refusal))
        if tool.kind == "question":
            return Verdict("ask")
        if tool.kind == "custom":
            return Verdict("ask") if tool.name in self._custom else _NOT_ENABLED
        toolset = self._mcp.get(tool.server) if tool.kind == "mcp" else self._built_in
        if tool.kind == "builtin" and tool.name == SKILL and self._has_skills:
            tool = Tool("builtin", "read")  # to load a skill is to read its file
        if toolset is None:
            return _NOT_ENABLED
        return _evaluated(tool, _config(tool, toolset))

    def kept_in(self, tool: Tool, given: Json) -> Json:
        """The input as the tool is to have it: with the places that its paths lead to, and kept to the
        domains that its config names.

        :raises Outside: one of them may not be used, or nobody could keep the tool in
        """
        if tool.kind == "builtin" and tool.name in _ON_THE_WEB and self._built_in is not None:
            given = kept_to(tool.name, _config(tool, self._built_in) or {}, given)
        if self._fence is None or tool.kind != "builtin" or tool.name in _WITHOUT_FILES:
            return given
        field = CONFINABLE.get(tool.name)
        if field is None:
            raise ToolRefused(
                f"Refused: {tool.name} cannot be kept in the directory that this session is kept in."
            )
        if tool.name == "glob":
            self._fence.pattern(given.get("pattern"))
        if given.get(field) is None and tool.name in _SEARCHES:
            return given
        return {**given, field: self._fence.place(given.get(field))}


def _config(tool: Tool, toolset: Json) -> Json | None:
    from_client: Sequence[Json] = toolset["configs"]
    for config in from_client:
        if config["name"] == tool.name:
            return config
    known = tool.kind == "mcp" or tool.name in _BUILT_IN
    return toolset["default_config"] if known else None


_BUILT_IN = {*_HARMLESS, "bash", "write", "edit", "web_fetch", "web_search"}


def _evaluated(tool: Tool, config: Json | None) -> Verdict:
    if config is None or not config["enabled"]:
        return _NOT_ENABLED
    match config["permission_policy"]["type"]:
        case "always_allow":
            return Verdict("allow", {"type": "always_allow"})
        case "auto" if tool.kind == "builtin" and tool.name in _HARMLESS:
            return Verdict("allow", _auto({"type": "allow"}))
        case "auto":  # nobody here can judge what a command or a page does: a person has to
            return Verdict("ask", _auto({"type": "ask", "reason_code": "indeterminate"}))
        case _:
            return Verdict("ask", {"type": "always_ask"})


def _auto(judged: Json) -> Json:
    return {"type": "auto", "evaluated_permission": judged}
