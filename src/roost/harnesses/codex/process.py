"""One process of Codex, and what is known of it: what it was told, what it asks, and why it stops.

Codex says what the model has said (`rawResponse…`), what it is about to do (`item/…`), and asks before it does
it. What it asks is held until the answer that calls for it is in the log.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from roost.domain.events import Draft, Entry
from roost.domain.usage import Usage
from roost.harnesses.codex.answers import OUTPUTS, CodexAnswer, returned
from roost.harnesses.codex.history import content_of
from roost.harnesses.codex.tools import CodexCall, CodexTools, answer_of, result_of, strictness
from roost.harnesses.codex.wire import AppServerPipe, object_in, text_in
from roost.harnesses.content import as_text, reminder, text_block
from roost.harnesses.json_lines import Json
from roost.harnesses.logged_past import ANSWERS, UNKNOWN
from roost.harnesses.retries import ModelFailure, refused
from roost.harnesses.stable_ids import StableIds
from roost.harnesses.turn_ends import END, GIVEN_UP
from roost.ports.drafts import new_draft
from roost.ports.harness import Emit, Output, Trouble, TurnEnd

_APPROVALS: Final[Mapping[str, Sequence[str]]] = {  # and the tools whose calls may have that done
    "item/commandExecution/requestApproval": ("bash",),
    "item/fileChange/requestApproval": ("edit", "bash"),  # a command may be a patch
}
_QUIET: Final = (  # known, and nothing for the log
    *(
        "thread/started",
        "thread/status/changed",
        "thread/tokenUsage/updated",
        "thread/settings/updated",
    ),
    *("thread/readState/changed", "turn/started", "turn/diff/updated", "serverRequest/resolved"),
    *(
        "item/commandExecution/outputDelta",
        "account/rateLimits/updated",
        "remoteControl/status/changed",
    ),
    *("warning", "configWarning", "item/fileChange/patchUpdated", "turn/plan/updated"),
)
_STATUSES: Final[Mapping[str, int]] = {  # of failures that Codex gives a name instead
    "unauthorized": 401,
    "usageLimitExceeded": 402,
    "contextWindowExceeded": 413,
    "rateLimitExceeded": 429,
    "serverOverloaded": 529,
}
_BAD_REQUEST = (
    '{"error"'  # how the words of a failure begin that is the model's answer to a bad request
)
_ELICITATION: Final = "mcpServer/elicitation/request"


class CodexProcess:
    """A Codex that runs, `since` some moment. It has a conversation, and may be told the past of it once.

    `about_key` is the advice for a key that the model does not take.
    """

    def __init__(
        self,
        pipe: AppServerPipe,
        tools: CodexTools,
        ids: StableIds,
        about_key: str,
        *,
        since: float,
    ) -> None:
        self.pipe = pipe
        self.since = since
        self.told = False
        self.unknown: Counter[str] = Counter()
        self.held: deque[Json] = deque()
        self.thread = ""
        self._turn = ""
        self._tools = tools
        self._ids = ids
        self._about_key = about_key
        self._idle = True
        self._answer: CodexAnswer | None = None
        self._calls: dict[str, CodexCall] = {}
        self._outstanding: set[str] = set()
        self._asking: dict[str, Json] = {}
        self._running: set[str] = set()
        self._answers: dict[str, Entry] = {}
        self._denied: dict[str, str] = {}
        self._starting: int | None = None
        self._stopping = False
        self._end: Json = {}
        self._refused = False
        self._given_up: Trouble | None = None
        self._left_running = False
        self._partial: list[Json] = []
        self._mcp: list[str] = []  # calls of MCP servers' tools that it has not asked about yet
        self._broken: set[str] = set()

    @property
    def done(self) -> bool:
        """Whether it has nothing left to do."""
        return self._idle

    @property
    def is_busy(self) -> bool:
        """Whether it does something that waits for nobody."""
        return bool(self._running) or self._answer is not None

    @property
    def waits(self) -> bool:
        """Whether it cannot go on before somebody answers."""
        return bool(self._asking) and not self.is_busy

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping

    def ready(self) -> Json | None:
        """Something that it has asked, and that can be looked at: the answer that calls for it is in the log."""
        return self.held.popleft() if self.held and self._answer is None else None

    def has_made(self, event_id: str) -> bool:
        """Whether this is the event of a call of its."""
        return any(call.event_id == event_id for call in self._calls.values())

    def is_response(self, frame: Json) -> bool:
        """Whether this answers its request to begin a turn."""
        return self._starting is not None and frame.get("id") == self._starting

    async def inject(self, items: Sequence[Json]) -> None:
        """Tell it the past."""
        self.told = True
        if items:
            await self.pipe.request("thread/inject_items", threadId=self.thread, items=list(items))

    async def say(self, content: Sequence[Json], settings: Json) -> list[Output]:
        """Begin a turn with these blocks; without any, it goes on with what it was told."""
        self.told = True
        self._idle = self._refused = self._stopping = False
        self._turn, self._end = "", {}
        self._calls.clear()
        self._outstanding.clear()
        self._starting = await self.pipe.request(
            "turn/start",
            threadId=self.thread,
            input=[_input(block) for block in content],
            **settings,
        )
        return self._ask()

    async def interrupt(self) -> None:
        """Ask it to stop what it does; as soon as that has a name, if it has none yet."""
        self._stopping = True
        if self._turn:
            await self.pipe.request("turn/interrupt", threadId=self.thread, turnId=self._turn)

    async def answer(self, entry: Entry) -> None:
        """Pass on a client's answer, now if Codex waits for it, else when it asks."""
        event_id = entry.fields[ANSWERS[entry.type]]
        self._answers[event_id] = entry
        call = next((c for c in self._calls.values() if c.event_id == event_id), None)
        if call is not None and (asked := self._asking.pop(call.call_id, None)):
            await self._reply(call, asked)

    async def take(self, frame: Json) -> list[Output]:
        """What a message has to say. What Codex asks is answered, if it can be."""
        method, params = text_in(frame, "method"), object_in(frame, "params")
        if not method:
            return await self._responded(frame)
        if "id" in frame:
            if self._answer is not None:
                self.held.append(frame)
                return []
            await self._asked(method, params, frame)
            return []
        if method == "turn/started" and not self._turn:
            await self._turn_began(text_in(object_in(params, "turn"), "id"))
        handle = _HANDLERS.get(method)
        if handle is not None:
            return handle(self, params)
        if method not in _QUIET:
            self.unknown[method[:80]] += 1
        return []

    async def after(self) -> None:
        """What has to be asked for once the outputs of a message are logged."""
        if self._given_up is not None and not self._stopping and not self._idle:
            await self.interrupt()
        partial, self._partial = self._partial, []
        if partial:  # Codex forgets what it was interrupted in, and the log has it
            await self.inject(partial)
        if self._idle and self._left_running:
            self._left_running = False
            await self.pipe.request("thread/backgroundTerminals/clean", threadId=self.thread)

    def end_of_turn(self) -> list[Output]:
        """The outputs that end the turn: what failed, and why it ends."""
        if not self._idle:
            return [TurnEnd({"type": "requires_action", "event_ids": self.unanswered()})]
        given_up, self._given_up = self._given_up, None
        if given_up is not None:
            return [given_up, GIVEN_UP]
        if self._end.get("status") == "failed":
            failure = _failure(object_in(self._end, "error"), self._about_key)
            return [Trouble(failure.error, failure.message, "exhausted"), GIVEN_UP]
        return [TurnEnd({"type": "refusal"})] if self._refused else [END]

    def close_request(self) -> list[Output]:
        """The outputs that end a model request which was under way when the process died."""
        answer, self._answer = self._answer, None
        if answer is None:
            return []
        cut_off = CodexAnswer(self._ids)  # what was not logged is asked for again
        cut_off.start = answer.start
        return [cut_off.end(self._made, Usage(), error=True)[0]]

    def unanswered(self) -> list[str]:
        """The events of calls that somebody still has to answer."""
        return [
            call.event_id
            for call in self._calls.values()
            if call.waits and call.event_id not in self._answers
        ]

    def _ask(self) -> list[Output]:
        """A request to the model begins."""
        self._answer = CodexAnswer(self._ids)
        return [Emit([self._answer.start])]

    def _ensure_answer(self) -> list[Output]:
        """Codex may ask the model where nobody expects it, for a summary, say."""
        return [] if self._answer is not None or self._idle else self._ask()

    async def _responded(self, frame: Json) -> list[Output]:
        if frame.get("id") != self._starting:
            return []
        self._starting = None
        if "error" in frame:
            self._idle = True
            said = text_in(object_in(frame, "error"), "message")
            self._given_up = Trouble("agent_failed", f"Codex: {said}"[:2000], "exhausted")
            return self.close_request()
        if not self._turn:
            await self._turn_began(text_in(object_in(frame, "result", "turn"), "id"))
        return []

    async def _turn_began(self, turn: str) -> None:
        self._turn = turn
        if self._stopping:
            await self.interrupt()

    def _began(self, params: Json) -> list[Output]:
        item = object_in(params, "item")
        if item.get("type") == "mcpToolCall":
            self._mcp.append(text_in(item, "id"))
        if item.get("type") not in ("agentMessage", "reasoning"):
            return []
        opened = self._ensure_answer()
        shown = self._answer.announce(item) if self._answer else []
        return [*opened, *shown]

    def _added(self, params: Json) -> list[Output]:
        if self._answer is None:
            return []
        return [*self._answer.add(text_in(params, "itemId"), text_in(params, "delta"))]

    def _finished(self, params: Json) -> list[Output]:
        item = object_in(params, "item")
        if item.get("type") == "contextCompaction":
            return [Emit([new_draft("agent.thread_context_compacted")])]
        if item.get("type") == "mcpToolCall" and item.get("status") == "failed":
            self._broken.add(text_in(item, "id"))
        return []

    def _server_started(self, params: Json) -> list[Output]:
        """An MCP server that cannot be reached stops nobody: the turn goes on without it."""
        if params.get("status") != "failed":
            return []
        server = self._tools.servers.get(text_in(params, "name"))
        name = server["name"] if server else text_in(params, "name")
        error = {
            "type": "mcp_connection_failed_error",
            "mcp_server_name": name,
            "message": f"The MCP server {name} cannot be reached.",
            "retry_status": {"type": "retrying"},
        }
        return [Emit([new_draft("session.error", error=error)], aside=True)]

    def _said(self, params: Json) -> list[Output]:
        """An item of the conversation that is complete: of the model's, or a call's outcome."""
        item = object_in(params, "item")
        if self._idle or text_in(params, "turnId") != self._turn:
            return []  # of the past that it was told
        if item.get("type") in OUTPUTS:
            return self._returned(item)
        if item.get("type") == "message" and item.get("role") != "assistant":
            return []
        opened = self._ensure_answer()
        if self._answer is not None:
            self._answer.take(item)
        return opened

    def _answered(self, params: Json) -> list[Output]:
        """The model's answer is complete."""
        if self._answer is None:
            return []
        usage = _usage(object_in(params, "usage"))
        self._refused = self._answer.is_refusal
        return self._logged(usage, error=False)

    def _logged(self, usage: Usage, *, error: bool) -> list[Output]:
        answer, self._answer = self._answer, None
        if answer is None:
            return []
        emit, calls = answer.end(self._made, usage, error=error)
        self._outstanding |= {call.call_id for call in calls}
        outputs: list[Output] = [emit]
        for output in answer.outputs:
            outputs += self._returned(output)
        return outputs

    def _made(self, item: Json) -> CodexCall:
        call_id = text_in(item, "call_id")
        call = self._tools.call(item, self._ids.call(call_id))
        self._calls[call_id] = call
        return call

    def _returned(self, item: Json) -> list[Output]:
        call_id = text_in(item, "call_id")
        if call_id not in self._outstanding:
            if self._answer is not None:  # it ran without asking, and the answer goes on
                self._answer.outputs.append(item)
            return []
        call = self._calls[call_id]
        self._outstanding.discard(call_id)
        self._running.discard(call_id)
        self._asking.pop(call_id, None)
        outputs: list[Output] = []
        if call.waits and call.event_id not in self._answers and not self._stopping:
            # Codex refuses it by itself, because of its input, say: nobody's answer would be heard.
            result = self._result(call, item.get("output"))
            outputs.append(Emit([result], unblocks=[call.event_id]))
        elif call.verdict.permission != "deny" and not call.tool.answered_by_client:
            outputs.append(Emit([self._result(call, item.get("output"))]))
        if not self._outstanding and not self._stopping:
            outputs += self._ask()
        return outputs

    def _result(self, call: CodexCall, output: object) -> Draft:
        reason = self._denied.get(call.call_id)
        if reason is not None:
            return returned(call, [text_block(reason)], is_error=True)
        content, failed = result_of(call, output)
        self._left_running |= "session ID" in str(output)[:500]
        return returned(call, content, is_error=failed or call.call_id in self._broken)

    def _failed(self, params: Json) -> list[Output]:
        """A request to the model has failed. Codex tries again; where that is in vain, it is stopped."""
        if not params.get("willRetry") or self._given_up is not None:
            return []
        failure = _failure(object_in(params, "error"), self._about_key)
        outputs = self._logged(Usage(), error=True)
        if failure.retry == "exhausted":
            self._given_up = Trouble(failure.error, failure.message, "exhausted")
            return outputs
        return [*outputs, Trouble(failure.error, failure.message, "retrying"), *self._ask()]

    def _ended(self, params: Json) -> list[Output]:
        turn = object_in(params, "turn")
        if self._idle or text_in(turn, "id") != self._turn:
            return []
        outputs: list[Output] = []
        if self._answer is not None:
            if turn.get("status") == "interrupted":
                self._partial = self._answer.cut_short()
            outputs = self._logged(Usage(), error=True)
        self._idle, self._end = True, turn
        self.held.clear()
        self._asking.clear()
        self._running.clear()
        # Codex gives each call an outcome before it stops; one that it forgot is not known.
        for call_id in [*self._outstanding]:
            call = self._calls[call_id]
            if call.verdict.permission != "deny" and not call.tool.answered_by_client:
                outputs.append(Emit([returned(call, [text_block(UNKNOWN)], is_error=True)]))
        self._left_running |= bool(self._outstanding) or turn.get("status") == "interrupted"
        self._outstanding.clear()
        return outputs

    async def _asked(self, method: str, params: Json, frame: Json) -> None:
        call = self._calls.get(text_in(params, "itemId") or text_in(params, "callId"))
        if method == _ELICITATION:
            call = self._asked_about(params)
        elif call is not None and method in _APPROVALS:
            call = call if self._tools.is_judged_as(call, *_APPROVALS[method]) else None
        if call is None and method in (*_APPROVALS, _ELICITATION):
            await self.pipe.respond(frame["id"], _decision(frame, allowed=False))
        elif call is None:
            await self.pipe.refuse(frame["id"], f"{method} is not served here")
        else:
            await self._reply(call, frame)

    def _asked_about(self, params: Json) -> CodexCall | None:
        """The call of an MCP server's tool that Codex asks about, which it names in words only. Where more than one
        could be meant, it is the strictest.

        None: the server itself asks for something, and nobody is there to answer it.
        """
        if object_in(params, "_meta").get("codex_approval_kind") != "mcp_tool_call":
            return None
        started = [self._calls[call_id] for call_id in self._mcp if call_id in self._calls]
        meant = [call for call in started if self._is_meant(call, params)]
        call = max(meant, key=strictness, default=None)
        if call is not None:
            self._mcp.remove(call.call_id)
        return call

    def _is_meant(self, call: CodexCall, params: Json) -> bool:
        named = f'"{call.tool.name}"' in text_in(params, "message")
        same = call.input == object_in(params, "_meta", "tool_params")
        return (
            named and same and self._tools.server_of(call.tool.server) == params.get("serverName")
        )

    async def _reply(self, call: CodexCall, frame: Json) -> None:
        """Answer what Codex asks about a call, or note that somebody has to."""
        entry = self._answers.get(call.event_id)
        if call.waits and entry is None:
            self._asking[call.call_id] = frame
            return
        if call.tool.answered_by_client and entry is not None:
            # It is not running: Codex tells of its result only after those of the calls before it.
            await self.pipe.respond(frame["id"], _client_said(call, entry))
            return
        self._running.add(call.call_id)
        refusal = _refusal(call, entry)
        if refusal:
            self._denied[call.call_id] = refusal
            await self._explain(refusal)  # first: Codex asks the model as soon as it has its answer
        await self.pipe.respond(frame["id"], _decision(frame, allowed=refusal is None))

    async def _explain(self, refusal: str) -> None:
        """Tell the model why. Codex itself only says that somebody has refused."""
        said = [{"type": "text", "text": reminder(refusal)}]
        await self.pipe.request(
            "turn/steer", threadId=self.thread, expectedTurnId=self._turn, input=said
        )


def _decision(frame: Json, *, allowed: bool) -> Json:
    """The answer to a request for permission."""
    if frame.get("method") == _ELICITATION:
        return {"action": "accept" if allowed else "decline", "content": {} if allowed else None}
    return {"decision": "accept" if allowed else "decline"}


def _refusal(call: CodexCall, entry: Entry | None) -> str | None:
    """Why a call may not be made; None if it may. Empty: there is nothing to add to Codex's own words."""
    if call.verdict.permission == "deny":
        return call.verdict.reason or ""
    if entry is None or entry.fields["result"] == "allow":
        return None
    return entry.fields.get("deny_message") or f"The user did not allow {call.tool.name}."


def _client_said(call: CodexCall, entry: Entry) -> Json:
    content = entry.fields.get("content") or []
    if call.tool.kind == "question":
        return answer_of(call, as_text(content))
    parts = [content_of(block, "inputText") for block in content]
    items = [
        {"type": "inputImage", "imageUrl": part["image_url"]} if "image_url" in part else part
        for part in parts
    ]
    return {"contentItems": items, "success": not entry.fields.get("is_error")}


def _input(block: Json) -> Json:
    part = content_of(block, "text")
    return {"type": "image", "url": part["image_url"]} if "image_url" in part else part


def _usage(figures: Json) -> Usage:
    def count(name: str) -> int:
        found = figures.get(name)
        return found if isinstance(found, int) and found > 0 else 0

    cached, written = count("cachedInputTokens"), count("cacheWriteInputTokens")
    return Usage(
        input_tokens=max(0, count("inputTokens") - cached - written),
        output_tokens=count("outputTokens"),
        cache_read_input_tokens=cached,
        cache_creation_input_tokens=written,
    )


def _failure(error: Json, about_key: str) -> ModelFailure:
    """What a failure of Codex's means."""
    info, said = error.get("codexErrorInfo"), text_in(error, "message")
    status = _STATUSES.get(info) if isinstance(info, str) else None
    if isinstance(info, dict):
        status = next((s for s in map(_status, info.values()) if s is not None), None)
    if status is None and said.startswith(_BAD_REQUEST):
        status = 400
    details = text_in(error, "additionalDetails") or said
    return refused("api_error", details, status, about_key=about_key)


def _status(found: object) -> int | None:
    status = found.get("httpStatusCode") if isinstance(found, dict) else None
    return status if isinstance(status, int) else None


_HANDLERS: dict[str, Callable[[CodexProcess, Json], list[Output]]] = {
    "item/started": CodexProcess._began,
    "item/agentMessage/delta": CodexProcess._added,
    "item/completed": CodexProcess._finished,
    "rawResponseItem/completed": CodexProcess._said,
    "rawResponse/completed": CodexProcess._answered,
    "mcpServer/startupStatus/updated": CodexProcess._server_started,
    "error": CodexProcess._failed,
    "turn/completed": CodexProcess._ended,
}
