"""An agent in a pool's container: begins a conversation, takes its turns, and goes on where the last one ended.

Needs `claude-agent-sdk`, which is imported when a turn is taken.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from roost.guest import azure_login, confirms
from roost.guest.events import (
    emit_done,
    emit_error,
    emit_progress,
    emit_text,
    emit_tool_end,
    emit_tool_start,
)
from roost.guest.session_store import (
    DEFAULT_TEAM,
    SessionState,
    SessionStore,
    default_path,
    records,
)

if TYPE_CHECKING:
    from claude_agent_sdk import ClaudeAgentOptions, PermissionResult, ToolPermissionContext

TEAMS_VARIABLE: Final = "ROOST_GUEST_TEAMS"
_DATA: Final = "/mnt/data"
_WAITS: Final = 0.05
_TEAM: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LARGEST_LINE: Final = 64 * 1024 * 1024


class TurnFailed(Exception):
    """A turn cannot be taken, or did not work; its text is for the user."""


async def run_init(team: str = DEFAULT_TEAM) -> None:
    """Sign in, look for the agent's program, and begin a conversation; one that is there is kept."""
    try:
        options = _options(team)
        async with _alone():
            await azure_login.sign_in()
            emit_progress("sdk", "the agent's program is there", **_model(options))
            store = SessionStore()
            state = _loaded(store) or SessionState(_new_id())
            state.team, state.initialized = team, True
            _save(store, state)
            emit_done(state.session_id, state.conversation_turns)
    except (TurnFailed, azure_login.LoginFailed) as failed:
        emit_error(str(failed))


async def run_chat(message: str, team: str = DEFAULT_TEAM) -> None:
    """Take a turn: the agent gets the message, and what it does is told until it is done."""
    try:
        async with _alone():
            store = SessionStore()
            state = _loaded(store) or SessionState(_new_id(), team)
            if team != DEFAULT_TEAM:  # else it is that of the conversation
                state.team = team
            state.initialized = True
            _save(store, state)
            await _turn(store, state, message)
    except TurnFailed as failed:
        emit_error(str(failed))


def get_status() -> dict[str, Any]:
    """What is known of the conversation, without asking anybody."""
    store = SessionStore()
    state = store.load()
    if state is None:
        told: dict[str, Any] = {"exists": False, "initialized": False, "turns": 0}
        return {**told, "problem": store.problem} if store.problem else told
    return {
        "exists": True,
        "initialized": state.initialized,
        "session_id": state.session_id,
        "team": state.team,
        "turns": state.conversation_turns,
    }


def clear() -> dict[str, str]:
    """Forget the conversation: the next message begins another one."""
    confirms.forget()
    return {"status": "cleared" if SessionStore().clear() else "empty"}


# One turn


async def _turn(store: SessionStore, state: SessionState, message: str) -> None:
    options = _options(state.team)
    from claude_agent_sdk import ClaudeSDKClient, ClaudeSDKError, ResultMessage

    has_begun = _has_begun(state.session_id)
    options.resume = state.session_id if has_begun else None
    options.session_id = None if has_begun else state.session_id
    word = "resuming the conversation" if has_begun else "beginning a conversation"
    emit_progress("session", word, session_id=state.session_id, **_model(options))
    teller, result = _Teller(), None
    try:
        async with ClaudeSDKClient(options) as client:
            await client.query(message)
            async for each in client.receive_response():
                teller.take(each)
                result = each if isinstance(each, ResultMessage) else result
    except ClaudeSDKError as error:
        raise TurnFailed(f"the agent's program failed: {error}") from None
    if result is None:
        raise TurnFailed("the agent's program ended without an answer")
    if result.is_error:
        raise TurnFailed(str(result.result or result.subtype))
    state.session_id = result.session_id or state.session_id
    state.conversation_turns += 1
    _save(store, state)
    emit_done(state.session_id, state.conversation_turns)


class _Teller:
    """Makes events of what the SDK tells. Text that was told in pieces is not told again as a whole."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}
        self._told: set[str] = set()
        self._message = ""

    def take(self, each: Any) -> None:
        """Tell what there is to tell of a message."""
        from claude_agent_sdk import AssistantMessage, StreamEvent, UserMessage

        if isinstance(each, StreamEvent):
            if each.parent_tool_use_id is None:
                self._piece(each.event)
        elif isinstance(each, AssistantMessage):
            if each.parent_tool_use_id is None:
                self._answer(each)
        elif isinstance(each, UserMessage) and isinstance(each.content, list):
            self._results(each.content)

    def _piece(self, event: dict[str, Any]) -> None:
        if event.get("type") == "message_start":
            self._message = str(event.get("message", {}).get("id", ""))
        delta = event.get("delta", {})
        if event.get("type") == "content_block_delta" and delta.get("type") == "text_delta":
            self._told.add(self._message)
            emit_text(delta["text"])

    def _answer(self, answer: Any) -> None:
        from claude_agent_sdk import TextBlock, ToolUseBlock

        for block in answer.content:
            if isinstance(block, TextBlock) and answer.message_id not in self._told:
                emit_text(block.text)
            elif isinstance(block, ToolUseBlock):
                self._tools[block.id] = block.name
                emit_tool_start(block.name, block.input)

    def _results(self, content: list[Any]) -> None:
        from claude_agent_sdk import ToolResultBlock

        for block in content:
            if isinstance(block, ToolResultBlock) and block.tool_use_id in self._tools:
                emit_tool_end(self._tools.pop(block.tool_use_id), not block.is_error)


async def _may_use(
    tool: str, given: dict[str, Any], context: ToolPermissionContext
) -> PermissionResult:
    """Asked for what the program does not allow by itself: that is what changes something."""
    from claude_agent_sdk import PermissionResultAllow, PermissionResultDeny

    allowed, why = await confirms.confirmed(tool, given)
    return PermissionResultAllow() if allowed else PermissionResultDeny(message=why)


# What a turn needs


def _options(team: str) -> ClaudeAgentOptions:
    """What the agent's program is told: what the team's file says, over what is usual."""
    try:
        from claude_agent_sdk import ClaudeAgentOptions
    except ImportError as error:
        raise TurnFailed(f"the container has no claude-agent-sdk: {error}") from None
    usual: dict[str, Any] = {
        "cwd": _DATA if Path(_DATA).is_dir() else str(Path.home()),
        "can_use_tool": _may_use,
        "include_partial_messages": True,
        "max_buffer_size": _LARGEST_LINE,
    }
    try:
        return ClaudeAgentOptions(**{**usual, **_team(team)})
    except TypeError as error:
        raise TurnFailed(f"team {team}: {error}") from None


def _team(team: str) -> dict[str, Any]:
    if not _TEAM.fullmatch(team):
        raise TurnFailed("team: give letters, digits, `_`, `-` and `.`")
    teams = os.environ.get(TEAMS_VARIABLE)
    folder = Path(teams) if teams else default_path().parent / "teams"
    try:
        read = json.loads((folder / f"{team}.json").read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TurnFailed(f"the file of team {team} cannot be read: {error}") from None
    if not isinstance(read, dict):
        raise TurnFailed(f"the file of team {team} has no object in it")
    return read


def _model(options: ClaudeAgentOptions) -> dict[str, str]:
    return {"model": options.model} if options.model else {}


def _new_id() -> str:
    return str(uuid.UUID(bytes=os.urandom(16), version=4))


def _has_begun(session_id: str) -> bool:
    """Whether the program has written anything of that conversation: only then it can be resumed."""
    return any(path.stat().st_size for path in records().glob(f"*/{session_id}.jsonl"))


def _loaded(store: SessionStore) -> SessionState | None:
    state = store.load()
    if store.problem:
        emit_progress("session", f"{store.problem}; a new conversation is begun")
    return state


def _save(store: SessionStore, state: SessionState) -> None:
    if not store.save(state):
        raise TurnFailed(store.problem)


@asynccontextmanager
async def _alone() -> AsyncGenerator[None, None]:
    """One turn at a time: the next one waits until this one is over, and goes on from there."""
    path = default_path().with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("ab") as file:
        waits = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waits:
                    emit_progress("waiting", "another turn is running")
                waits = True
                await asyncio.sleep(_WAITS)
        yield
