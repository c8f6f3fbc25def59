"""What an answer of the model comes to: the answer to the letter, the events that show it, and what they wait for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from roost.domain.events import Draft
from roost.domain.session import Pending
from roost.harnesses.messages.journal import ANSWER
from roost.harnesses.messages.request import THOUGHTS
from roost.harnesses.messages.tools import AgentTools, ToolAnswer
from roost.harnesses.messages_api import AnswerPart, ModelAnswer
from roost.harnesses.permissions import Json, Policy, Tool, Verdict
from roost.harnesses.questions import check_questions
from roost.harnesses.retries import ModelFailure
from roost.ports.drafts import new_draft
from roost.ports.harness import Emit

_BROKEN = "INVALID_JSON"
_FOUND = "web_search_tool_result"


class AnswerEvents:
    """Makes the events of the answers of one agent's model."""

    def __init__(self, toolbox: AgentTools, policy: Policy) -> None:
        self._toolbox = toolbox
        self._policy = policy

    def of(self, answer: ModelAnswer, end: Draft, head: str) -> Emit:
        """All that follows from an answer, in one commit. An answer that was cut short counts as far as it is
        said; calls are made only if the model stopped to have them made. `head`: the digest of what it was given to.
        """
        parts = [part for part in answer.content if _counts(part, answer)]
        calls = [_Call(part, self._toolbox, self._policy) for part in parts if _is_call(part)]
        by_part = {call.part.id: call for call in calls}
        journaled = _journaled(answer, parts, calls, head)
        shown = [draft for part in parts for draft in _shown(part, by_part.get(part.id), parts)]
        return Emit(
            [journaled, *shown, end, *_denials(calls)],
            spent=answer.usage,
            blocks=[call.pending for call in calls if call.pending is not None],
        )


class _Call:
    """A call in an answer, and what is to happen to it."""

    def __init__(self, part: AnswerPart, toolbox: AgentTools, policy: Policy) -> None:
        self.part = part
        self.tool = toolbox.of(part.name)
        self._by_worker = toolbox.by_worker
        try:
            self.input = part.arguments()
            said = self._fault(toolbox)
        except ModelFailure:  # only this call came to nothing
            self.input, said = {_BROKEN: part.text}, "its input is not a JSON object"
        self.verdict = policy.judge(self.tool, self.input)
        if said is not None:
            self.verdict = Verdict("deny", reason=f"{part.name} was not run: {said}.")

    def _fault(self, toolbox: AgentTools) -> str | None:
        """What is wrong with the call, whatever the policies say."""
        if self.tool.kind == "builtin" and self.tool.name not in toolbox.built_in:
            return "this agent has no such tool"
        try:
            if self.tool.kind == "question":
                check_questions(self.input)
        except msgspec.ValidationError as error:
            return str(error)
        return None

    @property
    def block(self) -> Json:
        """The call as the model is told of it again."""
        return {**self.part.start, "input": self.input}

    @property
    def pending(self) -> Pending | None:
        """What the session waits for before the call is made, or until a worker has made it."""
        asks = self.verdict.permission == "ask"
        if self.tool.kind == "builtin" and self.tool.name in self._by_worker:
            if self.verdict.permission == "deny":
                return None
            return Pending(self.part.id, "gated_tool" if asks else "tool")
        if not asks:
            return None
        if self.tool.answered_by_client:
            return Pending(self.part.id, "custom_tool", offered=bool(self._by_worker))
        return Pending(self.part.id, "confirmation")

    def event(self) -> Draft:
        """The call as clients see it."""
        fields: Json = {"name": self.tool.name, "input": self.input}
        if self.tool.answered_by_client:
            return Draft.of("agent.custom_tool_use", self.part.id, **fields)
        fields |= self.verdict.fields()
        if self.tool.kind == "mcp":
            fields["mcp_server_name"] = self.tool.server
            return Draft.of("agent.mcp_tool_use", self.part.id, **fields)
        return Draft.of("agent.tool_use", self.part.id, **fields)


def _journaled(
    answer: ModelAnswer, parts: Sequence[AnswerPart], calls: Sequence[_Call], head: str
) -> Draft:
    blocks = {call.part.id: call.block for call in calls}
    usage = answer.usage
    return new_draft(
        ANSWER,
        head=head,
        message_id=answer.message_id,
        stop_reason=answer.stop_reason,
        content=[blocks.get(part.id) or part.block() for part in parts],
        events=[part.id for part in parts],
        calls={str(call.part.start.get("id")): call.part.id for call in calls},
        tokens=usage.input_tokens
        + usage.cache_creation_input_tokens
        + usage.cache_read_input_tokens
        + usage.output_tokens,
    )


def _denials(calls: Sequence[_Call]) -> list[Draft]:
    """Results of calls that are not made, whatever anybody says."""
    denied = []
    for call in calls:
        if call.verdict.permission == "deny":
            reason = call.verdict.reason or f"Permission to use {call.tool.name} has been denied."
            denied.append(result_of(call.tool, call.part.id, ToolAnswer.error(reason)))
    return denied


def result_of(tool: Tool, call_id: str, answer: ToolAnswer) -> Draft:
    """The event with the result of a call."""
    said = {"content": answer.content, "is_error": answer.is_error}
    if tool.kind == "mcp":
        return new_draft("agent.mcp_tool_result", mcp_tool_use_id=call_id, **said)
    return new_draft("agent.tool_result", tool_use_id=call_id, **said)


def _is_call(part: AnswerPart) -> bool:
    return part.kind == "tool_use"


def _counts(part: AnswerPart, answer: ModelAnswer) -> bool:
    """Whether a block is kept. What has no letter in it, and thoughts that are not signed, no model takes back."""
    if _is_call(part):
        return answer.complete and answer.stop_reason == "tool_use"
    if part.kind == "text":
        return bool(part.text.strip())
    if part.kind == "server_tool_use":  # a search that nobody waits for any more has no result
        return answer.complete or any(_is_result_of(each, part) for each in answer.content)
    return part.kind != "thinking" or answer.complete or bool(part.more.get("signature"))


def _is_result_of(part: AnswerPart, search: AnswerPart) -> bool:
    is_pair = part.kind == _FOUND and search.kind == "server_tool_use"
    return is_pair and part.start.get("tool_use_id") == search.start.get("id")


def _shown(part: AnswerPart, call: _Call | None, beside: Sequence[AnswerPart]) -> list[Draft]:
    """The events of a block; none if clients are not shown it."""
    if call is not None:
        return [call.event()]
    if part.kind in THOUGHTS:
        return [Draft.of("agent.thinking", part.id)]
    if part.kind == "text":
        return [Draft.of("agent.message", part.id, content=[{"type": "text", "text": part.text}])]
    return _searched(part, beside) if part.kind == _FOUND else []


def _searched(part: AnswerPart, beside: Sequence[AnswerPart]) -> list[Draft]:
    """A search of the model's server, which is over when we hear of it. Its beginning may be in the answer before."""
    asked = next((each for each in beside if _is_result_of(part, each)), None)
    call = Draft.of(
        "agent.tool_use",
        part.id,
        name="web_search",
        input={} if asked is None else asked.block()["input"],
        evaluated_permission="allow",
    )
    found = part.start.get("content")
    if isinstance(found, list):
        pages = [f"{each.get('title')}\n{each.get('url')}" for each in found if "url" in each]
        answer = ToolAnswer.text("\n\n".join(pages) or "nothing was found")
    else:
        code = found.get("error_code") if isinstance(found, dict) else None
        answer = ToolAnswer.error(f"web_search: {code or 'it has failed'}")
    return [call, result_of(Tool("builtin", "web_search"), call.id, answer)]
