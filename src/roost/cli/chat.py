"""`roost chat`: a session on the terminal.

Turn by turn: send, then read the log until the session rests. What others do meanwhile is in the
log too, and is shown in its place. Ctrl-C, a lost connection or a server that restarts only stop
the reading; it goes on at the same place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from roost.cli.client import Client, Json, at
from roost.cli.follow import ENDS, Following, newest
from roost.cli.screen import Screen, call_of, folded, whole_call
from roost.domain.ids import mint
from roost.errors import Conflict, InvalidRequest

_NAME = "roost-chat"
_MODEL = "claude-opus-5-5"
_EVENTS_READ = 500
_TURNS_SHOWN = 3
_PATIENCE_ONCE = 60.0
_INTERRUPTED = 130
_HOW_TO_ANSWER = "Send user.tool_confirmation or user.custom_tool_result, or interrupt the session."


def converse(
    client: Client,
    message: str | None,
    *,
    session_id: str | None,
    asked: Mapping[str, str | None],
    once: bool,
) -> int:
    """Hold the conversation, in a session as it is asked for if there is none; gives the exit code."""
    if once and message is None:
        message = sys.stdin.read().strip()
    if once and not message:
        raise InvalidRequest(
            "--once needs a message", hint='For example: roost chat --once "Hello"'
        )
    session = (
        client.get(at("v1", "sessions", session_id))
        if session_id
        else _new_session(client, asked, message)
    )
    chat = Chat(client, session["id"], once=once)
    if session_id:
        chat.catch_up()
    return _once(chat, message or "") if once else _interactive(chat, message)


class Chat:
    """One session, and how far its log has been read here."""

    def __init__(self, client: Client, session_id: str, *, once: bool) -> None:
        self.session_id = session_id
        self.screen = Screen()
        self.waits_for: list[Json] = []
        self.over = False
        self._once = once
        self._client = client
        self._running = False
        self._calls: dict[str, Json] = {}
        self._log = Following(
            client,
            session_id,
            previews=True,
            patience=_PATIENCE_ONCE if once else float("inf"),
            on_loss=lambda: self.screen.note("reconnecting…"),
            on_return=lambda: self.screen.note("connected again"),
        )

    def catch_up(self) -> None:
        """Read what happened so far; show the last few turns of it, and let a running one finish."""
        events = newest(self._client, self.session_id, _EVENTS_READ)
        for event in events:
            self._track(event)
            self._log.cursor = str(event["seq"])
        if not self._once:
            for event in events[_beginning_of_turns(events, _TURNS_SHOWN) :]:
                self.screen.show(event)
            if self._running:
                self._until_rest(None)

    def turn(self, text: str) -> str:
        """Say something and show what comes back; gives why the session rests.

        :raises InvalidRequest: it waits for somebody, and would not read this
        """
        if self.waits_for:
            raise InvalidRequest(self.explain_wait(), hint=_HOW_TO_ANSWER)
        sent = self._send("user.message", content=[{"type": "text", "text": text}])
        return self._until_rest(sent)

    def answer(self, call: Json, allow: bool) -> None:
        """Allow or deny a tool call, and show what comes of it."""
        result = "allow" if allow else "deny"
        sent = self._send("user.tool_confirmation", tool_use_id=call["id"], result=result)
        self._until_rest(sent)

    def explain_wait(self) -> str:
        """What the session waits for, in words."""
        calls = "; ".join(call_of(call) for call in self.waits_for)
        return f"the session waits for an answer to: {calls}"

    def _send(self, kind: str, **fields: object) -> str:
        # The id makes sending it again harmless: the server keeps one, however often it comes.
        event = {"type": kind, "client_id": mint("cli"), **fields}
        path = at("v1", "sessions", self.session_id, "events")
        sent = str(self._client.post_surely(path, {"events": [event]})["data"][0]["id"])
        self.screen.mine(sent)
        return sent

    def _until_rest(self, sent: str | None) -> str:
        """Show the log until the session rests and has read what was sent."""
        interrupted = withdrawn = False
        taken = sent is None
        while True:
            try:
                for event in self._log.events():
                    self._track(event)
                    taken = taken or (event.get("id") == sent and bool(event["processed_at"]))
                    if taken or not self._once:  # --once prints its own answer, not an earlier one
                        self.screen.show(event)
                    withdrawn = withdrawn or (event.get("id") == sent and "withdrawn_at" in event)
                    if (reason := _end_of_turn(event)) and (taken or self.waits_for or self.over):
                        return "withdrawn" if withdrawn else reason
                return "deleted"
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                self.screen.note("interrupting… (Ctrl-C again leaves at once)")
                self._send("user.interrupt")

    def _track(self, event: Json) -> None:
        kind = event["type"]
        if kind.endswith("tool_use"):
            self._calls[event["id"]] = event
        elif kind == "session.status_running":
            self._running, self.waits_for = True, []
        elif kind == "session.status_idle":
            awaited = event["stop_reason"].get("event_ids", [])
            self._running = False
            self.waits_for = [
                self._calls.get(i, {"id": i, "type": "?", "name": i}) for i in awaited
            ]
        elif kind in ENDS:
            self._running, self.over, self.waits_for = False, True, []


def _end_of_turn(event: Json) -> str | None:
    kind: str = event["type"]
    if kind == "session.status_idle":
        return str(event["stop_reason"]["type"])
    return kind if kind in ENDS else None


def _beginning_of_turns(events: list[Json], turns: int) -> int:
    read = [
        index
        for index, event in enumerate(events)
        if event["type"] == "user.message" and event["processed_at"] and "withdrawn_at" not in event
    ]
    return read[-turns] if len(read) >= turns else 0


def _once(chat: Chat, message: str) -> int:
    reason = chat.turn(message)
    if chat.waits_for:
        raise InvalidRequest(chat.explain_wait(), hint=_HOW_TO_ANSWER)
    return 0 if reason == "end_turn" else 1


def _interactive(chat: Chat, first: str | None) -> int:
    try:
        for text in _lines(chat, first):
            chat.turn(text)
            _settle(chat)
    except KeyboardInterrupt:
        chat.screen.note("left; the agent goes on without you")
        return _INTERRUPTED
    finally:
        if not chat.over:
            chat.screen.note(f"go on with: roost chat --session {chat.session_id}")
    return 0


def _lines(chat: Chat, first: str | None) -> Iterator[str]:
    """What the person types, until they leave; from a file or pipe, its lines without a prompt."""
    _settle(chat)
    if first:
        yield first
    prompting = sys.stdin.isatty()
    if prompting:
        import readline  # noqa: F401 - gives `input` line editing and history

        chat.screen.note("Ctrl-C interrupts the agent; at the prompt, Ctrl-C or Ctrl-D leaves.")
    while not chat.over:
        try:
            line = input("> " if prompting else "")
        except (EOFError, KeyboardInterrupt):
            if prompting:
                print()
            return
        if line.strip():
            yield line


def _settle(chat: Chat) -> None:
    """Ask the person about each tool call that the session waits to be allowed.

    :raises InvalidRequest: it waits for something that cannot be said here
    """
    while chat.waits_for:
        call = chat.waits_for[0]
        if call["type"] == "agent.custom_tool_use" or not sys.stdin.isatty():
            raise InvalidRequest(chat.explain_wait(), hint=_HOW_TO_ANSWER)
        said = input(f"allow {whole_call(call)}? [y/N] ").strip().lower()
        chat.answer(call, said in ("y", "yes"))


def _new_session(client: Client, asked: Mapping[str, str | None], message: str | None) -> Json:
    body = {
        **{name: value for name, value in asked.items() if value is not None},
        "agent": asked["agent"] or _named(client, "agents", {"name": _NAME, "model": _MODEL}),
        "environment_id": _named(client, "environments", {"name": _NAME}),
        "title": folded(message or "roost chat", 80),
    }
    return client.post("/v1/sessions", body)


def _named(client: Client, kind: str, body: Json) -> str:
    """The id of the thing with this name; it is made if there is none."""
    if found := _find(client, kind, body["name"]):
        return found
    try:
        return str(client.post(f"/v1/{kind}", body)["id"])
    except Conflict:
        # Somebody made it between our looking and our asking.
        if found := _find(client, kind, body["name"]):
            return found
        raise


def _find(client: Client, kind: str, name: str) -> str | None:
    for item in client.pages(f"/v1/{kind}", {"limit": 100}):
        if item["name"] == name:
            return str(item["id"])
    return None
