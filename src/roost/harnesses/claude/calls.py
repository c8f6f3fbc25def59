"""The tool calls of a conversation: which are open, which wait for whom, and what the CLI is told.

The CLI asks before each call, and asks us to run custom tools. It is answered at once where the
policy or a recorded answer decides; else the question stays open until a client's answer comes, for
as long as the process lives. A call lost with a process is recognised by its tool and input when the
agent makes it again: it keeps its event, and its answer, so nobody is asked twice.
"""

from __future__ import annotations

import msgspec

from roost.domain.events import Entry
from roost.harnesses.claude.tools import Toolbox, reply
from roost.harnesses.claude.wire import CanUseTool, McpMessage
from roost.harnesses.confinement import ToolRefused
from roost.harnesses.content import as_mcp, as_text
from roost.harnesses.json_lines import Json
from roost.harnesses.logged_past import ANSWERS, UNKNOWN
from roost.harnesses.permissions import SUBAGENT, Policy, Tool, Verdict
from roost.harnesses.questions import answers_to
from roost.harnesses.stable_ids import StableIds

_TOOL_USE_ID = "claudecode/toolUseId"


class ToolCall(msgspec.Struct, frozen=True):
    """A call the agent has made. `name` is the CLI's name of the tool; `parent` what the CLI calls the call that has
    started the subagent which made it, if it was one.
    """

    event_id: str
    tool: Tool
    name: str
    input: Json
    verdict: Verdict
    parent: str | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for somebody before it does anything."""
        return self.verdict.permission == "ask"


class ControlReply(msgspec.Struct, frozen=True):
    """What to answer to a request of the CLI."""

    request_id: str
    response: Json


class _Asking(msgspec.Struct, frozen=True):
    request_id: str
    question: CanUseTool | McpMessage


class ToolCalls:
    """The calls one process of the CLI knows about.

    `open` has those without a result, by the CLI's id, in the order they were made.
    """

    def __init__(self, ids: StableIds, toolbox: Toolbox, policy: Policy) -> None:
        self.open: dict[str, ToolCall] = {}
        self._ids = ids
        self._toolbox = toolbox
        self._policy = policy
        self._made: dict[str, ToolCall] = {}
        self._answers: dict[str, Entry] = {}
        self._asking: dict[str, _Asking] = {}
        self._asked: set[str] = set()
        self._running: set[str] = set()
        self._lost: dict[tuple[Tool, str], str] = {}
        self._refused: dict[str, str] = {}
        self._settled: set[str] = set()
        self._doubted: dict[tuple[Tool, str], str] = {}
        self._subagents: dict[str, str] = {}

    @property
    def unanswered(self) -> list[str]:
        """The events of open calls that somebody still has to answer."""
        return [
            call.event_id
            for call in self.open.values()
            if call.waits and call.event_id not in self._answers
        ]

    @property
    def stuck(self) -> bool:
        """Whether the CLI waits for an answer, and nothing else is going on. A subagent goes on as long as one of
        its calls runs, or none of them waits.
        """
        subagents = {id for id in self._running if self.starts_subagent(id)}
        waiting = {call.parent for call in self.open.values() if call.event_id in self._asking}
        return bool(self._asking) and subagents == self._running and subagents <= waiting

    def starts_subagent(self, tool_use_id: str) -> bool:
        """Whether this is an open call that starts a subagent."""
        call = self.open.get(tool_use_id)
        return call is not None and call.name == SUBAGENT

    def begun(self, agent_id: str, parent: str) -> bool:
        """Note which call has started a subagent; whether that is new."""
        new = agent_id not in self._subagents
        self._subagents[agent_id] = parent
        return new

    def left_by(self, parent: str) -> list[tuple[str, ToolCall]]:
        """The open calls of a subagent, with the CLI's ids."""
        return [(id, call) for id, call in self.open.items() if call.parent == parent]

    def make(
        self, tool_use_id: str, name: str, given: Json, parent: str | None = None
    ) -> tuple[ToolCall, bool]:
        """Note a call; True with it if its event is new, False if the agent repeats a lost call."""
        if tool_use_id in self._made:
            return self._made[tool_use_id], True
        tool = self._toolbox.of(name)
        same = (tool, _key(given))
        verdict = self._policy.judge(tool, given)
        if same in self._doubted:  # nobody need be asked about what will not be done
            reason = self._refused[tool_use_id] = self._doubted.pop(same)
            verdict = Verdict("deny", reason=reason)
        lost = self._lost.pop(same, None)
        event_id = lost or self._ids.call(tool_use_id)
        call = ToolCall(event_id, tool, name, given, verdict, parent)
        self._made[tool_use_id] = self.open[tool_use_id] = call
        return call, lost is None

    def returned(self, tool_use_id: str) -> ToolCall | None:
        """Note that a call has its result; None if that is nothing new."""
        call = self._made.get(tool_use_id)
        if tool_use_id in self._settled:
            return None
        if call is not None:
            self.open.pop(tool_use_id, None)
            self._running.discard(tool_use_id)
            self._asking.pop(call.event_id, None)
        return call

    def never_asked(self, tool_use_id: str) -> bool:
        """Whether a call waits for somebody though the CLI has not asked: its input may be one that the
        tool does not take, which the CLI tells the agent by itself.
        """
        call = self._made.get(tool_use_id)
        waits = call is not None and call.waits and call.event_id not in self._answers
        return waits and tool_use_id not in self._asked

    def prompted(self) -> None:
        """Note that a new prompt was given: what was open before it stays open for ever."""
        self.open.clear()
        self._asking.clear()
        self._running.clear()

    def under_way(self) -> dict[str, ToolCall]:
        """The open calls that the CLI may have begun: no client has to do anything for them."""
        return {
            tool_use_id: call
            for tool_use_id, call in self.open.items()
            if not call.tool.answered_by_client
            and (not call.waits or call.event_id in self._answers)
        }

    def settle(self, tool_use_id: str) -> None:
        """Take a call for done, come what may: if the CLI still wants to make it, it may not."""
        self.open.pop(tool_use_id, None)
        self._settled.add(tool_use_id)
        self._refused[tool_use_id] = UNKNOWN

    def lose(self, call: ToolCall) -> None:
        """Expect the agent to make this call again: the process that made it is gone."""
        self._lost[call.tool, _key(call.input)] = call.event_id

    def doubt(self, call: ToolCall, reason: str) -> None:
        """If the agent makes this call again, refuse it once: it may have run, and the agent has only
        been told so in passing. An agent that then insists has been warned.
        """
        self._doubted[call.tool, _key(call.input)] = reason

    def logged(self, entry: Entry) -> ToolCall:
        """A call as the log has it, which does not know the CLI's name for it."""
        fields = entry.fields
        tool = self._toolbox.logged(entry.type, fields)
        verdict = self._policy.judge(tool, fields["input"])
        return ToolCall(entry.id, tool, fields["name"], fields["input"], verdict)

    def answer(self, entry: Entry) -> ControlReply | None:
        """Take a client's answer; gives what the CLI waits for, if it waits."""
        event_id = entry.fields[ANSWERS[entry.type]]
        self._answers[event_id] = entry
        asking = self._asking.pop(event_id, None)
        if asking is None:
            return None
        if isinstance(asking.question, CanUseTool):
            return self.permission(asking.request_id, asking.question)
        return self.result(asking.request_id, asking.question)

    def permission(self, request_id: str, asked: CanUseTool) -> ControlReply | None:
        """The answer to a request for permission; None if somebody has to be asked first."""
        self._asked.add(asked.tool_use_id)
        parent = self._subagents.get(asked.agent_id or "")
        call, _ = self.make(asked.tool_use_id, asked.tool_name, asked.input, parent)
        reason = self._refused.get(asked.tool_use_id)
        decision = _deny(reason) if reason else self._decision(call, asked.input)
        if decision is None:
            self._asking[call.event_id] = _Asking(request_id, asked)
            return None
        if call.tool.kind != "custom" and not reason:
            self._running.add(asked.tool_use_id)
        return ControlReply(request_id, decision)

    def result(self, request_id: str, asked: McpMessage) -> ControlReply | None:
        """The result of a custom tool; None if no client has brought it yet."""
        found = self._custom_call(asked.message)
        if found is None:
            gone = {"code": -32602, "message": "No call of a tool of that name is open."}
            return ControlReply(
                request_id, {"mcp_response": {**reply(asked.message, {}), "error": gone}}
            )
        tool_use_id, call = found
        entry = self._answers.get(call.event_id)
        if entry is None:
            self._asking[call.event_id] = _Asking(request_id, asked)
            return None
        self._running.add(tool_use_id)
        fields = entry.fields
        outcome = {
            "content": as_mcp(fields.get("content")),
            "isError": bool(fields.get("is_error")),
        }
        return ControlReply(request_id, {"mcp_response": reply(asked.message, outcome)})

    def withdrawn(self, request_id: str) -> None:
        """Note that the CLI no longer wants an answer."""
        for event_id, asking in list(self._asking.items()):
            if asking.request_id == request_id:
                del self._asking[event_id]

    def answer_of(self, call: ToolCall) -> Entry | None:
        """The client's answer to a call, if it has come."""
        return self._answers.get(call.event_id)

    def _decision(self, call: ToolCall, given: Json) -> Json | None:
        if call.verdict.permission == "deny":
            reason = call.verdict.reason
            return _deny(reason or f"Permission to use {call.tool.name} has been denied.")
        try:
            # Again: links may have changed since, or whoever allowed it has changed the input.
            given = self._policy.confined(call.tool, self._as_allowed(call, given))
        except ToolRefused as refusal:
            return _deny(str(refusal))
        if call.tool.kind == "custom" or call.verdict.permission == "allow":
            return _allow(given)  # a custom tool's call itself comes to us next
        entry = self._answers.get(call.event_id)
        if entry is None:
            return None
        if call.tool.kind == "question":
            return _answered(entry, given)
        return _confirmed(entry, call, given)

    def _as_allowed(self, call: ToolCall, given: Json) -> Json:
        """The input as somebody wants it who has allowed the call, if they have changed it."""
        entry = self._answers.get(call.event_id)
        changed: Json | None = None if entry is None else entry.fields.get("modified_input")
        return given if changed is None else changed

    def _custom_call(self, message: Json) -> tuple[str, ToolCall] | None:
        params = message.get("params") or {}
        named = (params.get("_meta") or {}).get(_TOOL_USE_ID)
        for tool_use_id, call in self.open.items():
            same = tool_use_id == named if named else call.tool.name == params.get("name")
            if call.tool.kind == "custom" and same and call.event_id not in self._asking:
                return tool_use_id, call
        return None


def _answered(entry: Entry, given: Json) -> Json:
    fields = entry.fields
    said = as_text(fields.get("content"))
    if fields.get("is_error"):
        return _deny(said or "The question was not answered.")
    questions = given.get("questions")
    answers = answers_to(questions if isinstance(questions, list) else [], said)
    return _allow({**given, "answers": answers})


def _confirmed(entry: Entry, call: ToolCall, given: Json) -> Json:
    fields = entry.fields
    if fields["result"] == "allow":
        return _allow(given)
    return _deny(fields.get("deny_message") or f"The user did not allow {call.tool.name}.")


def _allow(given: Json) -> Json:
    return {"behavior": "allow", "updatedInput": given}


def _deny(message: str) -> Json:
    return {"behavior": "deny", "message": message}


def _key(given: Json) -> str:
    return msgspec.json.encode(given, order="deterministic").decode()
