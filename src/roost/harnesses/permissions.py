"""Which calls run, which are refused, and which wait for a person: an agent's policies, for every harness that
decides before a call is made.

Where no sandbox keeps the agent in (`Confinement`), its tools are confined here. Only tools that say which
files they touch can be: a command line cannot, and neither can what fetches pages, from a machine whose
own addresses are within its reach. Those are refused, whatever the policy says.

The `allowed_domains` and `blocked_domains` of web tools hold here, too. A domain stands for itself and all
below it. Pages are fetched inside the sandbox, so what the environment lets through holds as well.
Searches are the model provider's doing, and it is told what to leave out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from roost.harnesses.confinement import PathConfinement, ToolRefused
from roost.ports.harness import Confinement

Json = dict[str, Any]

CONFINABLE: Final[Mapping[str, str]] = {
    "read": "file_path",
    "write": "file_path",
    "edit": "file_path",
    "glob": "path",
    "grep": "path",
}
"""The tools that can be kept in a directory, and the field that says where they go."""

SKILL: Final = "Skill"
"""The tool by which Claude Code loads a skill."""

SUBAGENT: Final = "Agent"
"""The tool by which an agent starts a subagent: Claude Code's own, and the one that Codex is given."""

_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_ODD: Final = re.compile(
    r"[\\\s\x00-\x20\x7f]"
)  # the CLI would read such an address in another way
_HARMLESS = {"read", "glob", "grep"}
_SEARCHES = {"glob", "grep"}  # without a path they begin where the agent works
_ON_THE_WEB = {"web_fetch", "web_search"}
_WITHOUT_FILES = {"web_search"}  # the model's own doing
_BUILT_IN = {*_HARMLESS, "bash", "write", "edit", "web_fetch", "web_search"}


class Tool(msgspec.Struct, frozen=True):
    """A tool as the API names it. `server` is the MCP server it belongs to."""

    kind: Literal["builtin", "mcp", "custom", "question"]
    name: str
    server: str = ""

    @property
    def answered_by_client(self) -> bool:
        """Whether its result comes from a client, as an event of its own."""
        return self.kind in ("custom", "question")


def kept_to(name: str, config: Json, given: Json) -> Json:
    """The input of a web tool, limited to the domains that its config names. :raises ToolRefused:"""
    allowed, blocked = _domains(config, "allowed_domains"), _domains(config, "blocked_domains")
    if not allowed and not blocked:
        return given
    if name == "web_search":
        return _searched(given, allowed, blocked)
    host = _host_of(given.get("url"))
    if (allowed and not _within(host, allowed)) or _within(host, blocked):
        raise ToolRefused(f"Refused: this agent may not fetch pages from {host}.")
    return given


def _searched(given: Json, allowed: Sequence[str], blocked: Sequence[str]) -> Json:
    """The tool takes one of the two lists, and the agent may have given one itself."""
    left = {name: value for name, value in given.items() if not name.endswith("_domains")}
    wanted, unwanted = _domains(given, "allowed_domains"), _domains(given, "blocked_domains")
    if allowed:
        narrowed = [each for each in wanted if _within(each, allowed)]
        return {**left, "allowed_domains": narrowed or list(allowed)}
    if wanted:
        kept = [each for each in wanted if not _within(each, blocked)]
        if not kept:
            raise ToolRefused("Refused: this agent may not search there.")
        return {**left, "allowed_domains": kept}
    return {**left, "blocked_domains": [*unwanted, *blocked]}


def _domains(source: Json, field: str) -> list[str]:
    listed = source.get(field)
    named = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    return [each.lower().rstrip(".") for each in named]


def _host_of(url: object) -> str:
    """The host that a tool would connect to. :raises ToolRefused: it is not certain which host that is"""
    try:
        host = urlsplit(url if isinstance(url, str) and not _ODD.search(url) else "").hostname
    except ValueError:
        host = None
    host = (host or "").rstrip(".")
    if not _HOST.fullmatch(host):
        raise ToolRefused("Refused: give the address with the plain name of a host.")
    return host


def _within(host: str, domains: Sequence[str]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


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


def starts_subagents(agent: Json) -> bool:
    """Whether an agent's definition lets it start agents of its own."""
    subagents = (agent.get("multiagent") or {}).get("subagents") or {}
    return bool(subagents.get("type") == "enabled")


class Policy:
    """The permission policies of one agent, and the directory that it is confined to, if it is.

    `others`: built-in tools that the API has no name for fall under the toolset's default; else they are refused.
    """

    def __init__(
        self, agent: Json, confinement: Confinement | None = None, *, others: bool = False
    ) -> None:
        self._others = others
        self._confinement = None if confinement is None else PathConfinement(confinement)
        tools = agent.get("tools") or []
        self._built_in = next((t for t in tools if t["type"] == "agent_toolset_20260401"), None)
        self._mcp = {t["mcp_server_name"]: t for t in tools if t["type"] == "mcp_toolset"}
        self._custom = {t["name"] for t in tools if t["type"] == "custom"}
        self._has_skills = bool(agent.get("skills"))
        self._has_subagents = starts_subagents(agent)

    def judge(self, tool: Tool, given: Json) -> Verdict:
        """What is to happen to a call of this tool."""
        try:
            self.confined(tool, given)
        except ToolRefused as refusal:
            return Verdict("deny", reason=str(refusal))
        if tool.kind == "question":
            return Verdict("ask")
        if tool.kind == "custom":
            return Verdict("ask") if tool.name in self._custom else _NOT_ENABLED
        if tool.kind == "builtin" and tool.name == SUBAGENT and self._has_subagents:
            return Verdict("allow", {"type": "always_allow"})  # its calls are judged one by one
        toolset = self._mcp.get(tool.server) if tool.kind == "mcp" else self._built_in
        if tool.kind == "builtin" and tool.name == SKILL and self._has_skills:
            tool = Tool("builtin", "read")  # to load a skill is to read its file
        if toolset is None:
            return _NOT_ENABLED
        return _evaluated(tool, _config(tool, toolset, others=self._others))

    def confined(self, tool: Tool, given: Json) -> Json:
        """The input as the tool is to have it: with the paths that its paths lead to, and limited to the
        domains that its config names.

        :raises ToolRefused: one of them may not be used, or nobody could confine the tool
        """
        if tool.kind == "builtin" and tool.name in _ON_THE_WEB and self._built_in is not None:
            given = kept_to(tool.name, _config(tool, self._built_in) or {}, given)
        if self._confinement is None or tool.kind != "builtin" or tool.name in _WITHOUT_FILES:
            return given
        field = CONFINABLE.get(tool.name)
        if field is None:
            raise ToolRefused(
                f"Refused: {tool.name} cannot be kept in the directory that this session is kept in."
            )
        if tool.name == "glob":
            self._confinement.pattern(given.get("pattern"))
        if given.get(field) is None and tool.name in _SEARCHES:
            return given
        return {**given, field: self._confinement.resolve(given.get(field))}


def _config(tool: Tool, toolset: Json, *, others: bool = False) -> Json | None:
    from_client: Sequence[Json] = toolset["configs"]
    for config in from_client:
        if config["name"] == tool.name:
            return config
    known = others or tool.kind == "mcp" or tool.name in _BUILT_IN
    return toolset["default_config"] if known else None


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
