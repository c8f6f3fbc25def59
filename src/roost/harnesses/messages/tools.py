"""What an agent may use: the API's toolset, run in its sandbox, and the tools of its clients and servers.

`web_search` is the model's server's own. It is offered where that server has it and nobody is to be asked first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from roost.domain import work_item
from roost.harnesses.permissions import Json, Policy, Tool
from roost.harnesses.questions import QUESTION

_TOOLSET: Final = "agent_toolset_20260401"
_WHERE: Final = "Paths are relative to the working directory."


def _schema(*required: str, **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


BUILT_IN: Final[Mapping[str, Json]] = {
    "bash": {
        "description": "Run a command in a persistent bash shell. Directory, variables and jobs stay from "
        "call to call. Only the last 100 KiB of output are returned.",
        "input_schema": _schema(
            command=_text("The command. Omit it only with `restart`."),
            restart={"type": "boolean", "description": "Start the shell anew instead."},
            timeout_ms={
                "type": "integer",
                "description": "Milliseconds until the command is killed: 120000 if omitted, 600000 at most.",
            },
        ),
    },
    "read": {
        "description": f"Read a file: text, an image (png, jpg, gif, webp) or a PDF. {_WHERE}",
        "input_schema": _schema(
            "file_path",
            file_path=_text("The file."),
            view_range={
                "type": "array",
                "items": {"type": "integer"},
                "description": "[first line, last line], counted from 1; 0 as the last: to the end.",
            },
        ),
    },
    "write": {
        "description": f"Write a whole file, with the directories above it. {_WHERE}",
        "input_schema": _schema(
            "file_path", "content", file_path=_text("The file."), content=_text("All of its text.")
        ),
    },
    "edit": {
        "description": f"Replace text in a file. {_WHERE}",
        "input_schema": _schema(
            "file_path",
            "old_string",
            "new_string",
            file_path=_text("The file."),
            old_string=_text("The text to replace, which must occur exactly once."),
            new_string=_text("The text to put there."),
            replace_all={"type": "boolean", "description": "Replace all occurrences."},
        ),
    },
    "glob": {
        "description": "List the files that match a pattern such as `**/*.py`, newest first.",
        "input_schema": _schema(
            "pattern", pattern=_text("The pattern."), path=_text("The directory to begin at.")
        ),
    },
    "grep": {
        "description": "Find the lines that match a regular expression.",
        "input_schema": _schema(
            "pattern",
            pattern=_text("The regular expression."),
            path=_text("The file or directory to look into."),
        ),
    },
    "web_fetch": {
        "description": "Fetch a page of the web: its text with its links, or a picture or a PDF. A redirect to "
        "another host is told, and not followed.",
        "input_schema": _schema("url", url=_text("The address, with https:// or http://.")),
    },
}
"""The tools of the API's toolset that there are, as a model is told of them."""

_ASK: Final[Json] = {
    "name": QUESTION,
    "description": "Ask the user something that you need to know to go on: up to 4 questions, each with choices. "
    "The user may also answer in other words.",
    "input_schema": _schema(
        "questions",
        questions={
            "type": "array",
            "minItems": 1,
            "maxItems": 4,
            "items": _schema(
                "question",
                "header",
                "options",
                question=_text("The whole question."),
                header=_text("A word or two that name it."),
                options={
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 4,
                    "items": _schema(
                        "label",
                        "description",
                        label=_text("The choice, in a few words."),
                        description=_text("What it means."),
                    ),
                },
                multiSelect={"type": "boolean", "description": "Several may be chosen."},
            ),
        },
    ),
}

REPEATABLE: Final = work_item.REPEATABLE | {"web_fetch"}
"""Those that change nothing: a call that was cut off is simply made again."""

NOT_CONFINABLE: Final = frozenset({"bash", "web_fetch"})

WORKERS: Final = frozenset({"bash", "read", "write", "edit", "glob", "grep"})
"""Those that workers run, for sessions on self-hosted environments."""


class AgentTools:
    """The tools of one agent, by the names that its model calls them. If it is `confined`, it has none that cannot
    be kept in a directory. `searches`: the model's server searches the web. `self_hosted`: those of the toolset that
    use files and commands are run by workers.
    """

    def __init__(
        self, agent: Json, *, confined: bool, searches: bool, self_hosted: bool = False
    ) -> None:
        self.by_worker = WORKERS if self_hosted else frozenset()
        tools: list[Json] = agent.get("tools") or []
        self._custom = {tool["name"]: tool for tool in tools if tool["type"] == "custom"}
        left_out = NOT_CONFINABLE if confined else frozenset()
        self._search = _search(tools) if searches else None
        self._asks = any(t["type"] == _TOOLSET and t["default_config"]["enabled"] for t in tools)
        self.built_in = [name for name in _enabled(tools) if name not in left_out]
        self.servers: dict[str, str] = {s["name"]: s["url"] for s in agent.get("mcp_servers") or []}
        self._prefixes = {f"mcp__{_plain(name)}__": name for name in self.servers}

    def of(self, name: str) -> Tool:
        """The tool that a model calls by this name, whether the agent may use it or not."""
        if name in self._custom:
            return Tool("custom", name)
        if name == QUESTION and self._asks:
            return Tool("question", name)
        for prefix in sorted(self._prefixes, key=len, reverse=True):
            if name.startswith(prefix):
                return Tool("mcp", name.removeprefix(prefix), self._prefixes[prefix])
        return Tool("builtin", name)

    def offered(self, mcp: Mapping[tuple[str, str], Sequence[Json]], policy: Policy) -> list[Json]:
        """The tools as a model is told of them, always in the same order. `mcp` has those of servers, by name and
        URL; what the agent may not use of them is left out.
        """
        shown = ("name", "description", "input_schema")
        search = self._search
        may_search = policy.judge(Tool("builtin", "web_search"), {}).permission == "allow"
        return [
            *([search] if search is not None and may_search else []),
            *({"name": name, **BUILT_IN[name]} for name in self.built_in),
            *([_ASK] if self._asks and QUESTION not in self._custom else []),
            *({key: tool[key] for key in shown if key in tool} for tool in self._custom.values()),
            *(
                {**tool, "name": f"{prefix}{tool['name']}"}
                for prefix, name in self._prefixes.items()
                for tool in mcp.get((name, self.servers[name]), ())
                if policy.judge(Tool("mcp", tool["name"], name), {}).permission != "deny"
            ),
        ]


def _enabled(tools: Iterable[Json]) -> list[str]:
    for tool in tools:
        if tool["type"] == _TOOLSET:
            own = {config["name"]: config["enabled"] for config in tool["configs"]}
            default = tool["default_config"]["enabled"]
            return [name for name in BUILT_IN if own.get(name, default)]
    return []


def _search(tools: Iterable[Json]) -> Json:
    """The search as the model's server is told of it."""
    configs = (c for tool in tools if tool["type"] == _TOOLSET for c in tool["configs"])
    own: Json = next((config for config in configs if config["name"] == "web_search"), {})
    fields = ("allowed_domains", "blocked_domains", "user_location")
    limits = {name: own[name] for name in fields if own.get(name)}
    return {"type": "web_search_20250305", "name": "web_search", **limits}


def _plain(name: str) -> str:
    """A server's name as a model may read it in the name of a tool."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


_MEDIA: Final = {
    "image": ("image/png", "image/jpeg", "image/gif", "image/webp"),
    "document": ("application/pdf",),
}


class _Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    media_type: str
    data: str


class _Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    text: str = ""
    source: _Source | None = None


class ToolAnswer(msgspec.Struct, frozen=True):
    """What a tool has answered: blocks that a client and a model may be shown."""

    content: list[Json]
    is_error: bool = False

    @classmethod
    def text(cls, text: str) -> ToolAnswer:
        """An answer that is some text."""
        return cls([{"type": "text", "text": text}])

    @classmethod
    def error(cls, text: str) -> ToolAnswer:
        """An answer that says what went wrong."""
        return cls([{"type": "text", "text": text}], is_error=True)

    @classmethod
    def checked(cls, content: Any, *, is_error: bool) -> ToolAnswer:
        """What came out of a sandbox, which is another's word: only blocks of a known shape.

        :raises msgspec.ValidationError: it is something else
        """
        blocks = msgspec.convert(content, list[_Block])
        if not blocks or not all(map(_is_known, blocks)):
            raise msgspec.ValidationError("not the blocks of a result")
        return cls([_shown(block) for block in blocks], is_error)


def _is_known(block: _Block) -> bool:
    if block.type == "text":
        return block.source is None and bool(block.text.strip())
    source = block.source
    return source is not None and source.media_type in _MEDIA.get(block.type, ())


def _shown(block: _Block) -> Json:
    if block.source is None:
        return {"type": "text", "text": block.text.replace("\0", "\ufffd")}
    return {"type": block.type, "source": msgspec.to_builtins(block.source)}
