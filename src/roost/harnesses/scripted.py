"""The harness that talks to a model directly: no sandbox, no agent program, no tools of its own.

It runs against the scripted model, and as well against a real one behind the Messages API. Custom
tools are offered to the model and answered by the client; any other tool it calls is refused. Of the
agent's settings it uses the model's id, the system prompt and the custom tools.

It keeps nothing that the log does not have. All that follows from one answer is one `Emit`, so a
crash leaves the whole answer or none of it, and a turn that is taken again looks at the log to see
what the model still has to be asked. What a crash right before `TurnEnd` loses is the difference
between `refusal` and `end_turn`. Which failures end a turn or the session: see `retries`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import cache, partial
from typing import Any, Final

import httpx2

from roost import __version__
from roost.domain.events import Draft, Entry
from roost.domain.session import Pending, Session
from roost.domain.usage import Usage
from roost.harnesses import HarnessContext
from roost.harnesses.message_history import MessageHistory
from roost.harnesses.messages_api import AnswerPart, Json, MessagesApi, ModelAnswer
from roost.harnesses.model_requests import ModelRequests, Stop
from roost.harnesses.turn_ends import GIVEN_UP, span_end
from roost.ports.drafts import new_draft
from roost.ports.egress import Origin
from roost.ports.harness import Brief, Conversation, Emit, Harness, Output, Trouble, TurnEnd
from roost.ports.harness_profile import Abilities, HarnessProfile

_MAX_TOKENS = 16_384
_MAX_REQUESTS = 200  # in a row: a model that only ever calls tools it does not have must not go on
_tls = cache(httpx2.create_ssl_context)  # once: reading all certificates takes a while
_END = TurnEnd({"type": "end_turn"})


PROFILE: Final = HarnessProfile(
    abilities=Abilities(
        custom_tools=True,
        files=True,
        images=True,
        interrupts=True,
        deltas=True,
        fork=True,
        rewind=True,
        retries=True,
    ),
    needs_sandbox=False,
    upstream="anthropic",
    runs_tools=False,
)


def make(context: HarnessContext) -> Sequence[Harness]:
    """The harness as a server runs it: see `roost.harnesses`."""
    settings, origin_of = context.settings, partial(context.origin_of, PROFILE.upstream)
    retries, pause = settings.model_retries, settings.retry_seconds
    return [ScriptedHarness(origin_of, retries=retries, retry_seconds=pause)]


class ScriptedHarness:
    """Drives a model by its Messages API. `origin_of` says where the model with an id is.

    A failed request is repeated up to `retries` times, first after `retry_seconds`. Without a
    `client` each conversation has one of its own.
    """

    name = "scripted"
    profile = PROFILE
    mounts = ()

    def __init__(
        self,
        origin_of: Callable[[str], Origin],
        *,
        retries: int,
        retry_seconds: float,
        client: httpx2.AsyncClient | None = None,
    ) -> None:
        self._origin_of = origin_of
        self._retries = retries
        self._retry_seconds = retry_seconds
        self._client = client

    def check(self) -> str:
        return __version__

    def models(self, agent: Mapping[str, Any]) -> Sequence[str]:
        own = agent["model"]["id"]
        return [] if "*" in own else [own]

    @asynccontextmanager
    async def open(self, brief: Brief) -> AsyncGenerator[Conversation, None]:
        origin = self._origin_of(brief.session.spec.agent["model"]["id"])
        own = nullcontext(self._client) if self._client else httpx2.AsyncClient(verify=_tls())
        async with own as client:
            api = await MessagesApi.at(origin, client)
            yield _Conversation(brief, api, self._retries, self._retry_seconds)


class _Conversation:
    def __init__(self, brief: Brief, api: MessagesApi, retries: int, first_pause: float) -> None:
        self._brief = brief
        self._requests = ModelRequests(api, retries, first_pause)
        self._transcript: MessageHistory | None = None
        self._stop = Stop()

    def turn(self, inputs: Sequence[Entry], *, again: bool) -> AsyncGenerator[Output, None]:
        self._stop = Stop()  # now, and not when the first output is asked for: see `interrupt`
        return self._turn(inputs, again, self._stop)

    async def up(self) -> bool:
        return True  # there is no program to wait for

    async def interrupt(self) -> None:
        self._stop.ask()

    async def _turn(
        self, inputs: Sequence[Entry], again: bool, stop: Stop
    ) -> AsyncGenerator[Output, None]:
        """Folds each event once it is logged, as if it had been read from the log."""
        transcript = await self._caught_up(inputs, again)
        async with aclosing(self._asked(transcript, stop)) as outputs:
            async for output in outputs:
                yield output
                if isinstance(output, Emit):
                    for draft in output.drafts:
                        transcript.take(draft)

    async def _caught_up(self, inputs: Sequence[Entry], again: bool) -> MessageHistory:
        transcript = self._transcript
        # With calls open, only the log knows whether they still are: an interrupt closes them.
        if transcript is None or again or transcript.waiting:
            transcript = MessageHistory()
            async for entry in self._brief.history():
                # One that was queued stands again where it was taken up; a withdrawn one never was.
                if not (entry.queued or entry.withdrawn):
                    transcript.take(entry)
        for entry in inputs:
            transcript.take(entry)
        self._transcript = transcript
        return transcript

    async def _asked(self, transcript: MessageHistory, stop: Stop) -> AsyncGenerator[Output, None]:
        """Asks the model as long as it has something to answer."""
        if transcript.open_span:
            yield Emit([span_end(transcript.open_span, Usage(), error=True)])
        for _ in range(_MAX_REQUESTS):
            if rest := _rest(transcript, stop):
                yield rest
                return
            async with aclosing(self._answered(transcript, stop)) as outputs:
                async for output in outputs:
                    yield output
                    if isinstance(output, TurnEnd):
                        return
        said = f"The model called tools {_MAX_REQUESTS} times in a row; send a message to go on."
        yield Trouble("tool_use_limit_reached_error", said, "exhausted")
        yield GIVEN_UP

    async def _answered(
        self, transcript: MessageHistory, stop: Stop
    ) -> AsyncGenerator[Output, None]:
        """Makes one request; rests if it is never answered, or if that is the end."""
        answers: list[ModelAnswer] = []

        def finish(answer: ModelAnswer, end: Draft) -> Emit:
            answers.append(answer)
            return _outcome(answer, end, _custom_tools(self._brief.session))

        body = _request_body(self._brief.session, transcript)
        async with aclosing(self._requests.outputs(body, stop, finish)) as outputs:
            async for output in outputs:
                yield output
        if answers and answers[-1].stop_reason == "refusal":
            yield TurnEnd({"type": "refusal"})


def _outcome(answer: ModelAnswer, end: Draft, custom: set[str]) -> Emit:
    """What the answer comes to. One that an interrupt cut short counts as far as it is said."""
    parts = [part for part in answer.parts if part.kind != "tool_use" or answer.complete]
    calls = [part for part in parts if part.kind == "tool_use"]
    return Emit(
        [
            *(draft for part in parts for draft in _events(part, custom)),
            end,
            *(_denial(call) for call in calls if call.name not in custom),
        ],
        spent=answer.usage,
        blocks=[Pending(call.id, "custom_tool") for call in calls if call.name in custom],
    )


def _events(part: AnswerPart, custom: set[str]) -> list[Draft]:
    if part.kind == "thinking":
        return [Draft.of("agent.thinking", part.id)]
    if part.kind == "text":
        content = [{"type": "text", "text": part.text}]
        return [Draft.of("agent.message", part.id, content=content)] if part.text else []
    call = {"name": part.name, "input": part.arguments()}
    if part.name in custom:
        return [Draft.of("agent.custom_tool_use", part.id, **call)]
    return [Draft.of("agent.tool_use", part.id, **call, evaluated_permission="deny")]


def _rest(transcript: MessageHistory, stop: Stop) -> TurnEnd | None:
    """The reason to rest, unless the model has something to answer."""
    if stop.asked:
        transcript.interrupt()
    if transcript.waiting:
        return TurnEnd({"type": "requires_action", "event_ids": list(transcript.waiting)})
    return None if transcript.due else _END


def _request_body(session: Session, transcript: MessageHistory) -> Json:
    agent = session.spec.agent
    body: Json = {
        "model": agent["model"]["id"],
        "max_tokens": _MAX_TOKENS,
        "messages": transcript.messages(),
        "cache_control": {
            "type": "ephemeral"
        },  # the conversation only grows: its beginning is cached
    }
    if system := agent.get("system"):
        body["system"] = system
    offered = ("name", "description", "input_schema")
    if tools := [
        {name: tool[name] for name in offered if name in tool} for tool in _custom(session)
    ]:
        body["tools"] = tools
    return body


def _custom(session: Session) -> list[Json]:
    return [tool for tool in session.spec.agent.get("tools") or [] if tool["type"] == "custom"]


def _custom_tools(session: Session) -> set[str]:
    return {tool["name"] for tool in _custom(session)}


def _denial(call: AnswerPart) -> Draft:
    said = f"{call.name} was not run: this agent has no sandbox, so it runs no tools of its own."
    content = [{"type": "text", "text": said}]
    return new_draft("agent.tool_result", tool_use_id=call.id, content=content, is_error=True)
