"""Where a conversation with an agent's program stands: one table, which docs/harnesses.md draws."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class ConversationState(Enum):
    """Where a conversation stands: whether there is a process, and whether a turn is under way."""

    ABSENT = "absent"
    """There is no process."""
    AHEAD = "ahead"
    """A process is started ahead of the first turn, or is up, and has been told nothing."""
    BUSY = "busy"
    """A turn is under way."""
    INTERRUPTED = "interrupted"
    """A turn is under way that was asked to stop."""
    WAITING = "waiting"
    """The turn is over: the process waits for somebody's answer, which is another turn."""
    IDLE = "idle"
    """The turn is over, and the process has nothing left to do."""
    DEAD = "dead"
    """The process ended in the middle of a turn, which starts another one after a pause."""


class ConversationMove(Enum):
    """What brings a conversation from one state to another."""

    START_AHEAD = "start ahead"
    TAKE = "take inputs"
    INTERRUPT = "interrupt"
    REST = "rest"
    WAIT = "wait"
    DIE = "die"
    RESTART = "restart"
    GIVE_UP = "give up"


_State, _Move = ConversationState, ConversationMove
TABLE: Final[Mapping[tuple[ConversationState, ConversationMove], ConversationState]] = {
    (_State.ABSENT, _Move.START_AHEAD): _State.AHEAD,
    (_State.AHEAD, _Move.GIVE_UP): _State.ABSENT,
    (_State.ABSENT, _Move.TAKE): _State.BUSY,
    (_State.AHEAD, _Move.TAKE): _State.BUSY,
    (_State.WAITING, _Move.TAKE): _State.BUSY,
    (_State.IDLE, _Move.TAKE): _State.BUSY,
    # A turn that was abandoned is followed by one that looks up what became of it.
    (_State.BUSY, _Move.TAKE): _State.BUSY,
    (_State.INTERRUPTED, _Move.TAKE): _State.BUSY,
    (_State.DEAD, _Move.TAKE): _State.BUSY,
    (_State.BUSY, _Move.INTERRUPT): _State.INTERRUPTED,
    (_State.INTERRUPTED, _Move.INTERRUPT): _State.INTERRUPTED,
    (_State.DEAD, _Move.INTERRUPT): _State.INTERRUPTED,
    (_State.BUSY, _Move.REST): _State.IDLE,
    (_State.INTERRUPTED, _Move.REST): _State.IDLE,
    (_State.BUSY, _Move.WAIT): _State.WAITING,
    (_State.INTERRUPTED, _Move.WAIT): _State.WAITING,
    (_State.BUSY, _Move.DIE): _State.DEAD,
    (_State.INTERRUPTED, _Move.DIE): _State.INTERRUPTED,
    (_State.DEAD, _Move.RESTART): _State.BUSY,
    (_State.DEAD, _Move.GIVE_UP): _State.ABSENT,
    (_State.INTERRUPTED, _Move.GIVE_UP): _State.ABSENT,
}
IN_A_TURN: Final = (_State.BUSY, _State.INTERRUPTED, _State.DEAD)
