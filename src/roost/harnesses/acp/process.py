"""One process of an agent, and what is known of it: which session it has, what it asks, and why it stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio

from roost.domain.events import Entry
from roost.errors import AgentFailed
from roost.harnesses.acp.calls import AcpCalls
from roost.harnesses.acp.updates import Replay, UpdateReader
from roost.harnesses.acp.wire import (
    PROTOCOL,
    AcpPipe,
    AgentCapabilities,
    Introduction,
    Json,
    OpenedSession,
    PermissionParams,
    PromptCapabilities,
    PromptResult,
    RpcError,
    RpcMessage,
    UpdateParams,
    convert,
)
from roost.harnesses.content import as_text, reminder, text_block
from roost.harnesses.turn_ends import END, GIVEN_UP
from roost.ports.harness import Output, Trouble, TurnEnd

_CLIENT: Final[Json] = {
    # Files and commands are the agent's own affair, in its sandbox.
    "protocolVersion": PROTOCOL,
    "clientCapabilities": {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
    },
    "clientInfo": {"name": "roost", "version": "1"},
}
_ANSWERS_WITHIN: Final = 120.0  # seconds; some agents take a while to load a long session
_REFUSED: Final = (
    "These calls of yours were refused:\n\n{}\n\nGo on without them, or in another way."
)
_LONGEST: Final = 2000
STOPPED: Final = "The agent stopped: "
"""How the words begin that the log has of a prompt which the agent has answered with an error."""


class ProcessDied(Exception):
    """The agent's process ended, or has to."""


class AgentRefused(Exception):
    """The agent answered a request with an error."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error.words)
        self.error = error


class AcpProcess:
    """An agent that runs, `since` some moment."""

    def __init__(
        self, pipe: AcpPipe, calls: AcpCalls, reader: UpdateReader, *, since: float
    ) -> None:
        self.pipe = pipe
        self.calls = calls
        self.since = since
        self.capabilities = AgentCapabilities()
        self._reader = reader
        self._session = ""
        self._prompt: int | None = None
        self._outcome: list[Output] = [END]
        self._told = self._stops = False
        self.follow_up: str | None = None
        """What the agent has to be told before the turn can end."""

    @property
    def done(self) -> bool:
        """Whether it has nothing left to do."""
        return self._prompt is None

    @property
    def waits(self) -> bool:
        """Whether it cannot go on before somebody answers."""
        return not self.done and self.calls.stuck

    @property
    def was_told(self) -> bool:
        """Whether it was told anything. If not, it has asked nothing that an answer could be for."""
        return self._told

    async def introduce(self) -> None:
        """Learn what the agent can do. :raises ProcessDied: :raises AgentFailed: it is none of ours"""
        said = convert(await self._ask("initialize", _CLIENT), Introduction)
        if said is None or said.protocol_version != PROTOCOL:
            raise AgentFailed(f"the agent does not speak version {PROTOCOL} of the protocol")
        self.capabilities = said.agent_capabilities

    async def begin(self, place: Json) -> str:
        """Begin a session, and give what the agent calls it. :raises ProcessDied: :raises Refused:"""
        opened = convert(await self._ask("session/new", place), OpenedSession)
        if opened is None:
            raise AgentFailed("the agent has opened a session without a name")
        self._session = opened.session_id
        return opened.session_id

    async def load(self, session: str, place: Json) -> Replay:
        """Go on with a session, which the agent replays. :raises ProcessDied: :raises Refused: it is not there"""
        replay = Replay()
        self._session = session
        await self._ask("session/load", {"sessionId": session, **place}, replay)
        return replay

    async def resume(self, session: str, place: Json) -> None:
        """Go on with a session without a replay. :raises ProcessDied: :raises Refused: it is not there"""
        self._session = session
        await self._ask("session/resume", {"sessionId": session, **place})

    async def prompt(self, blocks: Sequence[Json]) -> list[Output]:
        """Send a prompt; what there is to log of that."""
        self._told, self._stops, self.follow_up = True, False, None
        self.calls.denials.clear()
        params = {"sessionId": self._session, "prompt": list(blocks)}
        self._prompt = await self.pipe.request("session/prompt", params)
        return self._reader.prompted()

    async def interrupt(self) -> None:
        """Ask it to stop what it does."""
        self._stops = True
        await self.pipe.notify("session/cancel", {"sessionId": self._session})
        for reply in self.calls.cancelled():
            await self.pipe.respond(reply.request_id, reply.response)

    def answer(self, entry: Entry) -> None:
        """Take a person's answer down; `reply` passes it on."""
        self.calls.answer(entry)

    async def take(self, frame: Json) -> list[Output]:
        """What a message has to say. What it asks is answered by `reply`, once that is logged."""
        message = convert(frame, RpcMessage)
        if message is None:
            return []
        if message.method is None:
            return self._answered(message) if message.id == self._prompt else []
        if message.method == "session/update":
            said = convert(message.params, UpdateParams)
            if said is None or said.session_id != self._session:
                return [*self._reader.unknown.pass_on({"type": message.method, **frame})]
            return self._reader.take(said.update, message.params)
        if message.id is None:
            return []
        asked = convert(message.params, PermissionParams)
        if message.method != "session/request_permission" or asked is None:
            await self.pipe.refuse(message.id, f"{message.method} is not served here")
            return []
        emits, understood = self.calls.asked(message.id, asked)
        if not understood:
            await self.pipe.refuse(message.id, "that is not a call")
        return self._reader.certain(emits)

    async def reply(self) -> None:
        """Answer what is asked, as far as that can be answered now."""
        for reply in self.calls.cancelled() if self._stops else self.calls.replies():
            await self.pipe.respond(reply.request_id, reply.response)

    def end_of_turn(self) -> list[Output]:
        """The outputs that end the turn: what was left out of the log, what failed, and why it ends."""
        told: list[Output] = [*self._reader.unknown.told()]
        if not self.done:
            waiting = {"type": "requires_action", "event_ids": self.calls.unanswered}
            return [*told, TurnEnd(waiting)]
        return [*told, *self._outcome]

    def not_understood(self) -> dict[str, int]:
        """How many lines and messages were left alone, by what they were."""
        return dict(self._reader.unknown.counts + self.pipe.dropped)

    def closed(self) -> list[Output]:
        """The outputs that end a model request which was under way when the process died."""
        return self._reader.died()

    def _answered(self, message: RpcMessage) -> list[Output]:
        self._prompt = None
        result = convert(message.result or {}, PromptResult)
        if message.error is not None or result is None:
            error = message.error or RpcError(message="its answer is not understood")
            said = f"{STOPPED}{error.words or 'no reason given'}"[:_LONGEST]
            self._outcome = (
                [END] if self._stops else [Trouble("agent_failed", said, "exhausted"), GIVEN_UP]
            )
            return self._reader.answered(None) if self._stops else self._reader.failed()
        self._outcome = _outcome_of(result)
        outputs = self._reader.answered(result.usage, may_go_on=not self._stops)
        if self._reader.stopped_for_a_refusal and self.calls.denials and not self._stops:
            self.follow_up = _REFUSED.format("\n".join(self.calls.denials))[:30_000]
        return outputs

    async def _ask(self, method: str, params: Json, replay: Replay | None = None) -> Any:
        """Ask for something, and wait for the answer. :raises ProcessDied: :raises Refused:"""
        asked = await self.pipe.request(method, params)
        with anyio.move_on_after(_ANSWERS_WITHIN):
            while True:
                try:
                    frame = await self.pipe.next(_ANSWERS_WITHIN)
                except anyio.EndOfStream:
                    raise ProcessDied from None
                message = convert(frame, RpcMessage)
                if message is None:
                    continue
                if message.method is None and message.id == asked:
                    if message.error is not None:
                        raise AgentRefused(message.error)
                    return message.result or {}
                if message.method is not None and message.id is not None:
                    await self.pipe.refuse(message.id, f"{message.method} is not served here")
                said = convert(message.params, UpdateParams)
                if replay is not None and said is not None:
                    replay.take(said.update)
        await self.pipe.kill()
        raise ProcessDied


def _outcome_of(result: PromptResult) -> list[Output]:
    match result.stop_reason:
        case "refusal":
            return [TurnEnd({"type": "refusal"})]
        case "max_turn_requests":
            said = "The agent has asked the model too often in one turn; send a message to go on."
            return [Trouble("tool_use_limit_reached_error", said, "exhausted"), GIVEN_UP]
        case _:
            return [END]


def prompt_blocks(inputs: Sequence[Entry], can: PromptCapabilities) -> list[Json]:
    """What messages say, as blocks of one prompt."""
    blocks: list[Json] = []
    for entry in inputs:
        content = entry.fields.get("content") or []
        if entry.type == "system.message":
            blocks.append(text_block(reminder(as_text(content))))
        else:
            said = [_block(block, can) for block in content]
            blocks += [b for b in said if b["type"] != "text" or b["text"].strip()]
    return blocks or [text_block("(an empty message)")]


def _block(block: Json, can: PromptCapabilities) -> Json:
    source: Mapping[str, Any] = block["source"] if isinstance(block.get("source"), dict) else {}
    match block["type"], source.get("type"):
        case "image", "base64" if can.image:
            return {"type": "image", "data": source["data"], "mimeType": source["media_type"]}
        case "document", "text" if can.embedded_context:
            return _resource(
                block, text=source["data"], mime=source.get("media_type", "text/plain")
            )
        case "document", "base64" if can.embedded_context:
            return _resource(block, blob=source["data"], mime=source["media_type"])
        case _:
            return text_block(as_text([block]))


def _resource(block: Json, *, mime: str, **content: str) -> Json:
    uri = f"attachment:///{block.get('title') or 'document'}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, **content}}
