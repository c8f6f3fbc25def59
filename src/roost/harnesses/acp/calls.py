"""The tool calls of an agent: what the API calls them, who decides about them, and which have no result yet.

The protocol has no names for tools: an agent sends a kind (`execute`), a title for people, and its own input.
The event of a call has the names that a client of Claude Code's sessions knows, as far as there is one. It is
logged when the call is certain: when the agent asks for permission, or begins to run it.

Permission is asked by the agent, and answered here by the policy of its definition, or by a person. The answer
has no room for a reason: what was refused, and why, the agent is told in a prompt, when it has stopped for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from roost.domain.events import Draft, Entry
from roost.domain.session import Pending
from roost.harnesses.acp.wire import Json, PermissionParams, SessionUpdate
from roost.harnesses.content import blocks_of_result, text_block
from roost.harnesses.permissions import Policy, Tool, Verdict
from roost.harnesses.stable_ids import StableIds
from roost.ports.drafts import new_event_id
from roost.ports.harness import Emit

INTERRUPTED: Final = "This call was interrupted before it returned a result."
NOT_RUN: Final = "This call was not run: the session was restarted while it waited for an answer."
NOT_MADE_AGAIN: Final = "This call was not run: the session was restarted while it waited for an answer, and the agent has not made it again."
_DENIED: Final = "Permission to use this tool has been denied."
_OVER: Final = ("completed", "failed")
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]*")
_NAMES: Final[Mapping[str, str]] = {  # what agents call the tools that the API has a name for
    "bash": "bash",
    "shell": "bash",
    "run_shell_command": "bash",
    "read": "read",
    "read_file": "read",
    "write": "write",
    "write_file": "write",
    "edit": "edit",
    "multiedit": "edit",
    "replace": "edit",
    "glob": "glob",
    "grep": "grep",
    "search_file_content": "grep",
    "webfetch": "web_fetch",
    "web_fetch": "web_fetch",
    "websearch": "web_search",
    "web_search": "web_search",
    "google_web_search": "web_search",
}
_KINDS: Final[Mapping[str, str]] = {
    "execute": "bash",
    "read": "read",
    "edit": "edit",
    "search": "grep",
    "fetch": "web_fetch",
}
_FIELDS: Final[Mapping[str, str]] = {  # of inputs, where Claude Code's own word is another
    "filePath": "file_path",
    "absolute_path": "file_path",
    "oldString": "old_string",
    "newString": "new_string",
    "replaceAll": "replace_all",
}


def tool_of(update: SessionUpdate, servers: Mapping[str, str]) -> Tool | None:
    """The tool that a call is of; None while nobody can tell. `servers` are the agent's MCP servers."""
    name = _name_of(update) or (
        update.title if update.title and _WORD.fullmatch(update.title) else None
    )
    if name is None:
        known = _KINDS.get(update.kind or "")
        return Tool("builtin", known) if known else None
    for server in sorted(servers, key=len, reverse=True):
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", server)
        for prefix in (f"mcp__{plain}__", f"{plain}_", f"{server}/"):
            if name.startswith(prefix):
                return Tool("mcp", name.removeprefix(prefix), server)
    return Tool("builtin", _NAMES.get(name.lower(), name))


def _name_of(update: SessionUpdate) -> str | None:
    """The name that some agents add, also for clients that know them, as `_meta.claudeCode.toolName`."""
    if update.name:
        return update.name
    for theirs in (update.meta or {}).values():
        if isinstance(theirs, dict) and isinstance(theirs.get("toolName"), str):
            return str(theirs["toolName"])
    return None


def input_of(tool: Tool, given: object) -> Json:
    """The input of a call, with the names of fields that a client of Claude Code's sessions knows."""
    if not isinstance(given, dict):
        return {} if given is None else {"input": given}
    if tool.kind != "builtin" or tool.name not in _NAMES.values():
        return given
    named = {_FIELDS.get(name, name): value for name, value in given.items()}
    if tool.name == "bash":  # where it runs is always the same, and one agent adds it later
        named.pop("cwd", None)
    return named


class AcpCall(msgspec.Struct):
    """A call that the agent has made, as far as it is known."""

    id: str
    event_id: str
    tool: Tool = Tool("builtin", "other")
    input: Json = {}
    verdict: Verdict = Verdict("allow")
    is_logged: bool = False
    is_over: bool = False
    refused: str | None = None
    """Why it may not be made, if it may not."""

    @property
    def waits(self) -> bool:
        """Whether it waits for somebody before it does anything."""
        return self.verdict.permission == "ask"

    @property
    def key(self) -> tuple[Tool, str]:
        """What makes it the same call as another one. What it is for, agents say in other words each time."""
        given = {name: value for name, value in self.input.items() if name != "description"}
        return self.tool, msgspec.json.encode(given, order="deterministic").decode()

    def made(self) -> Emit:
        """The event of the call."""
        self.is_logged = True
        fields: Json = {"name": self.tool.name, "input": self.input, **self.verdict.fields()}
        if self.tool.kind == "mcp":
            fields["mcp_server_name"] = self.tool.server
        draft = Draft.of(f"agent.{self._prefix}tool_use", self.event_id, **fields)
        blocks = [Pending(self.event_id, "confirmation")] if self.waits else []
        return Emit([draft], blocks=blocks)

    def returned(self, content: object, *, is_error: bool, unblocks: bool = False) -> Emit:
        """The event of its result."""
        self.is_over = True
        return Emit(
            [result_event(self, content, is_error=is_error)],
            unblocks=[self.event_id] if unblocks else [],
        )

    @property
    def _prefix(self) -> str:
        return "mcp_" if self.tool.kind == "mcp" else ""


def result_event(call: AcpCall, content: object, *, is_error: bool) -> Draft:
    """The event of what a call has come to."""
    prefix = "mcp_" if call.tool.kind == "mcp" else ""
    fields = {
        f"{prefix}tool_use_id": call.event_id,
        "content": blocks_of_result(content),
        "is_error": is_error,
    }
    return Draft.of(f"agent.{prefix}tool_result", new_event_id(), **fields)


class _Asking(msgspec.Struct, frozen=True):
    request_id: int | str
    asked: PermissionParams


class PermissionReply(msgspec.Struct, frozen=True):
    """What to answer to a request for permission."""

    request_id: int | str
    response: Json


class AcpCalls:
    """The calls that one process of the agent knows about. `logged` are the ids of all events of the log."""

    def __init__(
        self,
        ids: StableIds,
        policy: Policy,
        servers: Mapping[str, str],
        logged: set[str],
        *,
        asks: bool,
    ) -> None:
        self.asks = asks
        """Whether the agent asks before every call: then one it calls begun may still wait for that."""
        self.denials: list[str] = []
        """What was refused since the last prompt, in words for the agent."""
        self._ids = ids
        self._policy = policy
        self._servers = servers
        self._logged = logged
        self._calls: dict[str, AcpCall] = {}
        self._answers: dict[str, Entry] = {}
        self._asking: dict[str, _Asking] = {}
        self._lost: dict[tuple[Tool, str], AcpCall] = {}
        self._doubted: dict[tuple[Tool, str], str] = {}

    @property
    def open(self) -> list[AcpCall]:
        """Those that are logged and have no result, in the order they were made."""
        return [call for call in self._calls.values() if call.is_logged and not call.is_over]

    @property
    def unanswered(self) -> list[str]:
        """The events of calls that somebody still has to answer."""
        return [event_id for event_id in self._asking if event_id not in self._answers]

    @property
    def stuck(self) -> bool:
        """Whether the agent waits for an answer, and nothing else is going on."""
        return bool(self._asking) and all(call.event_id in self._asking for call in self.open)

    def note(self, update: SessionUpdate) -> AcpCall:
        """Take down what an update says about a call."""
        call = self._calls.get(update.tool_call_id)
        if call is None or call.is_over:
            event_id = self._ids.call(update.tool_call_id)
            taken = event_id in self._logged or call is not None  # some agents count anew
            call = AcpCall(update.tool_call_id, new_event_id() if taken else event_id)
            self._calls[call.id] = call
        if call.is_logged:
            return call
        if call.tool.name == "other" or _name_of(update):
            call.tool = tool_of(update, self._servers) or call.tool
        if isinstance(update.raw_input, dict) and update.raw_input:
            call.input = {**call.input, **input_of(call.tool, update.raw_input)}
        return call

    def log(self, call: AcpCall, *, asked: bool) -> list[Emit]:
        """The event of a call that is certain now; none if it has one.

        One that was `asked` for is judged by the policy; one that was not runs already. One that repeats a call
        which was lost while it waited keeps the event of that.
        """
        if call.is_logged:
            return []
        if asked:
            call.verdict = self._policy.judge(call.tool, call.input)
            if call.verdict.permission == "deny":
                call.refused = call.verdict.reason or _DENIED
            if call.key in self._doubted:  # nobody need be asked about what will not be done
                call.refused = self._doubted.pop(call.key)
                call.verdict = Verdict("deny", reason=call.refused)
        lost = self._lost.pop(call.key, None)
        self._logged.add(call.event_id)
        if lost is not None:
            call.event_id, call.is_logged = lost.event_id, True
            return []
        return [call.made()]

    def asked(self, request_id: int | str, asked: PermissionParams) -> tuple[list[Emit], bool]:
        """Take a request for permission: what is to be logged, and whether it can be answered at once."""
        update = asked.call
        if update is None:
            return [], False
        call = self.note(update)
        emits = self.log(call, asked=True)
        self._asking[call.event_id] = _Asking(request_id, asked)
        return emits, True

    def replies(self) -> list[PermissionReply]:
        """The answers to what is asked, as far as they are known now."""
        found = []
        for call in self.open:
            asking = self._asking.get(call.event_id)
            if asking is None or (allowed := self._decision(call)) is None:
                continue
            del self._asking[call.event_id]
            if not allowed:
                said = call.refused or _DENIED
                self.denials.append(
                    f"{call.tool.name} {msgspec.json.encode(call.input).decode()}: {said}"
                )
            found.append(PermissionReply(asking.request_id, _outcome(asking.asked, allowed)))
        return found

    def answer(self, entry: Entry) -> None:
        """Take a person's answer down."""
        self._answers[entry.fields["tool_use_id"]] = entry

    def cancelled(self) -> list[PermissionReply]:
        """The answers to all that is asked, when the turn is to stop."""
        asking, self._asking = self._asking, {}
        outcome = {"outcome": {"outcome": "cancelled"}}
        return [PermissionReply(each.request_id, outcome) for each in asking.values()]

    def lose(self, call: AcpCall) -> None:
        """Expect the agent to make this call again: the process that made it is gone."""
        self._lost[call.key] = call

    def not_made_again(self) -> list[AcpCall]:
        """Those that were expected again, and have not come; they are expected no more."""
        lost, self._lost = self._lost, {}
        return list(lost.values())

    def doubt(self, call: AcpCall, reason: str) -> None:
        """If the agent makes this call again, refuse it once: it may have run."""
        self._doubted[call.key] = reason

    def past(self, entry: Entry) -> AcpCall:
        """A call as the log has it."""
        fields = entry.fields
        is_mcp = entry.type == "agent.mcp_tool_use"
        tool = (
            Tool("mcp", fields["name"], fields["mcp_server_name"])
            if is_mcp
            else Tool("builtin", fields["name"])
        )
        permission = fields.get("evaluated_permission", "allow")
        return AcpCall(
            entry.id, entry.id, tool, fields["input"], Verdict(permission), is_logged=True
        )

    def _decision(self, call: AcpCall) -> bool | None:
        if call.refused is not None:
            return False
        if not call.waits:
            return True
        entry = self._answers.get(call.event_id)
        if entry is None:
            return None
        changed = entry.fields.get("modified_input")
        if entry.fields["result"] == "allow" and changed in (None, call.input):
            return True
        if entry.fields["result"] == "allow":  # the protocol has no way to change it
            other = msgspec.json.encode(changed).decode()
            call.refused = (
                f"It is allowed with another input only: make the call again with {other}"
            )
            return False
        call.refused = (
            entry.fields.get("deny_message") or f"The user did not allow {call.tool.name}."
        )
        return False


def _outcome(asked: PermissionParams, allowed: bool) -> Json:
    """Only this one call is allowed, never those after it: each is asked for. One without an option for that is
    cancelled.
    """
    option = (
        asked.option("allow_once", "allow_always")
        if allowed
        else asked.option("reject_once", "reject_always")
    )
    if option is None:
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": option}}


def content_of(update: SessionUpdate) -> Any:
    """What a call has returned: as the tool said it, if the agent passes that on, else as it shows it."""
    match update.raw_output:
        case str(text) if text:
            return text
        case {"output": str(text)} | {"error": str(text)}:
            return text
        case [*blocks] if blocks and all(isinstance(b, dict) and "type" in b for b in blocks):
            return blocks
    shown = update.content if isinstance(update.content, list) else []
    return [_shown(part) for part in shown if isinstance(part, dict)]


def _shown(part: Json) -> Json:
    match part:
        case {"type": "content", "content": {"type": "text", "text": str(text)}}:
            return text_block(text)
        case {
            "type": "content",
            "content": {"type": "image", "data": str(data), "mimeType": str(kind)},
        }:
            return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}
        case {"type": "diff", "path": str(path)}:
            return text_block(f"{path} was changed.")
        case _:
            return text_block(msgspec.json.encode(part).decode())


def is_over(update: SessionUpdate) -> bool:
    """Whether an update is the last of its call."""
    return update.status in _OVER


def cut_off(text: str) -> bool:
    """Whether a failed call failed only because its process ended."""
    return any(word in text.lower() for word in ("abort", "interrupt", "cancel"))
