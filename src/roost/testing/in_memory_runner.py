"""A session's log in memory, and a runner for it that can be cut off anywhere.

For tests that drive a harness without a store: see `harness_contract`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, get_args

import anyio
from anthropic.types.beta.sessions import BetaManagedAgentsSessionEvent
from msgspec.structs import replace
from pydantic import BaseModel

from roost.domain.events import Draft, Entry
from roost.domain.session import Pending, Session, Spec, State
from roost.domain.usage import Usage
from roost.ports.drafts import new_draft, trouble
from roost.ports.harness import (
    Brief,
    Conversation,
    Emit,
    Harness,
    Output,
    Show,
    StartMode,
    Trouble,
    TurnEnd,
)

AGENT: dict[str, Any] = {
    "type": "agent",
    "id": "agent_contract",
    "version": 1,
    "name": "contract",
    "model": {"id": "scripted"},
    "system": "You are being tested.",
    "tools": [
        {
            "type": "custom",
            "name": "lookup",
            "description": "Looks something up.",
            "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
        }
    ],
    "mcp_servers": [],
    "skills": [],
}

_SHAPES: dict[str, type[BaseModel]] = {
    get_args(shape.model_fields["type"].annotation)[0]: shape
    for shape in get_args(get_args(BetaManagedAgentsSessionEvent)[0])
}
_CONVERSATION = {
    "user.message",
    "user.custom_tool_result",
    "agent.message",
    "agent.tool_use",
    "agent.tool_result",
    "agent.custom_tool_use",
}

Watch = Callable[[Conversation, Output], Awaitable[None]]


def with_toolset(policy: str = "always_allow", *configs: dict[str, Any]) -> dict[str, Any]:
    """The agent with the built-in tools as well, all under one policy but those with configs."""
    toolset = {
        "type": "agent_toolset_20260401",
        "default_config": {"enabled": True, "permission_policy": {"type": policy}},
        "configs": list(configs),
    }
    return {**AGENT, "tools": [*AGENT["tools"], toolset]}


def with_subagents(agent: dict[str, Any]) -> dict[str, Any]:
    """The agent, which may start agents of its own."""
    inline = {"type": "enabled", "inline_agents": {"type": "enabled"}, "predefined_agents": []}
    off = {"type": "disabled"}
    multiagent = {"type": "multiagent_20261001", "subagents": inline}
    return {**agent, "multiagent": {**multiagent, "workflows": off, "advisor": off}}


def with_mcp(servers: Mapping[str, str]) -> dict[str, Any]:
    """The agent with MCP servers, name to address, whose tools ask first."""
    default = {"enabled": True, "permission_policy": {"type": "always_ask"}}
    toolsets = [
        {"type": "mcp_toolset", "mcp_server_name": n, "default_config": default, "configs": []}
        for n in servers
    ]
    listed = [{"type": "url", "name": name, "url": url} for name, url in servers.items()]
    return {**AGENT, "tools": toolsets, "mcp_servers": listed}


def script(*steps: dict[str, Any], say: str = "please") -> str:
    """A prompt that makes the scripted model play these steps."""
    return f"{say} SCRIPT{json.dumps(steps)}"


class InMemoryRunner:
    """A session with its log in memory, and the runner that drives it.

    It logs exactly as the core does, looks at every event as the official client would, and can be
    cut off at any output, as by a crash: `cut` is how many outputs it lives to see, and `logged`
    whether the last of them still gets to the log. What is said `meanwhile` is logged as late as may be: with the
    output after it.
    """

    def __init__(self, harness: Harness, agent: dict[str, Any] = AGENT, **spec: Any) -> None:
        self.entries: list[Entry] = []
        self.outputs: list[Output] = []
        self.pending: list[Pending] = []
        self.spent = Usage()
        self._harness = harness
        self._lives = 0
        self._session = Session(
            id="sesn_contract",
            tenant="contract",
            spec=Spec(agent=agent, environment_id="env_contract", **spec),
            state=State(thread_id="sthr_contract", agent_name="contract"),
            created_at=0,
            updated_at=0,
        )

    def change(self, **agent: Any) -> None:
        """The session's agent is another one from now on."""
        spec = self._session.spec
        self._session = replace(self._session, spec=replace(spec, agent={**spec.agent, **agent}))

    def say(self, text: str, *blocks: dict[str, Any], type: str = "user.message") -> Entry:
        """A message, waiting in the log: some text, and other blocks before it."""
        content = [*blocks, {"type": "text", "text": text}]
        return self._write(new_draft(type, content=content), queued=True)

    def withdraw(self, message: Entry) -> Entry:
        """An interrupt came before the agent got it."""
        return self._write(message.withdrawn_at(message.at), queued=False)

    def answer(self, call_id: str, text: str, *, is_error: bool = False) -> Entry:
        """A client's result for a custom tool; such inputs are never shown as waiting."""
        self.pending = [pending for pending in self.pending if pending.event_id != call_id]
        result = new_draft(
            "user.custom_tool_result",
            custom_tool_use_id=call_id,
            content=[{"type": "text", "text": text}],
            is_error=is_error,
        )
        return self._write(result)

    def bring(self, call_id: str, text: str) -> Entry:
        """A worker's result for a built-in tool."""
        self.pending = [pending for pending in self.pending if pending.event_id != call_id]
        content = [{"type": "text", "text": text}]
        return self._write(new_draft("user.tool_result", tool_use_id=call_id, content=content))

    def confirm(self, call_id: str, result: str = "allow", **fields: str) -> Entry:
        """A person's answer to a call that asks for permission."""
        self.pending = [pending for pending in self.pending if pending.event_id != call_id]
        given = {"tool_use_id": call_id, "result": result, **fields}
        return self._write(new_draft("user.tool_confirmation", **given), queued=True)

    def interrupted(self) -> None:
        """What the log says once the runner has taken an interrupt up: nothing waits any more."""
        self.pending = []
        self._write(new_draft("user.interrupt"))

    @asynccontextmanager
    async def open(self, *, ahead: bool = False) -> AsyncGenerator[Conversation, None]:
        """Start the agent, or start it again; `ahead` of anything that it is told."""
        self._lives += 1
        start = StartMode.of(resumed=self._lives > 1, ahead=ahead)
        async with self._harness.open(Brief(self._session, self._history, start)) as opened:
            yield opened

    async def run(self, *inputs: Entry, again: bool = False, **how: Any) -> dict[str, Any] | None:
        """A runner's whole life: open, one turn, close."""
        async with self.open() as conversation:
            return await self.turn(conversation, inputs, again=again, **how)

    async def turn(
        self,
        conversation: Conversation,
        inputs: Sequence[Entry],
        *,
        again: bool = False,
        cut: int | None = None,
        logged: bool = True,
        watch: Watch | None = None,
    ) -> dict[str, Any] | None:
        """Hand the inputs over and log what comes; gives the stop reason, or None if cut off."""
        if not again:
            for entry in inputs:
                self._take_up(entry)
        self.outputs = []
        unlogged: list[Output] = []
        with anyio.fail_after(300):  # it ends a test that hangs; a machine may be slow
            async with aclosing(conversation.turn(inputs, again=again)) as outputs:
                async for output in outputs:
                    self.outputs.append(output)
                    last = len(self.outputs) == cut
                    unlogged.append(output)
                    waits = isinstance(output, Emit) and output.meanwhile
                    if logged if last else not waits:
                        self._log(*unlogged)
                        unlogged = []
                    if last:
                        return None
                    if watch:
                        await watch(conversation, output)
        assert isinstance(self.outputs[-1], TurnEnd), "a turn ends with Rest"
        return self.outputs[-1].stop_reason

    @property
    def conversation(self) -> list[tuple[str, str]]:
        """What was said and done, without ids and times: what a second run must come to as well."""
        taken = [
            entry for entry in self.entries if entry.type in _CONVERSATION and not entry.queued
        ]
        return [(entry.type, _essence(entry.fields)) for entry in taken]

    def events(self, type: str) -> list[Entry]:
        """The entries of one type, in order."""
        return [entry for entry in self.entries if entry.type == type and not entry.queued]

    def texts(self) -> list[str]:
        """The texts of the agent's messages, in order."""
        return [text_of(entry) for entry in self.events("agent.message")]

    def shown(self) -> dict[str, list[str]]:
        """The previews of the last turn's messages: event id to texts, announcement included."""
        shown: dict[str, list[str]] = {}
        for output in self.outputs:
            if isinstance(output, Show) and output.type == "agent.message":
                shown.setdefault(output.event_id, []).append(output.text)
        return shown

    def troubles(self) -> list[str]:
        """How the failures of the last turn were judged."""
        return [output.retry for output in self.outputs if isinstance(output, Trouble)]

    def _take_up(self, entry: Entry) -> None:
        if entry.queued:
            self._write(entry.taken_up())

    def _log(self, *outputs: Output) -> None:
        for output in outputs:
            match output:
                case Emit(drafts, spent, blocks, unblocks=unblocks):
                    for draft in drafts:
                        self._check(self._write(draft))
                    kept = [pending for pending in self.pending if pending.event_id not in unblocks]
                    self.pending = [*kept, *blocks]
                    self.spent = self.spent.plus(spent or Usage())
                case Trouble(error, message, retry):
                    self._check(self._write(trouble(error, message, retry)))
                case Show() | TurnEnd():
                    pass

    def _write(self, draft: Draft, *, queued: bool = False) -> Entry:
        entry = Entry(len(self.entries) + 1, draft.id, draft.type, draft.body, 0, queued)
        self.entries.append(entry)
        return entry

    def _check(self, entry: Entry) -> None:
        """The official client must find every field it expects, and no other; `roost.*` is ours."""
        if entry.type.startswith("roost."):
            return
        event = _SHAPES[entry.type].model_validate_json(entry.json(), strict=True)
        assert not event.model_extra, f"{entry.type} has fields of its own: {event.model_extra}"

    async def _history(self) -> AsyncIterator[Entry]:
        for entry in list(self.entries):
            yield entry


def text_of(entry: Entry) -> str:
    """The text of a message, all of its blocks together."""
    return "".join(block["text"] for block in entry.fields["content"])


def _essence(fields: dict[str, Any]) -> str:
    kept = {name: value for name, value in fields.items() if not name.endswith("_id")}
    return json.dumps(kept, sort_keys=True)
