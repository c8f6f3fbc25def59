"""One process of the CLI, and what is known of it: what it was told, what it asks, and why it stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from roost.domain.events import Entry
from roost.harnesses.claude.calls import ControlReply, ToolCalls
from roost.harnesses.claude.frames import FrameReader
from roost.harnesses.claude.tools import Toolbox
from roost.harnesses.claude.wire import (
    CanUseTool,
    CliPipe,
    ControlRequest,
    McpMessage,
    Prompt,
    PromptFrame,
    ResultFrame,
    SystemFrame,
    convert,
)
from roost.harnesses.json_lines import Json
from roost.harnesses.logged_past import is_plain
from roost.harnesses.retries import refused
from roost.harnesses.turn_ends import END, GIVEN_UP
from roost.ports.harness import Output, Trouble, TurnEnd

_LONGEST_PAUSE: Final = 600_000  # milliseconds
_NOT_THERE = "No conversation found"


class CliProcess:
    """A CLI that runs, `since` some moment."""

    def __init__(
        self,
        pipe: CliPipe,
        calls: ToolCalls,
        reader: FrameReader,
        toolbox: Toolbox,
        *,
        since: float,
    ) -> None:
        self.pipe = pipe
        self.calls = calls
        self.since = since
        self._reader = reader
        self._toolbox = toolbox
        self._awaited: set[str] = set()
        self._idle = True  # until it is told something
        self._told = False
        self._given_up: Trouble | None = None

    @property
    def done(self) -> bool:
        """Whether it has nothing left to do."""
        return self._idle and not self._awaited

    @property
    def waits(self) -> bool:
        """Whether it cannot go on before somebody answers."""
        return self.calls.stuck and not self._reader.asks_the_model

    def takes(self, inputs: Sequence[Entry]) -> bool:
        """Whether it can be given these. One that was told nothing has asked nothing that they could answer."""
        return self._told or is_plain(inputs)

    def knows_nothing(self, errors: str) -> bool:
        """Whether it was to resume a conversation and found none."""
        result = self._reader.result
        return any(_NOT_THERE in said for said in (errors, *(result.errors if result else ())))

    async def say(self, prompt: Prompt, *, repeated: bool = False) -> None:
        """Send a prompt. One that is `repeated` belongs to the turn it already works on."""
        if not repeated:
            self.calls.prompted()
        self._idle = False
        self._told = True
        self._reader.result = None
        self._awaited.add(prompt.uuid)
        await self.pipe.send(prompt.frame())

    async def interrupt(self) -> None:
        """Ask it to stop what it does."""
        await self.pipe.request("interrupt")

    async def answer(self, entry: Entry) -> None:
        """Pass on a client's answer, now if the CLI waits for it, else when it asks."""
        await self._reply(self.calls.answer(entry))

    async def drop_what_waits(self) -> None:
        """Take back what nobody has answered: the runner has closed it."""
        self.calls.prompted()
        await self.interrupt()

    async def take(self, frame: Json) -> list[Output]:
        """What a frame has to say. What the CLI asks is answered, if it can be."""
        match frame["type"]:
            case "control_request":
                return await self._asked(frame)
            case "control_cancel_request":
                self.calls.withdrawn(str(frame.get("request_id")))
                return []
            case "control_response":
                return []
            case "command_lifecycle":
                return self._prompt_moved(frame)
            case _:
                self._note_state(frame)
                if await self._has_asked_enough(frame):
                    return self._reader.failed()
                return self._reader.take(frame)

    def end_of_turn(self) -> list[Output]:
        """The outputs that end the turn: what was left out of the log, what failed, and why it ends."""
        return [*self._reader.unknown.told(), *self._why_it_rests()]

    async def _has_asked_enough(self, frame: Json) -> bool:
        """Whether the model has failed too often, asks for too long a pause, or will say no again until an
        operator does something. Then it is over: by itself the CLI would go on asking.
        """
        system = convert(frame, SystemFrame) if frame.get("subtype") == "api_retry" else None
        if system is None or system.max_retries is None:
            return False
        failure = refused(system.error or "unknown", _given_up_why(system), system.error_status)
        often, long = system.attempt > system.max_retries, system.retry_delay_ms > _LONGEST_PAUSE
        if failure.retry == "retrying" and not often and not long:
            return False
        self._given_up = Trouble(failure.error, failure.message, "exhausted")
        await self.interrupt()
        return True

    def _why_it_rests(self) -> list[Output]:
        if not self.done:
            return [TurnEnd({"type": "requires_action", "event_ids": self.calls.unanswered})]
        given_up, self._given_up = self._given_up, None
        if given_up is not None:
            return [given_up, GIVEN_UP]
        result = self._reader.result
        if result is None or (result.terminal_reason or "").startswith("aborted"):
            return [END]
        if result.stop_reason == "refusal":  # which counts as an error too
            return [TurnEnd({"type": "refusal"})]
        return [_trouble(result), GIVEN_UP] if result.is_error else [END]

    def not_understood(self) -> dict[str, int]:
        """How many lines and frames were left alone, by what they were."""
        return dict(self._reader.unknown.counts + self.pipe.dropped)

    def close_request(self) -> list[Output]:
        """The outputs that end a model request which was under way when the process died."""
        return self._reader.close_span(error=True)

    def cut_off_calls(self) -> list[Output]:
        """The results of calls that were under way when it died, in a turn that is not tried again."""
        return self._reader.cut_off()

    async def _asked(self, frame: Json) -> list[Output]:
        request = convert(frame, ControlRequest)
        if request is None:
            return self._reader.take(frame)
        subtype = request.request.get("subtype")
        if subtype == "can_use_tool" and (asked := convert(request.request, CanUseTool)):
            await self._reply(self.calls.permission(request.request_id, asked))
        elif subtype == "mcp_message" and (message := convert(request.request, McpMessage)):
            await self._reply(self._from_server(request.request_id, message))
        else:
            await self.pipe.refuse(request.request_id, f"{subtype} is not served here")
        return self._reader.answered()

    def _from_server(self, request_id: str, asked: McpMessage) -> ControlReply | None:
        response = self._toolbox.serve(asked.message)
        if response is not None:
            return ControlReply(request_id, {"mcp_response": response})
        return self.calls.result(request_id, asked)

    async def _reply(self, reply: ControlReply | None) -> None:
        if reply is not None:
            await self.pipe.respond(reply.request_id, reply.response)

    def _prompt_moved(self, frame: Json) -> list[Output]:
        moved = convert(frame, PromptFrame)
        if moved is not None and moved.state not in ("queued", "started"):
            self._awaited.discard(moved.command_uuid)
        return []

    def _note_state(self, frame: Json) -> None:
        if frame.get("subtype") == "session_state_changed":
            system = convert(frame, SystemFrame)
            self._idle = system is not None and system.state == "idle"


def _given_up_why(system: SystemFrame) -> str:
    if system.retry_delay_ms > _LONGEST_PAUSE:
        return f"it asks for a pause of {system.retry_delay_ms / 1000:.0f} seconds"
    return f"given up after {system.attempt} {'try' if system.attempt == 1 else 'tries'}."


def _trouble(result: ResultFrame) -> Trouble:
    if result.terminal_reason == "api_error":
        said = result.result or "no reason given"
        failure = refused("api_error", said, result.api_error_status)
        return Trouble(failure.error, failure.message, "exhausted")
    said = "; ".join(result.errors) or result.result or result.subtype
    return Trouble("agent_failed", f"The agent stopped: {said}"[:2000], "exhausted")
