"""`roost chat`: a session on the terminal.

Turn by turn: send, then read the log until the session rests. What others do meanwhile is in the
log too, and is shown in its place. Ctrl-C, a lost connection or a server that restarts only stop
the reading; it goes on at the same place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from roost.cli.asked import asked as put_to_person
from roost.cli.asked import in_words, questions_of, send, waiting
from roost.cli.client import ApiClient, Json, at
from roost.cli.follow import ENDS, Following, newest
from roost.cli.names import AGENTS, VAULTS, id_of, named_or_made
from roost.cli.screen import Screen, folded
from roost.errors import InvalidRequest

_NAME = "roost-chat"
_MODEL = "claude-opus-5-5"
_EVENTS_READ = 500
_TURNS_SHOWN = 3
_PATIENCE_ONCE = 60.0
_INTERRUPTED = 130
_ASKS_FIRST = {"type": "always_ask"}
_TOOLS = [
    {
        "type": "agent_toolset_20260401",
        "default_config": {"enabled": True, "permission_policy": _ASKS_FIRST},
        "configs": [
            {"name": name, "enabled": True, "permission_policy": {"type": "always_allow"}}
            for name in ("read", "glob", "grep")
        ],
    }
]
"""What the agent of `roost chat` may use: it reads as it likes, and asks before anything else."""


class ChatSession(NamedTuple):
    """What a new session is to have, as the command line names it."""

    agent: str | None
    workspace: str | None
    vaults: Sequence[str]


def converse(
    client: ApiClient,
    message: str | None,
    *,
    session_id: str | None,
    asked: ChatSession,
    once: bool,
) -> int:
    """Hold the conversation, in a session as it is asked for if there is none; gives the exit code."""
    if once and message is None:
        message = sys.stdin.read().strip()
    if once and not message:
        raise InvalidRequest(
            "--once needs a message", hint='For example: roost chat --once "Hello"'
        )
    if session_id and asked.vaults:
        raise InvalidRequest("--vault is for a new session: a session's vaults cannot be changed")
    session = (
        client.get(at("v1", "sessions", session_id))
        if session_id
        else _new_session(client, asked, message)
    )
    chat = TerminalChat(client, session["id"], once=once)
    if session_id:
        chat.catch_up()
    return _once(chat, message or "") if once else _interactive(chat, message)


class TerminalChat:
    """One session, and how far its log has been read here."""

    def __init__(self, client: ApiClient, session_id: str, *, once: bool) -> None:
        self.session_id = session_id
        self.screen = Screen()
        self.waits_for: list[Json] = []
        self.over = False
        self._once = once
        self.client = client
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
        events = newest(self.client, self.session_id, _EVENTS_READ)
        for event in events:
            self._track(event)
            self._log.cursor = str(event["seq"])
        if not self._once:
            for event in events[_beginning_of_turns(events, _TURNS_SHOWN) :]:
                self._show(event)
                if questions_of(event) and event["id"] not in [it["id"] for it in self.waits_for]:
                    self.screen.note(f"? {in_words(event)}")
            if self._running:
                self._until_rest(None)

    def turn(self, text: str) -> str:
        """Say something and show what comes back; gives why the session rests.

        :raises InvalidRequest: it waits for somebody, and would not read this
        """
        if self.waits_for:
            raise self.cannot_answer()
        content = [{"type": "text", "text": text}]
        return self._until_rest(self._send({"type": "user.message", "content": content}))

    def answer(self, event: Json) -> None:
        """Answer what it waits for, and show what comes of it."""
        self._until_rest(self._send(event))

    def cannot_answer(self) -> InvalidRequest:
        """What the session waits for, in words, where nobody can be asked."""
        calls = "; ".join(in_words(call) for call in self.waits_for)
        return InvalidRequest(
            f"the session waits for an answer to: {calls}",
            hint=f"Answer with `roost sessions answer {self.session_id}`, or in a terminal with "
            f"`roost chat --session {self.session_id}`.",
        )

    def _send(self, event: Json) -> str:
        sent = send(self.client, self.session_id, event)
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
                        self._show(event)
                    withdrawn = withdrawn or (event.get("id") == sent and "withdrawn_at" in event)
                    if (reason := _end_of_turn(event)) and (taken or self.waits_for or self.over):
                        return "withdrawn" if withdrawn else reason
                return "deleted"
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                self.screen.note("interrupting… (Ctrl-C again leaves at once)")
                self._send({"type": "user.interrupt"})

    def _show(self, event: Json) -> None:
        if not questions_of(event):  # a question is put to the person when the session waits for it
            self.screen.show(event)

    def _track(self, event: Json) -> None:
        kind = event["type"]
        if kind.endswith("tool_use"):
            self._calls[event["id"]] = event
        elif kind == "session.status_running":
            self._running, self.waits_for = True, []
        elif kind == "session.status_idle":
            awaited = event["stop_reason"].get("event_ids", [])
            self._running = False
            self.waits_for = [self._calls[i] for i in awaited if i in self._calls]
            if len(self.waits_for) < len(awaited):  # made before what was read here
                self.waits_for = waiting(self.client, self.session_id)
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


def _once(chat: TerminalChat, message: str) -> int:
    reason = chat.turn(message)
    if chat.waits_for:
        raise chat.cannot_answer()
    return 0 if reason == "end_turn" else 1


def _interactive(chat: TerminalChat, first: str | None) -> int:
    try:
        for text in _lines(chat, first):
            chat.turn(text)
            _settle(chat)
    except EOFError:
        print()  # Ctrl-D instead of an answer: it waits for one until somebody comes back
    except KeyboardInterrupt:
        chat.screen.note("left; the agent goes on without you")
        return _INTERRUPTED
    finally:
        if not chat.over:
            chat.screen.note(f"go on with: roost chat --session {chat.session_id}")
    return 0


def _lines(chat: TerminalChat, first: str | None) -> Iterator[str]:
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


def _settle(chat: TerminalChat) -> None:
    """Put to the person whatever the session waits for: permissions, questions, results of custom tools.

    :raises InvalidRequest: there is no person
    """
    while chat.waits_for:
        if not sys.stdin.isatty():
            raise chat.cannot_answer()
        try:
            chat.answer(put_to_person(chat.waits_for[0], _ask, chat.screen.note))
        except (
            InvalidRequest
        ) as mistake:  # another number than there are; or somebody else was quicker
            chat.screen.note(f"{mistake.message}. {mistake.hint or ''}", style="yellow")
            chat.waits_for = waiting(chat.client, chat.session_id)


def _ask(prompt: str) -> str:
    return input(prompt).strip()


def _new_session(client: ApiClient, asked: ChatSession, message: str | None) -> Json:
    body: Json = {
        "agent": _agent(client, asked.agent),
        "environment_id": named_or_made(client, "environments", {"name": _NAME})["id"],
        "title": folded(message or "roost chat", 80),
    }
    if asked.workspace is not None:
        body["workspace"] = asked.workspace
    if asked.vaults:
        body["vault_ids"] = [id_of(client, vault, VAULTS) for vault in asked.vaults]
    return client.post("/v1/sessions", body)


def _agent(client: ApiClient, asked: str | None) -> str:
    """The id of the agent that is asked for, by id or by name; else of the one that is made for this."""
    if asked is not None:
        return id_of(client, asked, AGENTS)
    body = {"name": _NAME, "model": _MODEL, "tools": _TOOLS}
    own = named_or_made(client, "agents", body)
    if not own.get("tools"):  # made by a version that gave it none; it could do nothing but talk
        changed = {"version": own["version"], "tools": _TOOLS}
        own = client.post(at("v1", "agents", own["id"]), changed)
    return str(own["id"])
