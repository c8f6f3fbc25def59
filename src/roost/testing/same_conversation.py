"""One conversation, and what of it a client sees that reads only `agent.*` and `session.*`.

It is the same whichever agent a session has, to the letter: no client need know the harness. `PARTS` is the
conversation, in order; a part that takes an ability is left out for a harness that does not declare it. Where else
a harness may differ is in `DIFFERENCES`, which `docs/harnesses.md` prints, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from roost.testing.in_memory_runner import script

Json = dict[str, Any]

_ID: Final = re.compile(r"(sevt|sthr|sesn)_\w+")
_LONG: Final = " ".join(f"word{n}" for n in range(1000))
_BUILT_IN: Final = "agent_toolset_20260401"
_CUSTOM: Final = {
    "type": "custom",
    "name": "lookup",
    "description": "Looks something up.",
    "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
}


def tools(policy: str, *, custom: bool) -> list[Json]:
    """The tools of the agent: the built-in ones under this policy, and a `custom` one that the client carries out."""
    default = {"enabled": True, "permission_policy": {"type": policy}}
    built_in = {"type": _BUILT_IN, "default_config": default}
    return [_CUSTOM, built_in] if custom else [built_in]


class ComparedClient(Protocol):
    """A client of the session, and what it knows of the agent's program."""

    @property
    def custom_tools(self) -> bool:
        """Whether the agent may have tools that a client carries out."""
        ...

    def runs(self, command: str) -> Json:
        """A step of a script in which the agent runs this command of a shell."""
        ...

    def send(self, *events: Json) -> None:
        """Send events, and wait until the session is idle again."""
        ...

    def interrupt(self, text: str, *, begun: str | None) -> None:
        """Say something and interrupt it: once the agent has begun to answer, or once its tool has made this file."""
        ...

    def update(self, **agent: Any) -> None:
        """Change the session's agent."""
        ...

    def call(self) -> str:
        """The id of the newest call."""
        ...


def _say(*steps: Json) -> Json:
    return {"type": "user.message", "content": [{"type": "text", "text": script(*steps)}]}


def _text(text: str) -> list[Json]:
    return [{"type": "text", "text": text}]


def _greet(client: ComparedClient) -> None:
    client.send(_say({"thinking": "Hm.", "text": "Good morning."}))


def _use_a_tool(client: ComparedClient) -> None:
    client.send(_say({"text": "I look.", **client.runs("echo hello")}, {"text": "It says hello."}))


def _fail_in_a_tool(client: ComparedClient) -> None:
    client.send(_say(client.runs("echo hello; (exit 3)"), {"text": "It failed."}))


def _ask_first(client: ComparedClient) -> None:
    client.update(tools=tools("always_ask", custom=client.custom_tools))
    client.send(_say(client.runs("echo one"), client.runs("echo two"), {"text": "Done."}))
    for answer in ({"result": "allow"}, {"result": "deny", "deny_message": "Not on a Sunday."}):
        client.send({"type": "user.tool_confirmation", "tool_use_id": client.call(), **answer})
    client.update(tools=tools("always_allow", custom=client.custom_tools))


def _ask_the_client(client: ComparedClient) -> None:
    calls = {"tool": "lookup", "input": {"what": "weather"}}
    client.send(_say(calls, {"text": "It rains."}))
    given: Json = {"custom_tool_use_id": client.call(), "content": _text("rain")}
    client.send({"type": "user.custom_tool_result", **given})


def _interrupt_text(client: ComparedClient) -> None:
    client.interrupt(script({"text": _LONG, "chunk_delay": 0.05}), begun=None)


def _interrupt_a_tool(client: ComparedClient) -> None:
    step = client.runs("echo begun > begun; sleep 300")
    client.interrupt(script(step, {"text": "Never."}), begun="begun")


def _go_on(client: ComparedClient) -> None:
    client.send(_say({"text": "Where were we?"}))


def _told(type: str, **fields: Any) -> Json:
    return {"type": type, **fields}


_RUNNING: Final = [
    _told("session.status_running", trust_level="sandboxed"),
    _told("session.thread_status_running", session_thread_id="sthr 1", agent_name="contract"),
]


def _idle(reason: str = "end_turn", *calls: str) -> list[Json]:
    why: Json = {"type": reason, **({"event_ids": list(calls)} if calls else {})}
    thread = {"session_thread_id": "sthr 1", "agent_name": "contract"}
    return [
        _told("session.thread_status_idle", **thread, stop_reason=why),
        _told("session.usage", usage="…", budget=None),
        _told("session.status_idle", trust_level="sandboxed", stop_reason=why),
    ]


def _message(text: str) -> Json:
    return _told("agent.message", content=_text(text))


def _called(name: str, permission: str, command: str) -> Json:
    judged = {"type": "always_ask" if permission == "ask" else "always_allow"}
    return _told(
        "agent.tool_use",
        name="bash",
        id=name,
        input={"command": command},
        evaluated_permission=permission,
        evaluation=judged,
    )


def _result(call: str, text: str, *, is_error: bool = False) -> Json:
    return _told("agent.tool_result", tool_use_id=call, content=_text(text), is_error=is_error)


class Part(NamedTuple):
    """A part of the conversation: what it takes, how it is played, and what a client sees of it.

    `loose`: what texts say depends on the moment, and is not compared.
    """

    name: str
    needs: str | None
    play: Callable[[ComparedClient], None]
    told: Sequence[Json]
    loose: bool = False


PARTS: Final = [
    Part(
        "an answer",
        None,
        _greet,
        [*_RUNNING, _told("agent.thinking"), _message("Good morning."), *_idle()],
    ),
    Part(
        "a tool",
        "approvals",
        _use_a_tool,
        [
            *_RUNNING,
            _message("I look."),
            _called("call 1", "allow", "echo hello"),
            _result("call 1", "hello"),
            _message("It says hello."),
            *_idle(),
        ],
    ),
    Part(
        "a tool that fails",
        "approvals",
        _fail_in_a_tool,
        [
            *_RUNNING,
            _called("call 1", "allow", "echo hello; (exit 3)"),
            _result("call 1", "Exit code 3\nhello", is_error=True),
            _message("It failed."),
            *_idle(),
        ],
    ),
    Part(
        "approvals",
        "approvals",
        _ask_first,
        [
            _told("session.updated"),
            *_RUNNING,
            _called("call 1", "ask", "echo one"),
            *_idle("requires_action", "call 1"),
            *_RUNNING,
            _result("call 1", "one"),
            _called("call 2", "ask", "echo two"),
            *_idle("requires_action", "call 2"),
            *_RUNNING,
            _result("call 2", "Not on a Sunday.", is_error=True),
            _message("Done."),
            *_idle(),
            _told("session.updated"),
        ],
    ),
    Part(
        "a custom tool",
        "custom_tools",
        _ask_the_client,
        [
            *_RUNNING,
            _told("agent.custom_tool_use", id="call 1", name="lookup", input={"what": "weather"}),
            *_idle("requires_action", "call 1"),
            *_RUNNING,
            _message("It rains."),
            *_idle(),
        ],
    ),
    Part(
        "an interrupted answer",
        "interrupts",
        _interrupt_text,
        [*_RUNNING, _message("…"), *_idle()],
        loose=True,
    ),
    Part(
        "an interrupted tool",
        "approvals",
        _interrupt_a_tool,
        [
            *_RUNNING,
            _called("call 1", "allow", "echo begun > begun; sleep 300"),
            _result("call 1", "…", is_error=True),
            *_idle(),
        ],
        loose=True,
    ),
    Part("a second turn", None, _go_on, [*_RUNNING, _message("Where were we?"), *_idle()]),
]


def _without_exit_code(event: Json) -> Json:
    if event["type"] != "agent.tool_result":
        return event
    return {**event, "content": _text(event["content"][0]["text"].partition("\n")[2])}


def _as_in_opencode(event: Json) -> Json:
    if event["type"] != "agent.tool_result" or "Sunday" in event["content"][0]["text"]:
        return event
    text = event["content"][0]["text"].removeprefix("Exit code 3\n")
    printed = text if text == "…" else f"{text}\n"
    return {**event, "content": _text(printed), "is_error": False}


class Difference(NamedTuple):
    """Where a harness differs in a part of the conversation: in words for a client's author, and event by event."""

    harness: str
    part: str
    words: str
    change: Callable[[Json], Json]


DIFFERENCES: Final = [
    Difference(
        "messages",
        "a tool that fails",
        "the result has what the command printed, as with the API's own toolset; "
        "with the others it begins with the exit code",
        _without_exit_code,
    ),
    Difference(
        "opencode",
        "a tool",
        "results end with the newline that was printed",
        _as_in_opencode,
    ),
    Difference(
        "opencode",
        "a tool that fails",
        "the same, and a command that fails is not an error; its exit code is not told",
        _as_in_opencode,
    ),
    Difference("opencode", "approvals", "as with a tool", _as_in_opencode),
    Difference(
        "opencode",
        "an interrupted tool",
        "a command that was interrupted is not an error",
        _as_in_opencode,
    ),
]


def parts_for(harness: str, abilities: Mapping[str, bool]) -> list[Part]:
    """The parts that a harness with these abilities plays, as a client sees them with this one."""
    played = [part for part in PARTS if part.needs is None or abilities[part.needs]]
    changes = {each.part: each.change for each in DIFFERENCES if each.harness == harness}
    return [
        part._replace(told=[*map(changes[part.name], part.told)]) if part.name in changes else part
        for part in played
    ]


def as_told(events: Iterable[Any], *, loose: bool) -> list[Json]:
    """The events that a client sees, without what is different in every session: ids, times and numbers of tokens."""
    names: dict[str, str] = {}
    shown = [event.to_dict(mode="json") for event in events]
    own = [event for event in shown if event["type"].startswith(("agent.", "session."))]
    return [_plain(event, names, loose) for event in own]


def _plain(event: Json, names: dict[str, str], loose: bool) -> Json:
    is_call = event["type"] in ("agent.tool_use", "agent.custom_tool_use")
    if is_call:
        names[event["id"]] = f"call {1 + sum(name.startswith('call') for name in names.values())}"
        event["input"].pop("description", None)  # opencode tells at times what a command is for
    left_out = {"processed_at", "seq", *([] if is_call else ["id"])}
    if event["type"] == "session.updated":
        left_out |= {"agent"}  # it is what the client has sent
    kept = {name: value for name, value in event.items() if name not in left_out}
    if "usage" in kept:
        kept["usage"] = "…"
    plain: Json = _named(kept, names)
    if loose and "content" in plain:
        plain["content"] = _text("…")
    return plain


def _named(value: Any, names: dict[str, str]) -> Any:
    """The value with a name in place of each id, in the order in which they come."""
    if isinstance(value, dict):
        return {name: _named(each, names) for name, each in value.items()}
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    if isinstance(value, str) and (found := _ID.fullmatch(value)):
        kind = found[1]
        count = 1 + sum(name.startswith(kind) for name in names.values())
        return names.setdefault(value, f"{kind} {count}")
    return value
