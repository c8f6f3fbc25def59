"""The tools of an agent, in the words of both sides.

Codex has few tools: one that runs commands, one that changes files by a patch, one that looks at a picture.
Clients know them as `bash`, `edit` and `read`. Its way to put questions to a person becomes the call that
clients of other agents answer, `AskUserQuestion`. A custom tool is one that Codex asks us to carry out.

Each call has one shape in the log, and can be told to Codex again from that: a new process of Codex is given
the conversation from the log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from roost.harnesses.json_lines import Json
from roost.harnesses.permissions import SUBAGENT, Policy, Tool, Verdict, starts_subagents
from roost.harnesses.questions import QUESTION, answers_to

_COMMAND, _STDIN, _PATCH, _PICTURE = "exec_command", "write_stdin", "apply_patch", "view_image"
_ASK: Final = "request_user_input"
_OURS: Final[Mapping[str, str]] = {
    _COMMAND: "bash",
    _STDIN: "bash",
    _PATCH: "edit",
    _PICTURE: "read",
}
_RENAMED: Final = {_COMMAND: ("cmd", "command"), _PICTURE: ("path", "file_path")}
"""The argument that clients know by another name, for each tool that has one."""
_HARMLESS: Final = {  # Codex's own, without effect outside of it; MCP servers' resources are read by it
    "get_context_remaining",
    "list_mcp_resource_templates",
    "list_mcp_resources",
    "read_mcp_resource",
    "update_plan",
}
_AGENT: Final[Json] = {
    "type": "function",
    "name": SUBAGENT,
    "description": (
        "Starts an agent of your own, waits for it, and returns its report. It has your tools and works in the same "
        "directory, but knows nothing of this conversation: `prompt` has to say all that it needs to know, and what "
        "it is to report. For work that can be done apart, such as a search through many files."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "description": {
                "type": "string",
                "description": "What it is for, in three to five words.",
            },
            "prompt": {"type": "string", "description": "What it is to do."},
        },
        "required": ["description", "prompt"],
    },
}
_PLAIN_SPACES: Final = ("", "functions")  # in which Codex's own tools are
_ADDS: Final = "*** Add File:"
_ALLOWED: Final = Verdict("allow")
_STRICT: Final = ("allow", "ask", "deny")
_NO_TERMINAL: Final = (
    "Refused: where commands need permission, none may have a terminal (`tty`): what is typed into it "
    "would need none."
)
_LONGEST_HEADER: Final = 2000
_SPACE: Final = "mcp__"  # what Codex calls an MCP server's tools begins so
_OF: Final = "\0"  # no name has it
_TIMES: Final = "Wall time: "  # what Codex says before the outcome of an MCP server's tool


class CodexCall(msgspec.Struct, frozen=True):
    """A call that the model has made. `call_id` is Codex's name for it, `event_id` the log's."""

    call_id: str
    event_id: str
    tool: Tool
    input: Json
    verdict: Verdict

    @property
    def waits(self) -> bool:
        """Whether it waits for somebody before it does anything."""
        return self.verdict.permission == "ask"


class CodexTools:
    """What one agent may use."""

    def __init__(self, agent: Json, policy: Policy) -> None:
        tools = agent.get("tools") or []
        self.custom = [tool for tool in tools if tool["type"] == "custom"]
        self._custom = {tool["name"] for tool in self.custom}
        self._policy = policy
        toolset = next((t for t in tools if t["type"] == "agent_toolset_20260401"), None)
        self.has_shell = self._verdict("bash").permission != "deny"
        self.has_pictures = self._verdict("read").permission == "allow"
        # The model's server searches without asking anybody.
        self.searches = self._verdict("web_search").permission == "allow"
        self.asks_questions = bool(toolset and toolset["default_config"]["enabled"])
        self.has_subagents = starts_subagents(agent) and SUBAGENT not in self._custom
        self.has_skills = bool(agent.get("skills"))
        self.servers = {
            _plain(s["name"], n): s for n, s in enumerate(agent.get("mcp_servers") or [])
        }
        """The MCP servers of its definition, by the names that Codex has for them."""

    def declared(self, *, subagents: bool = True) -> list[Json]:
        """The tools that Codex asks us to carry out, as it wants to be told about them."""
        starts = [_AGENT] if subagents and self.has_subagents else []
        return starts + [
            {
                "type": "function",
                "name": tool["name"],
                "description": tool["description"],
                "inputSchema": tool["input_schema"],
            }
            for tool in self.custom
        ]

    def call(self, item: Json, event_id: str) -> CodexCall:
        """The call in an item of the model's answer."""
        name, space = str(item.get("name")), str(item.get("namespace") or "")
        server = self.servers.get(space.removeprefix(_SPACE))
        if server is not None:
            tool, given = Tool("mcp", name, server["name"]), _arguments(item)
        elif space not in _PLAIN_SPACES:
            tool, given = Tool("builtin", f"{space}.{name}"), _arguments(item)
        else:
            tool, given = self._shown(name, _arguments(item))
        return CodexCall(str(item.get("call_id")), event_id, tool, given, self._judge(tool, given))

    def logged(self, event_id: str, type: str, fields: Json) -> CodexCall:
        """A call as the log has it."""
        tool = Tool("builtin", fields["name"])
        if type == "agent.custom_tool_use":
            custom = fields["name"] in self._custom
            tool = Tool("custom" if custom else "question", fields["name"])
        elif type == "agent.mcp_tool_use":
            tool = Tool("mcp", fields["name"], fields["mcp_server_name"])
        permission = fields.get("evaluated_permission", "ask")
        return CodexCall(event_id, event_id, tool, fields["input"], Verdict(permission))

    def is_judged_as(self, call: CodexCall, *names: str) -> bool:
        """Whether its verdict is that of one of these tools, so that what they do can be done on the strength of it."""
        known = call.tool.name in _OURS.values()
        itself = known or call.tool.name in _HARMLESS or call.tool.name == SUBAGENT
        judged = call.tool.name if itself else "bash"
        return call.tool.kind == "builtin" and judged in names

    def server_of(self, name: str) -> str:
        """Codex's name for an MCP server; an empty one if the agent no longer has it."""
        return next((ours for ours, each in self.servers.items() if each["name"] == name), "")

    def item_of(self, name: str, given: Json, call_id: str) -> Json:
        """A call as an item of the conversation, from its name and input in the log (`mcp_name`)."""
        server, found, tool = name.partition(_OF)
        item = _item_of(tool if found else name, given, call_id)
        return item | {"namespace": _SPACE + self.server_of(server)} if found else item

    def _shown(self, name: str, given: Json) -> tuple[Tool, Json]:
        if name in self._custom:
            return Tool("custom", name), given
        if name == _ASK:
            return Tool("question", QUESTION), {"questions": _questions(given)}
        theirs, ours = _RENAMED.get(name, ("", ""))
        if theirs in given:
            given = {ours: given[theirs]} | {n: v for n, v in given.items() if n != theirs}
        return Tool("builtin", _OURS.get(name, name)), given

    def _judge(self, tool: Tool, given: Json) -> Verdict:
        if tool.kind == "question" and not self.asks_questions:
            return Verdict("deny")
        if tool.kind != "builtin" or tool.name == SUBAGENT:
            return self._policy.judge(tool, given)
        if tool.name in _HARMLESS:
            return _ALLOWED
        # What it is not known to do, it may do: then it needs what a command needs.
        verdict = self._verdict(tool.name if tool.name in _OURS.values() else "bash")
        if tool.name == "edit" and _ADDS in str(given.get("patch")):
            verdict = max(verdict, self._verdict("write"), key=_rank)
        if tool.name == "bash" and verdict.permission == "ask" and given.get("tty"):
            return Verdict("deny", reason=_NO_TERMINAL)
        return verdict

    def _verdict(self, name: str) -> Verdict:
        return self._policy.judge(Tool("builtin", name), {})


def mcp_name(server: str, tool: str) -> str:
    """One name for a tool of an MCP server, which no other tool has."""
    return f"{server}{_OF}{tool}"


def _item_of(name: str, given: Json, call_id: str) -> Json:
    theirs = _theirs(name, given)
    if theirs == _PATCH:
        return {
            "type": "custom_tool_call",
            "name": _PATCH,
            "call_id": call_id,
            "input": str(given.get("patch")),
        }
    told, ours = _RENAMED.get(theirs, ("", ""))
    if ours in given:
        given = {told: given[ours]} | {n: v for n, v in given.items() if n != ours}
    arguments = json.dumps(given, ensure_ascii=False)
    return {"type": "function_call", "name": theirs, "call_id": call_id, "arguments": arguments}


def command_of(call: CodexCall) -> list[str] | None:
    """The command line that carries a call out, where Codex itself no longer can; None if there is none."""
    if call.tool.name == "bash" and isinstance(command := call.input.get("command"), str):
        return ["sh", "-c", 'exec bash -lc "$1" 2>&1', "sh", command]
    return None


def result_of(call: CodexCall, output: object) -> tuple[list[Json], bool]:
    """What Codex says of a call's outcome, as clients see it, and whether it failed."""
    if isinstance(output, list):
        blocks = [_block(part) for part in output if isinstance(part, dict)]
        timed = bool(blocks) and str(blocks[0].get("text")).startswith(_TIMES)
        return blocks[timed:], False
    text = str(output)
    if call.tool.name != "bash" or call.tool.kind != "builtin":
        return _text(text), text.startswith(("unsupported call", "failed", "error"))
    head, found, printed = text.partition("Output:\n")
    if not found or len(head) > _LONGEST_HEADER:
        return _text(text), True
    exited = head.partition("Process exited with code ")[2].partition("\n")[0]
    if exited in ("", "0"):  # without a code it still runs, and the head says how to reach it
        return _text((head if not exited else "") + printed.rstrip("\n")), False
    return _text(f"Exit code {exited}\n{printed}".rstrip("\n")), True


def answer_of(call: CodexCall, text: str) -> Json:
    """A client's answer to a question, as Codex wants it: by the questions' ids."""
    questions = call.input["questions"]
    answers = answers_to(questions, text)
    return {
        "answers": {
            str(each.get("id") or number): {"answers": [answers[each["question"]]]}
            for number, each in enumerate(questions)
            if each["question"] in answers
        }
    }


def _theirs(name: str, given: Json) -> str:
    if name == "bash":
        return _COMMAND if "command" in given else _STDIN
    return {"edit": _PATCH, "read": _PICTURE, QUESTION: _ASK}.get(name, name)


def _plain(name: str, number: int) -> str:
    """A server's name as Codex takes it: of letters, digits, `_` and `-`, and no other server's."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return plain if plain == name else f"{plain}_{number}"


def _arguments(item: Json) -> Json:
    if item.get("type") == "custom_tool_call":
        return {"patch" if item.get("name") == _PATCH else "input": item.get("input")}
    text = str(item.get("arguments") or "{}")
    try:
        given = msgspec.json.decode(text)
    except msgspec.DecodeError:
        given = None
    return given if isinstance(given, dict) else {"arguments": text}


def _questions(given: Json) -> list[Json]:
    asked = given.get("questions")
    return [
        {
            "question": str(each.get("question", "")),
            "header": str(each.get("header", "")),
            "multiSelect": False,
            "options": each.get("options") or [],
            "id": each.get("id"),
        }
        for each in (asked if isinstance(asked, list) else [])
        if isinstance(each, dict)
    ]


def strictness(call: CodexCall) -> int:
    """How much stands before a call: the higher, the more."""
    return _rank(call.verdict)


def _rank(verdict: Verdict) -> int:
    return _STRICT.index(verdict.permission)


def _block(part: Json) -> Json:
    url = str(part.get("image_url", ""))
    head, found, data = url.partition(";base64,")
    if found and head.startswith("data:"):
        source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
        return {"type": "image", "source": source}
    return {"type": "text", "text": str(part.get("text", ""))}


def _text(text: str) -> list[Json]:
    return [{"type": "text", "text": text}] if text else []
